"""Which span encloses which, without a loop over spans."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.schema import MISSING32

Rows: TypeAlias = NDArray[np.int32]


def parents(lane: Rows, ts: Ints, dur: Ints, rows: Rows) -> Rows:
    """Innermost enclosing span of the same lane among ``rows`` (ascending in ts); MISSING32 at top level and elsewhere.

    Strictly ordered: a parent starts before its child (or equally, and is longer, or comes first), so that chains end.
    Spans that merely overlap are not parents of each other.
    """
    parent = np.full(len(ts), MISSING32, np.int32)
    by_lane = rows[np.argsort(lane[rows], kind="stable")]
    borders = np.flatnonzero(np.diff(lane[by_lane])) + 1
    for group in np.split(by_lane, borders):
        if len(group) > 1:
            _nest(group, ts, dur, parent)
    return parent


def _nest(group: Rows, ts: Ints, dur: Ints, parent: Rows) -> None:
    start = ts[group]
    if np.any(start[1:] == start[:-1]):
        group = group[np.lexsort((-dur[group], start))]
    end = start + np.maximum(dur[group], 1)
    depth = np.arange(len(group)) - np.searchsorted(np.sort(end), start, "right")
    by_depth = np.argsort(depth.astype(np.int32), kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    up = np.full(len(group), -1, np.int64)
    for above, here in pairwise(levels):
        up[here] = above[np.maximum(np.searchsorted(above, here) - 1, 0)]
    todo = np.flatnonzero(up >= 0)
    while len(todo):
        loose = (end[todo] > end[up[todo]]) | (up[todo] >= todo)
        todo = todo[loose]
        up[todo] = np.where(up[todo] < todo, up[up[todo]], -1)
        todo = todo[up[todo] >= 0]
    has = up >= 0
    parent[group[has]] = group[up[has]]


def inside(starts: Ints, ends: Ints, points: Ints) -> Rows:
    """Index of the ascending, disjoint interval that holds each point; -1 where none does."""
    if len(starts) == 0:
        return np.full(len(points), -1, np.int32)
    i = np.searchsorted(starts, points, "right") - 1
    held = (i >= 0) & (points < ends[np.maximum(i, 0)])
    return np.where(held, i, -1).astype(np.int32)
