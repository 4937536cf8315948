"""Read one Kineto file into a RawTrace, with the C scanner where it was built."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Literal

from dtprof.errors import InputError, MissingExtra, NotATrace
from dtprof.ingest.kineto.assemble import assemble
from dtprof.ingest.kineto.chunks import Progress, chunks
from dtprof.ingest.kineto.collected import Collected, Notes, arg_keys, collected_from_c
from dtprof.ingest.kineto.damage import BROKEN, FLAWS, NO_PH
from dtprof.ingest.kineto.fallback import PythonScanner
from dtprof.ingest.kineto.raw import COMM_WORDS, RawTrace

Engine = Literal["auto", "c", "python"]

REMEDY = "give a trace written by torch.profiler (export_chrome_trace, tensorboard_trace_handler) as .json or .json.gz"
# how far into a file its kind is looked for: traceEvents may stand behind a long header
SNIFF_BYTES = 2**20
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*[\[{]')
_EVENT = re.compile(rb'\{\s*"(?:ph|name|cat|ts|dur|pid|tid|args|id|bp|s)"\s*:')
_PH = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_MAGIC = (
    (b"%PDF", "a PDF document"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"PK\x03\x04", "a zip archive"),
    (b"<", "an HTML or XML page"),
    (b"\x89PNG", "a picture"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
)


def has_c() -> bool:
    """Whether the C scanner was built and is not switched off by DTPROF_NO_C."""
    if os.environ.get("DTPROF_NO_C", "") not in ("", "0"):
        return False
    try:
        import_module("dtprof.ingest.kineto._scan")
    except ImportError:
        return False
    return True


def scan_file(path: Path | str, *, engine: Engine = "auto", progress: Progress | None = None) -> RawTrace:
    """The columns of the Kineto trace at ``path`` (JSON, gzipped or not, whatever its name).

    Memory is bounded by a chunk and the columns. ``progress`` gets bytes read and bytes in all. Damage inside the file is
    listed in ``damage``. Raises NotATrace where the file is something else, InputError where it cannot be read, and
    MissingExtra where ``engine="c"`` asks for a scanner that was not built.
    """
    path = Path(path)
    notes = Notes()
    collected = scan_chunks(chunks(path, notes, progress), engine)
    trace = assemble(collected, notes)
    emptied = {FLAWS[BROKEN], FLAWS[NO_PH]} & {d.what for d in trace.damage}
    if not trace.events_total and (collected.bare or not collected.arrays or emptied):
        raise NotATrace(f"{path}: {what_is(path)}", REMEDY)
    return trace


def scan_chunks(pieces: Iterable[bytes], engine: Engine = "auto") -> Collected:
    """Run the text through a scanner."""
    if engine == "c" or (engine == "auto" and has_c()):
        try:
            scanner = import_module("dtprof.ingest.kineto._scan").Scanner(arg_keys(), COMM_WORDS)
        except ImportError as error:
            raise MissingExtra(
                "the C scanner was not built", "install a C compiler and run: pip install --force-reinstall dtprof"
            ) from error
        for piece in pieces:
            scanner.feed(piece)
        return collected_from_c(scanner.finish())
    python = PythonScanner()
    for piece in pieces:
        python.feed(piece)
    return python.finish()


def sniff(path: Path | str) -> bool:
    """Whether the content of ``path`` is a Kineto or Chrome trace; reads as little as it takes, a MiB at most."""
    head = b""
    try:
        for piece in chunks(Path(path), Notes()):
            head += piece
            if _EVENTS_KEY.search(head) or _opens_bare(head):
                return True
            if len(head) >= SNIFF_BYTES or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[", b'"'):
                break
    except InputError:
        return False
    return False


def _opens_bare(head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return (
        text[:1] in (b"[", b"{")
        and bool(_EVENT.match(text, 1 + len(text[1:]) - len(text[1:].lstrip())))
        and bool(_PH.search(text[:65536]))
    )


def what_is(path: Path) -> str:
    """One line on what a file holds that is no trace."""
    head = b""
    notes = Notes()
    for piece in chunks(path, notes):
        head += piece
        if len(head) >= SNIFF_BYTES:
            break
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not path.stat().st_size:
        return "the file is empty"
    if not text:
        return "nothing in it can be decompressed" if notes.found else "it holds only white space"
    for magic, kind in _MAGIC:
        if text.startswith(magic):
            return f"not a trace but {kind} (seen at byte 0)"
    if text[:1] not in (b"{", b"["):
        return "not JSON (at byte 0)"
    try:
        value = json.loads(text)
    except ValueError as error:
        place = f" (at byte {error.pos})" if isinstance(error, json.JSONDecodeError) and len(head) < SNIFF_BYTES else ""
        return f"no event can be read in it{place}"
    if isinstance(value, dict):
        keys = ", ".join(list(value)[:5]) or "none"
        where = "traceEvents holds no event" if "traceEvents" in value else f"it has no traceEvents (top-level keys: {keys})"
        return f"JSON, but no trace: {where}"
    return "JSON, but no trace: a list without events"
