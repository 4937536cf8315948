"""Trace files: compressing and checking one, and keeping no more of them than was promised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KEPT_WINDOWS = 8
CAP_BYTES = 4 << 30
_OPERATOR, _MARK = b'"cat": "cpu_op"', b'"name": "ProfilerStep#'


def trace_name(number: int) -> str:
    """Name of the trace of window ``number``."""
    return f"trace-{number:04d}.json.gz" if number else "trace.json.gz"


def compress(raw: Path, target: Path) -> tuple[int, int, int]:
    """Compress a Chrome trace to ``target`` (by renaming), after checking both; returns (bytes, operators, step marks).

    Raises ValueError where the JSON does not end as it began, or where the compressed file does not read back whole.
    """
    from isal import igzip

    open_gz: Any = igzip.open
    size = raw.stat().st_size
    operators = marks = 0
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with raw.open("rb") as source, open_gz(temporary, "wb", compresslevel=1) as sink:
            head, tail = source.read(64).lstrip(), b""
            source.seek(0)
            while block := source.read(1 << 20):
                # what lies across two blocks is counted with the second one
                seen = tail + block
                operators += seen.count(_OPERATOR) - tail.count(_OPERATOR)
                marks += seen.count(_MARK) - tail.count(_MARK)
                tail = seen[-64:]
                sink.write(block)
        if not head.startswith(b"{") or not tail.rstrip().endswith(b"}"):
            raise ValueError(f"{size} bytes exported, but the text is cut off")
        back = 0
        with open_gz(temporary, "rb") as check:
            while block := check.read(1 << 20):
                back += len(block)
        if back != size:
            raise ValueError(f"{back} of {size} bytes read back")
        written = temporary.stat().st_size
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return written, operators, marks


def prune(folder: Path, kept: int, cap_bytes: int) -> list[str]:
    """Delete the oldest traces of later windows until ``kept`` of them and ``cap_bytes`` in all are left; never the newest.

    Returns the names of those that were deleted.
    """
    files = sorted(folder.glob("trace-[0-9]*.json.gz"))
    first = folder / trace_name(0)
    sizes = {f: f.stat().st_size for f in files}
    total = sum(sizes.values()) + (first.stat().st_size if first.exists() else 0)
    gone = []
    while len(files) > 1 and (len(files) > kept or total > cap_bytes):
        oldest = files.pop(0)
        oldest.unlink(missing_ok=True)
        total -= sizes[oldest]
        gone.append(oldest.name)
    return gone
