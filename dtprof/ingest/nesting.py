"""Which span encloses which, without a loop over spans."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.schema import MISSING32

Rows: TypeAlias = NDArray[np.int32]


def time_order(ts: Ints, dur: Ints) -> tuple[Ints, Ints]:
    """Rows in ascending start, of equal starts the longer one first, so that a parent precedes its children; and the starts."""
    order = np.argsort(ts, kind="stable")
    start = ts[order]
    tied = np.flatnonzero(start[1:] == start[:-1])
    if len(tied):
        member = np.zeros(len(ts), bool)
        member[tied], member[tied + 1] = True, True
        rows = np.flatnonzero(member)
        order[rows] = order[rows][np.lexsort((-dur[order[rows]], start[rows]))]
    return order, start


def parents(lane: Rows, ts: Ints, dur: Ints, rows: Rows) -> Rows:
    """Innermost enclosing span of the same lane among ``rows`` (ascending in ts); MISSING32 at top level and elsewhere.

    Strictly ordered: a parent starts before its child (or equally, and is longer, or comes first), so that chains end.
    Spans that merely overlap are not parents of each other.
    """
    parent = np.full(len(ts), MISSING32, np.int32)
    lanes = lane[rows]
    if (lanes[1:] != lanes[:-1]).any():
        by_lane = np.argsort(lanes, kind="stable")
        rows, lanes = rows[by_lane], lanes[by_lane]
    for group in np.split(rows, np.flatnonzero(lanes[1:] != lanes[:-1]) + 1):
        if len(group) > 1:
            _nest(group, ts, dur, parent)
    return parent


def _nest(group: Rows, ts: Ints, dur: Ints, parent: Rows) -> None:
    start = ts[group]
    if np.any(start[1:] == start[:-1]):
        group = group[np.lexsort((-dur[group], start))]
    end = np.maximum(dur[group], 1)
    end += start
    holds = np.append(end[:-1] > start[1:], False)
    holders = np.flatnonzero(holds)
    if not len(holders):
        return
    up = np.full(len(group), -1, np.int32)
    up[holders] = _among(holders.astype(np.int32), start[holders], end[holders])
    # all others hold nothing: the last holder before each holds it, or one of those that hold that one
    last = np.maximum.accumulate(np.where(holds, np.arange(len(group), dtype=np.int32), np.int32(-1)))
    held = (end <= end[last]) & (last >= 0)
    np.copyto(up, last, where=held & ~holds)
    todo = np.flatnonzero(~(held | holds) & (last >= 0))
    above = up[last[todo]]
    while len(todo := todo[above >= 0]):
        above = above[above >= 0]
        held = end[todo] <= end[above]
        up[todo[held]] = above[held]
        todo, above = todo[~held], up[above[~held]]
    has = np.flatnonzero(up >= 0)
    parent[group[has]] = group[up[has]]


def _among(rows: Rows, start: Ints, end: Ints) -> Rows:
    """The one of ``rows`` (ascending in start) that holds each of them; -1 where none does."""
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, "right")
    by_depth = np.argsort(depth.astype(np.int32), kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    up = np.full(len(rows), -1, np.int64)
    for above, here in pairwise(levels):
        up[here] = above[np.maximum(np.searchsorted(above, here) - 1, 0)]
    todo = np.flatnonzero(up >= 0)
    while len(todo):
        loose = (end[todo] > end[up[todo]]) | (up[todo] >= todo)
        todo = todo[loose]
        up[todo] = np.where(up[todo] < todo, up[up[todo]], -1)
        todo = todo[up[todo] >= 0]
    return np.where(up >= 0, rows[up], -1).astype(np.int32)


def inside(starts: Ints, ends: Ints, points: Ints) -> Rows:
    """Index of the ascending, disjoint interval that holds each point; -1 where none does."""
    if len(starts) == 0:
        return np.full(len(points), -1, np.int32)
    i = np.searchsorted(starts, points, "right") - 1
    held = (i >= 0) & (points < ends[np.maximum(i, 0)])
    return np.where(held, i, -1).astype(np.int32)
