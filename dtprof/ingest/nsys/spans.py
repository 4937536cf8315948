"""Columns of a report's spans, over all of its processes, before they become one trace per process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Source, read
from dtprof.schema import MISSING

# kinds of spans, as the Kineto ingest names them
CATS = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync", "cpu_op", "user_annotation", "overhead",
    "mark",
)  # fmt: skip
# string ids up to this are looked up in an array
_MOST_IDS = 2**26


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
        known = np.where(ids >= 0, ids, -1)
        top = int(known.max(initial=-1))
        if top >= _MOST_IDS:
            self._used.update(np.unique(known[known >= 0]).tolist())
        elif top >= 0:
            if top >= len(self._seen):
                self._seen = np.concatenate((self._seen, np.zeros(top + 1 - len(self._seen), bool)))
            self._seen[known[known >= 0]] = True
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


@dataclass
class Spans:
    """Spans of one table. ``name`` are numbers of ``Names``, ``cat`` codes of CATS; ``end`` is MISSING where not recorded.

    ``thread`` is MISSING on device spans. ``args`` are dense int64 columns with MISSING.
    """

    process: Ints
    start: Ints
    end: Ints
    name: Ints
    cat: NDArray[np.int8]
    thread: Ints
    correlation: Ints
    args: dict[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)


_COLUMNS = ("process", "start", "end", "name", "cat", "thread", "correlation")


def taken(spans: Spans, rows: NDArray[Any]) -> Spans:
    """The rows at these indices, or where this mask is true; the same object where that is all of them."""
    if rows.dtype == bool and rows.all():
        return spans
    columns: dict[str, Any] = {name: getattr(spans, name)[rows] for name in _COLUMNS}
    return Spans(**columns, args={key: column[rows] for key, column in spans.args.items()})


def joined(pieces: Iterable[Spans]) -> Spans | None:
    """All pieces of one table; None where there is none."""
    found = list(pieces)
    if not found:
        return None
    columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in found]) for name in _COLUMNS}
    names = dict.fromkeys(key for p in found for key in p.args)
    args = {key: np.concatenate([p.args.get(key, np.full(len(p), MISSING, np.int64)) for p in found]) for key in names}
    return Spans(**columns, args=args)
