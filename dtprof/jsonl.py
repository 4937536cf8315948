"""JSON lines, written so that a killed process loses about a second and a long one fills no disk.

Rows wait in memory for at most ``flush_s`` (or 64 of them) and are then made and encoded together and appended with one
write: beside a training step all code finds the caches cold, so what need not be done at once is done by the dozen.
A file that reaches half of its cap becomes ``NAME.old.jsonl`` and a new one is begun: a ring of two pieces that keeps the
newest lines. Reading takes both pieces, skips what is torn and says how many lines that were.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

# what int64 and int32 columns hold, with room for sums of two: the kinds of a line's fields
Int64 = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
Int32 = Annotated[int, msgspec.Meta(gt=-(2**31), lt=2**31)]

CAP_BYTES = 64 << 20
MOST_WAITING = 64


class Appender:
    """Appends rows to one file; OSError (a full disk) is the caller's to handle. A forked child never writes.

    ``make``, where given, turns what was added into a row, in order, when it is written.
    """

    def __init__(
        self, path: Path, *, cap_bytes: int = CAP_BYTES, flush_s: float = 1.0, make: Callable[[Any], Any] | None = None
    ) -> None:
        self.path, self.cap_bytes, self.flush_s = path, cap_bytes, flush_s
        self.rotations = 0
        self._make = make
        self._pid = os.getpid()
        self._rows: list[Any] = []
        self._flushed_at = time.monotonic()
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, row: Any) -> None:
        """Queue one row (a mapping or a msgspec.Struct, not changed afterwards), and write the queue when it is due."""
        if self.queue(row):
            self.flush()

    def queue(self, row: Any) -> bool:
        """Queue one row and do no more, which cannot fail: is it time to ``flush``?"""
        self._rows.append(row)
        return len(self._rows) >= MOST_WAITING or time.monotonic() - self._flushed_at >= self.flush_s

    def flush(self) -> None:
        """Write what waits; a row that cannot be encoded is left out, and the error raised when the others are written."""
        rows, self._rows = self._rows, []
        self._flushed_at = time.monotonic()
        if not rows or self._fd < 0 or os.getpid() != self._pid:
            return
        lines, refused = _encode(rows if self._make is None else map(self._make, rows))
        if lines:
            self._write(memoryview(b"\n".join(lines) + b"\n"))
        if refused is not None:
            raise refused

    def _write(self, data: memoryview) -> None:
        if self._size and self._size + len(data) > self.cap_bytes // 2:
            self._rotate()
        while data:
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _rotate(self) -> None:
        os.close(self._fd)
        self._fd = -1
        os.replace(self.path, older(self.path))
        self._fd, self._size = self._open(), 0
        self.rotations += 1

    def close(self) -> None:
        """Write what waits and close."""
        try:
            self.flush()
        finally:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


def _encode(rows: Iterable[Any]) -> tuple[list[bytes], Exception | None]:
    lines: list[bytes] = []
    refused: Exception | None = None
    for row in rows:
        try:
            lines.append(msgspec.json.encode(row))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            refused = error
    return lines, refused


def older(path: Path) -> Path:
    """Where the older half of a ring lies."""
    return path.with_name(f"{path.stem}.old{path.suffix}")


def read_lines(path: Path, kind: Any = dict[str, Any]) -> tuple[list[Any], int]:
    """Rows of a file and of its older half, in order, and how many lines are none (0 where no file exists).

    ``kind`` is what a line must be: a dict, or a msgspec.Struct (or a union of tagged ones), whose fields are checked.
    """
    decoder = msgspec.json.Decoder(kind)
    rows: list[Any] = []
    bad = 0
    for piece in (older(path), path):
        if not piece.exists():
            continue
        for line in piece.read_bytes().split(b"\n"):
            if not line.strip():
                continue
            try:
                rows.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                bad += 1
    return rows, bad
