"""Training steps from the ranges that people and frameworks give their iterations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto.events import Events
from dtprof.ingest.kineto.marks import Steps
from dtprof.ingest.kineto.spans import Rows, is_kind
from dtprof.ranges import parse_range

# best first: the profiler's and our own, numbered iterations, training steps by name (Lightning's last)
_FAMILIES = (
    re.compile(r"^ProfilerStep#(?P<number>\d+)$"),
    re.compile(r"^step#step=(?P<number>\d+)$"),
    re.compile(
        r"^(?:train(?:ing)?[ _-]?)?(?:global[ _-]?)?(?:step|iter(?:ation)?)[ _:#=-]*\[?(?P<number>\d+)\]?(?:/\d+)?$", re.I
    ),
    re.compile(r"^train(?:ing)?[ _-]?(?:step|iter(?:ation)?)$|^(?:training[ _-]?)?iteration$|^train_one_(?:step|batch)$", re.I),
    re.compile(r"^(?:\[pl\])?(?:\[profile\])?(?:\[TrainingEpochLoop\]\.)?run_training_batch$"),
    re.compile(r"^(?:step|iter|batch)(?:[ _:#=-]*(?P<number>\d+))?$", re.I),
)
# a first or last step shorter than this share of the median was cut by the capture
_STUB_SHARE = 0.1


class Named(NamedTuple):
    """What a name says: which family of step names it is of (-1: none), and its number (-1: none)."""

    family: int
    number: int


def named(text: str) -> Named:
    """Is this the name of a step?"""
    for family, pattern in enumerate(_FAMILIES):
        found = pattern.match(text)
        if found:
            number = found.groupdict().get("number")
            return Named(family, int(number) if number is not None and len(number) < 10 else -1)
    base, tags = parse_range(text)
    if isinstance(tags.get("step"), int) and named(base).family >= 0:
        return Named(1, int(tags["step"]))
    return Named(-1, -1)


def finder(library: NDArray[np.bool_], unclosed: NDArray[np.int64]) -> Callable[[Events], Steps]:
    """Finds the steps of a process; rows of the trace that a library made are none, unclosed ones are incomplete."""

    def find(events: Events) -> Steps:
        names = [named(text) for text in events.name.values]
        family = np.array([n.family for n in names] + [-1], np.int64)
        number = np.array([n.number for n in names] + [-1], np.int64)
        usable = np.flatnonzero(is_kind(events.kind, "range", "cpu_op") & ~events.on_device)
        usable = usable[~library[events.order[usable]]]
        for wanted in range(len(_FAMILIES)):
            rows = usable[family[events.name.codes[usable]] == wanted]
            if len(rows):
                rows = _apart(events, rows)
                return _steps(events, rows, number[events.name.codes[rows]], unclosed)
        return Steps(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool))

    return find


def _apart(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges of the thread that has most of them (the longer ones in a tie), without those that begin inside another."""
    lanes, counts = np.unique(events.lane[rows], return_counts=True)
    spent = [int(events.dur[rows[events.lane[rows] == lane]].sum()) for lane in lanes.tolist()]
    best = max(zip(counts.tolist(), spent, lanes.tolist(), strict=True))[2]
    mine = rows[events.lane[rows] == best]
    kept, reach = [], -(2**62)
    for row in mine.tolist():
        if int(events.ts[row]) >= reach:
            kept.append(row)
            reach = int(events.ts[row] + events.dur[row])
    return np.array(kept, np.int64)


def _steps(events: Events, rows: NDArray[np.int64], numbers: NDArray[np.int64], unclosed: NDArray[np.int64]) -> Steps:
    start, dur = events.ts[rows], events.dur[rows]
    if (numbers < 0).any() or len(np.unique(numbers)) < len(numbers):
        numbers = np.arange(len(rows))
    complete = ~np.isin(events.order[rows], unclosed)
    if len(rows) > 2:
        least = _STUB_SHARE * float(np.median(dur[1:-1]))
        complete &= (dur >= least) | ((np.arange(len(rows)) > 0) & (np.arange(len(rows)) < len(rows) - 1))
    found: Rows = rows.astype(np.int32)
    return Steps(numbers.astype(np.int32), start, start + dur, complete, found)
