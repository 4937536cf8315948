"""Rows of an SQLite file as numpy columns, read from its pages: some ten times faster than through Python's sqlite3.

The layout is SQLite's documented file format ("Database File Format", sections 1.3 to 2.1): a table is a B-tree whose
leaf pages hold cells; a cell is a payload size, a row id, a header with one type per column, and the values. Cells whose
header is the same have their values at the same places, so that each such group is decoded by one gather per column.
Nothing is locked and nothing is written. Pages that a cut file lacks are counted, and the others are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.nsys import cells
from dtprof.ingest.nsys.cells import Bytes, Ints, Kind

MAGIC = b"SQLite format 3\0"
_INTERIOR, _LEAF = 5, 13
# leaf pages decoded at once: more no longer fit the processor's caches
_BATCH_BYTES = 2 * 2**20
_ENCODINGS = {0: "utf-8", 1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}


class NotSqlite(Exception):  # noqa: N818
    """The file is no SQLite database, or not one whose pages can be read; says why."""


@dataclass(frozen=True)
class Stored:
    """One table as it lies in the file: number of its root page, its columns in order, and the one that is the row id."""

    root: int
    columns: tuple[str, ...]
    key: str | None = None


@dataclass
class PageFile:
    """An SQLite file; ``lost`` counts pages that are missing or are no pages of the table asked for."""

    path: Path
    page: int = 0
    usable: int = 0
    count: int = 0
    stated: int = 0
    encoding: str = "utf-8"
    lost: int = 0
    _file: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        self._file = os.open(self.path, os.O_RDONLY)
        head = os.pread(self._file, 100, 0)
        size = os.fstat(self._file).st_size
        if not head.startswith(MAGIC) or len(head) < 100:
            raise NotSqlite("not an SQLite database")
        (page,) = struct.unpack_from(">H", head, 16)
        self.page = 65536 if page == 1 else page
        if self.page < 512 or self.page & (self.page - 1):
            raise NotSqlite(f"its header states pages of {self.page} bytes")
        self.usable = self.page - head[20]
        self.count = size // self.page
        (self.stated,) = struct.unpack_from(">I", head, 28)
        self.encoding = _ENCODINGS.get(struct.unpack_from(">I", head, 56)[0], "utf-8")

    def __enter__(self) -> PageFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def batches(self, table: Stored, kinds: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
        """The rows in order of row id, a few ten thousand at a time; each column of ``kinds`` that the table has.

        Kinds: "int" gives int64 (MISSING for what is no number), "float" float64 (NaN), "text" a list of str or None,
        "blob" a list of bytes or None.
        """
        wanted = {name: table.columns.index(name) for name in kinds if name in table.columns}
        for numbers in self._leaf_batches(table.root):
            buffer = self._read(numbers)
            ids = table.key in wanted and kinds[str(table.key)] == "int"
            starts, sizes, rowids = self._cells(buffer, len(numbers), 100 if table.root == 1 and 1 in numbers else 0, ids)
            # records that go on elsewhere may be lost
            column = cells.unset if self._fits(sizes).all() else cells.empty
            out = {name: column(kinds[name], len(starts)) for name in wanted}
            for part, rows, at in self._payloads(buffer, starts, sizes):
                cells.decode(part, at, rows, wanted, kinds, out, self.encoding)
            if ids:
                out[str(table.key)] = rowids
            if len(starts):
                yield out

    def _leaf_batches(self, root: int) -> Iterator[Sequence[int]]:
        level: list[int] = [root]
        seen = {root}
        while _INTERIOR in {self._type(n) for n in level[:8]}:
            below = [child for number in level for child in self._children(number)]
            level = [n for n in dict.fromkeys(below) if n not in seen]
            self.lost += len(below) - len(level)
            seen.update(level)
        step = max(1, _BATCH_BYTES // self.page)
        for i in range(0, len(level), step):
            there = [n for n in level[i : i + step] if 1 <= n <= self.count]
            self.lost += len(level[i : i + step]) - len(there)
            if there:
                yield there

    def _type(self, number: int) -> int | None:
        if not 1 <= number <= self.count:
            return None
        return os.pread(self._file, 1, (number - 1) * self.page + (100 if number == 1 else 0))[0]

    def _children(self, number: int) -> list[int]:
        """Pages below an interior page, in order; an empty list where it is none."""
        skip = 100 if number == 1 else 0
        data = os.pread(self._file, self.page, (number - 1) * self.page) if 1 <= number <= self.count else b""
        if len(data) < self.page or data[skip] != _INTERIOR:
            self.lost += 1
            return []
        (count,) = struct.unpack_from(">H", data, skip + 3)
        if skip + 12 + 2 * count > self.page:
            self.lost += 1
            return []
        pointers = np.frombuffer(data, ">u2", count, skip + 12)
        children = [struct.unpack_from(">I", data, p)[0] for p in pointers.tolist() if p + 4 <= self.page]
        return [*children, struct.unpack_from(">I", data, skip + 8)[0]]

    def _read(self, numbers: Sequence[int]) -> Bytes:
        """These pages one after the other, with eight spare bytes at either end."""
        buffer = np.empty(len(numbers) * self.page + 16, np.uint8)
        buffer[:8], buffer[-8:] = 0, 0
        array = np.asarray(numbers, np.int64)
        for run in np.split(np.arange(len(array)), np.flatnonzero(np.diff(array) != 1) + 1):
            first, size = 8 + int(run[0]) * self.page, len(run) * self.page
            got = os.preadv(self._file, [buffer[first : first + size].data], int(array[run[0]] - 1) * self.page)
            buffer[first + got : first + size] = 0
        return buffer

    def _cells(self, buffer: Bytes, pages: int, skip: int, ids: bool) -> tuple[Ints, Ints, Ints]:
        """Where the payload of each cell begins, its size, and (where asked for) its row id."""
        base = 8 + np.arange(pages, dtype=np.int64) * self.page
        head = base.copy()
        head[0] += skip
        counts = cells.big16(buffer, head + 3)
        good = (buffer[head] == _LEAF) & (head - base + 8 + 2 * counts <= self.page)
        self.lost += int((~good).sum())
        base, head, counts = base[good], head[good], counts[good]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        pointers = cells.big16(buffer, np.repeat(head + 8, counts) + 2 * within)
        at = np.repeat(base, counts) + np.minimum(pointers, self.page - 1)
        sizes, at = cells.varint(buffer, at)
        if ids:
            rowids, at = cells.varint(buffer, at)
            return at, sizes, rowids
        return cells.past_varint(buffer, at), sizes, sizes

    def _payloads(self, buffer: Bytes, starts: Ints, sizes: Ints) -> Iterator[tuple[Bytes, Ints, Ints]]:
        """(buffer, rows, where the record of each begins): those that lie in their page, then those that go on elsewhere."""
        fits = self._fits(sizes)
        rows = np.flatnonzero(fits)
        yield buffer, rows, starts[rows]
        longer = np.flatnonzero(~fits)
        if len(longer):
            texts = [self._whole(buffer, int(starts[r]), int(sizes[r])) for r in longer.tolist()]
            kept = [i for i, text in enumerate(texts) if text is not None]
            whole = [t for t in texts if t is not None]
            joined = np.frombuffer(b"\0" * 8 + b"".join(whole) + b"\0" * 8, np.uint8)
            begin = np.concatenate(([0], np.cumsum([len(t) for t in whole])[:-1])).astype(np.int64) + 8 if whole else starts[:0]
            yield joined, longer[kept], begin

    def _fits(self, sizes: Ints) -> NDArray[np.bool_]:
        """Which records lie in their page alone."""
        return np.asarray(sizes <= self.usable - 35)

    def _whole(self, buffer: Bytes, start: int, size: int) -> bytes | None:
        """A record that goes on in overflow pages; None where its chain breaks off."""
        if size > self.count * self.page:
            self.lost += 1
            return None
        least = (self.usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (self.usable - 4)
        local = local if local <= self.usable - 35 else least
        pieces, left = [buffer[start : start + local].tobytes()], size - local
        following = int.from_bytes(buffer[start + local : start + local + 4].tobytes(), "big")
        while left > 0:
            if not 1 <= following <= self.count or len(pieces) > self.count:
                self.lost += 1
                return None
            data = os.pread(self._file, self.usable, (following - 1) * self.page)
            pieces.append(data[4 : 4 + left])
            left -= len(data) - 4
            following = int.from_bytes(data[:4], "big")
        return b"".join(pieces)


def whole(batches: Iterable[Mapping[str, Any]], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """All batches as one; columns of ``kinds`` that no batch has are left out."""
    pieces = list(batches)
    out: dict[str, Any] = {}
    for name, kind in kinds.items():
        found = [p[name] for p in pieces if name in p]
        if found:
            joined: NDArray[Any] | list[Any] = (
                [v for f in found for v in f] if kind in ("text", "blob") else np.concatenate(found)
            )
            out[name] = joined
    return out
