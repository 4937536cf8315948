"""Columns of a report's spans, process by process and piece by piece, before they become one trace per process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.distinct import distinct_rows
from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Source, read
from dtprof.schema import MISSING

Array: TypeAlias = NDArray[Any]

# kinds of spans, as the Kineto ingest names them
CATS = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync", "cpu_op", "user_annotation", "overhead",
    "mark",
)  # fmt: skip
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# string ids up to this are looked up in an array
_MOST_IDS = 2**26
_HOST = -1
# rows of one block of columns
BLOCK = 2**22


def process_of(ids: Ints) -> Ints:
    """Hardware, VM and process of a global id (hw << 56 | vm << 48 | pid << 24 | tid): the key that tells processes apart."""
    return np.where(ids == MISSING, MISSING, ids >> 24)


def pid_of(process: int) -> int:
    """The process id in such a key."""
    return process & 0xFFFFFF


def thread_of(ids: Ints) -> Ints:
    """The thread id in a global id."""
    return np.where(ids == MISSING, MISSING, ids & 0xFFFFFF)


@dataclass
class Names:
    """Names as small numbers: string ids of the report as they are, texts of our own as -2, -3, …; -1 is none."""

    texts: list[str] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)
    _used: set[int] = field(default_factory=set)
    _seen: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def of_text(self, text: str) -> int:
        """Number of a text."""
        code = self._index.get(text)
        if code is None:
            code = self._index[text] = -2 - len(self.texts)
            self.texts.append(text)
        return code

    def of_ids(self, ids: Ints) -> Ints:
        """Numbers of string ids, which are noted as used."""
        every = int(ids.min(initial=0)) >= 0
        known = ids if every else np.where(ids >= 0, ids, -1)
        top = int(known.max(initial=-1))
        if top >= _MOST_IDS:
            self._used.update(np.unique(known[known >= 0]).tolist())
        elif top >= 0:
            if top >= len(self._seen):
                self._seen = np.concatenate((self._seen, np.zeros(top + 1 - len(self._seen), bool)))
            self._seen[known if every else known[known >= 0]] = True
        return known

    def resolve(self, source: Source) -> tuple[Ints, list[str]]:
        """(sorted numbers, their texts); a string id that the report does not hold is shown as itself."""
        wanted = np.array(sorted({*np.flatnonzero(self._seen).tolist(), *self._used}), np.int64)
        found: dict[int, str] = {}
        for batch in read(source, "StringIds", id="int", value="text"):
            here = np.flatnonzero(np.isin(batch.ints("id"), wanted))
            ids, values = batch.ints("id")[here].tolist(), batch["value"]
            found.update((i, values[row]) for i, row in zip(ids, here.tolist(), strict=True) if values[row] is not None)
        numbers = np.concatenate((np.arange(-1 - len(self.texts), -1), wanted)).astype(np.int64)
        return numbers, [*reversed(self.texts), *(found.get(i, f"string {i}") for i in wanted.tolist())]


class Place(NamedTuple):
    """A thread of a process (``device`` -1), or a stream; ``wait`` marks places of synchronisations."""

    process: int
    device: int = _HOST
    context: int = MISSING
    stream: int = MISSING
    thread: int = MISSING
    wait: bool = False

    @property
    def on_host(self) -> bool:
        """Is it a thread?"""
        return self.device == _HOST


@dataclass
class Places:
    """Where spans lie, as small numbers: places of ``known``."""

    known: list[Place] = field(default_factory=list)
    _index: dict[Place, int] = field(default_factory=dict)

    def threads(self, ids: Ints) -> NDArray[np.int32]:
        """Numbers of the threads with these global ids."""
        first, codes = distinct_rows(ids[None])
        rows = zip(process_of(ids[first]).tolist(), thread_of(ids[first]).tolist(), strict=True)
        return self._numbers([Place(process, thread=thread) for process, thread in rows])[codes]

    def streams(self, columns: Ints, wait: bool) -> NDArray[np.int32]:
        """Numbers of streams: rows of global process id, device (0 where none is stated that can be), context and stream."""
        first, codes = distinct_rows(columns)
        rows = columns[:, first]
        rows[0], rows[1] = process_of(rows[0]), np.where((rows[1] >= 0) & (rows[1] < 2**31), rows[1], 0)
        return self._numbers([Place(p, d, c, s, wait=wait) for p, d, c, s in rows.T.tolist()])[codes]

    def _numbers(self, places: list[Place]) -> NDArray[np.int32]:
        for place in places:
            if place not in self._index:
                self._index[place] = len(self.known)
                self.known.append(place)
        return np.array([self._index[place] for place in places], np.int32)


@dataclass
class Spans:
    """Spans of one process from a table of this ``kind`` (a code's name in CATS, or ``nvtx``).

    ``columns``: start, dur (MISSING where not recorded), name (numbers of ``Names``), cat (codes of CATS), place (numbers
    of ``Places``), correlation. ``args`` are integers with MISSING. All are kept in 32 bits where they fit. Only the first
    ``count`` rows are used.
    """

    kind: str
    count: int
    columns: dict[str, Array]
    args: dict[str, Array]

    def __len__(self) -> int:
        return self.count

    def takes(self, kind: str, columns: dict[str, Array], args: dict[str, Array]) -> bool:
        """Is there room, and for rows like these?"""
        if self.kind != kind or self.count == len(self.columns["start"]):
            return False
        pairs = ((self.columns, columns), (self.args, args))
        return all({n: v.dtype for n, v in own.items()} == {n: v.dtype for n, v in given.items()} for own, given in pairs)

    def add(self, columns: dict[str, Array], args: dict[str, Array], begin: int) -> int:
        """Add the rows from ``begin`` on that there is room for; where the rest begins."""
        end = min(begin + len(self.columns["start"]) - self.count, len(columns["start"]))
        room = slice(self.count, self.count + end - begin)
        for own, given in ((self.columns, columns), (self.args, args)):
            for name, values in given.items():
                own[name][room] = values[begin:end]
        self.count = room.stop
        return end


@dataclass
class Gathering:
    """Spans by process, as they are read. ``last_ns`` is the end of the last one, ns since the session's start."""

    names: Names = field(default_factory=Names)
    places: Places = field(default_factory=Places)
    spans: dict[int, list[Spans]] = field(default_factory=dict)
    last_ns: int = 0

    def add(self, kind: str, columns: dict[str, Array], args: dict[str, Array]) -> None:
        """Add rows, with ``end`` in place of a duration; arguments without any value are left out."""
        start, end = columns["start"], columns.pop("end")
        if not len(start):
            return
        self.last_ns = max(self.last_ns, int(start.max()), int(end.max()))
        columns["dur"] = np.where((start == MISSING) | (end == MISSING), MISSING, end - start)
        columns = {key: values if key == "start" else _narrow(values) for key, values in columns.items()}
        args = {key: _narrow(values) for key, values in args.items() if values.max() != MISSING}
        process = np.array([p.process for p in self.places.known], np.int64)[columns["place"]]
        if (process == process[0]).all():
            self._add(int(process[0]), kind, columns, args)
            return
        for key in np.unique(process).tolist():
            mine = process == key
            self._add(key, kind, {n: v[mine] for n, v in columns.items()}, {n: v[mine] for n, v in args.items()})

    def _add(self, process: int, kind: str, columns: dict[str, Array], args: dict[str, Array]) -> None:
        """The first rows of a kind as they are; others in large blocks, whose memory goes back to the system in the end."""
        at, count = 0, len(columns["start"])
        pieces = self.spans.setdefault(process, [])
        if not any(piece.kind == kind for piece in pieces):
            pieces.append(Spans(kind, count, columns, args))
            return
        while at < count:
            if not pieces[-1].takes(kind, columns, args):
                pieces.append(Spans(kind, 0, *({n: np.empty(BLOCK, v.dtype) for n, v in d.items()} for d in (columns, args))))
            at = pieces[-1].add(columns, args, at)

    def of_kind(self, *kinds: str) -> Iterator[tuple[int, Spans]]:
        """(process, piece) of these kinds of tables."""
        for process, pieces in self.spans.items():
            yield from ((process, piece) for piece in pieces if piece.kind in kinds)


def _narrow(values: Array) -> Array:
    fits = values.itemsize > 4 and int(values.min()) >= -(2**31) and int(values.max()) < 2**31
    return values.astype(np.int32) if fits else values


def where(spans: Spans, mask: NDArray[np.bool_]) -> Spans:
    """The spans for which ``mask`` is true; the same object where that is all of them."""
    if mask.all():
        return spans
    columns, args = ({n: v[: len(spans)][mask] for n, v in d.items()} for d in (spans.columns, spans.args))
    return Spans(spans.kind, int(mask.sum()), columns, args)


def taken(pieces: list[Spans], column: str, kind: Any, row: NDArray[np.int32] | None = None) -> Array:
    """One column of all pieces, each value at its ``row`` (default: one piece after the other); they let go of it."""
    out = np.empty(sum(map(len, pieces)), kind)
    at = 0
    for piece in pieces:
        here = slice(at, at + len(piece))
        out[here if row is None else row[here]] = piece.columns.pop(column)[: len(piece)]
        at += len(piece)
    return out


def argument(pieces: list[Spans], name: str) -> Ints:
    """An argument of all pieces, MISSING where a piece has none."""
    found = [piece.args[name][: len(piece)] if name in piece.args else np.full(len(piece), MISSING) for piece in pieces]
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)
