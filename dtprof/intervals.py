"""Interval algebra on int64 nanoseconds.

A *cover* is a pair of arrays ``(starts, ends)`` of disjoint, non-touching, ascending half-open intervals.
Everything runs on sorted arrays with ``maximum.accumulate`` and ``searchsorted``; nothing sorts twice.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Cover: TypeAlias = tuple[Ints, Ints]


def empty() -> Cover:
    """The cover of nothing."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


def union(starts: Ints, ends: Ints) -> Cover:
    """The cover of any intervals, overlapping and unsorted ones included; empty ones (end <= start) vanish."""
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return empty()
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.empty(len(starts), bool)
    opens[0] = True
    np.greater(starts[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return starts[first], reach[last]


def join(*covers: Cover) -> Cover:
    """The union of several covers."""
    return union(np.concatenate([c[0] for c in covers]), np.concatenate([c[1] for c in covers]))


def total(cover: Cover) -> int:
    """Length of a cover in ns."""
    return int((cover[1] - cover[0]).sum())


def clip(cover: Cover, lo: int, hi: int) -> Cover:
    """The part of a cover inside [lo, hi)."""
    if hi <= lo:
        return empty()
    inside = slice(int(np.searchsorted(cover[1], lo, "right")), int(np.searchsorted(cover[0], hi, "left")))
    return np.maximum(cover[0][inside], lo), np.minimum(cover[1][inside], hi)


def complement(cover: Cover, lo: int, hi: int) -> Cover:
    """What [lo, hi) holds beside the cover."""
    starts, ends = clip(cover, lo, hi)
    gaps = np.concatenate([[lo], ends]).astype(np.int64), np.concatenate([starts, [hi]]).astype(np.int64)
    keep = gaps[1] > gaps[0]
    return gaps[0][keep], gaps[1][keep]


def intersect(a: Cover, b: Cover) -> Cover:
    """What both covers hold."""
    if len(a[0]) == 0 or len(b[0]) == 0:
        return empty()
    lo = np.searchsorted(b[1], a[0], "right")
    hi = np.searchsorted(b[0], a[1], "left")
    count = np.maximum(hi - lo, 0)
    mine = np.repeat(np.arange(len(a[0])), count)
    offset = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
    theirs = np.repeat(lo, count) + offset
    return np.maximum(a[0][mine], b[0][theirs]), np.minimum(a[1][mine], b[1][theirs])


def subtract(a: Cover, b: Cover) -> Cover:
    """What cover ``a`` holds and ``b`` does not."""
    if len(a[0]) == 0 or len(b[0]) == 0:
        return a
    lo, hi = int(min(a[0][0], b[0][0])), int(max(a[1][-1], b[1][-1]))
    return intersect(a, complement(b, lo, hi))


def measure(cover: Cover, lo: Ints, hi: Ints) -> Ints:
    """Length of the cover inside each window [lo[i], hi[i]), in ns; windows may overlap."""
    starts, ends = cover
    if len(starts) == 0:
        return np.zeros(len(lo), np.int64)
    before = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)

    def up_to(t: Ints) -> Ints:
        i = np.searchsorted(starts, t, "right")
        inside = np.minimum(t, ends[np.maximum(i - 1, 0)]) - starts[np.maximum(i - 1, 0)]
        return np.where(i > 0, before[np.maximum(i - 1, 0)] + inside, 0)

    inside: Ints = np.maximum(up_to(np.asarray(hi, np.int64)) - up_to(np.asarray(lo, np.int64)), 0)
    return inside
