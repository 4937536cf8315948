"""The bytes of a trace file, decompressed, in chunks; what a damaged gzip file still gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from isal import igzip_lib

from dtprof.errors import InputError
from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.collected import Notes

Progress = Callable[[int, int], None]

GzipError = cast(type[Exception], igzip_lib.error)
GZIP_MAGIC = b"\x1f\x8b"
# small enough to stay in the processor's cache between decompressing and scanning, and to lose little of a cut file
READ_BYTES = 64 * 2**10
CHUNK_BYTES = 256 * 2**10


def chunks(path: Path, notes: Notes, progress: Progress | None = None) -> Iterator[bytes]:
    """Chunks of the text of ``path``, gunzipped where its first bytes say gzip. Damage goes to ``notes``.

    ``progress`` gets bytes read and bytes in all.
    """
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
            file.seek(0)
            done = 0

            def pieces() -> Iterator[bytes]:
                nonlocal done
                while piece := file.read(READ_BYTES if is_gzip else CHUNK_BYTES):
                    done += len(piece)
                    if progress:
                        progress(done, total)
                    yield piece

            yield from gunzip(pieces(), notes) if is_gzip else pieces()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})", "check the path and its permissions") from error


def gunzip(pieces: Iterator[bytes], notes: Notes) -> Iterator[bytes]:
    """Decompress a gzip stream of one or more members; after damage, end with what came before it.

    The last eight bytes of a stream are its check. They are held back until the rest is through, because a failed check
    discards whatever was decompressed in the same call.
    """
    given = 0
    held = b""
    member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    try:
        for piece in _delayed(pieces, 8):
            rest = held + piece
            held = b""
            while rest or not (member.needs_input or member.eof):
                if member.eof:
                    if len(rest) < 2:
                        held = rest
                        break
                    if rest[:2] != GZIP_MAGIC:
                        notes.add(kinds.GZIP_TAIL, given)
                        return
                    member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
                data = member.decompress(rest, CHUNK_BYTES)
                rest = member.unused_data if member.eof else b""
                given += len(data)
                if data:
                    yield data
    except GzipError as error:
        notes.add(kinds.GZIP_CHECK if "checksum" in str(error) else kinds.GZIP_BAD, given)
        return
    if held:
        notes.add(kinds.GZIP_TAIL, given)
    elif not member.eof:
        notes.add(kinds.GZIP_CUT, given)


def _delayed(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The same bytes, the last ``count`` of all of them as a piece of their own."""
    held = b""
    for piece in pieces:
        ready = held + piece
        held = ready[-count:]
        if len(ready) > count:
            yield ready[:-count]
    yield held
