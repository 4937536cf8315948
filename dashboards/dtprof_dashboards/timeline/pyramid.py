"""What is drawn of a lane at a zoom: long slices as they are, shorter ones summed in buckets of 2^level ns.

A slice is long where it fills a bucket or more, so a window of n buckets holds at most n + 1 of them. Sums are kept per
bucket, paint and name, and are those of the level below, two buckets made one, with the slices that have become short; so
every level is exact. Levels are made when they are first asked for, from the one where a bucket holds some tens of
slices; below it the slices of the window are few and are summed at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof_dashboards.timeline.lanes import PAINTS, Lane

MOST_LEVEL = 60
_CROWD = 32


@dataclass(frozen=True)
class Sums:
    """Short slices by bucket, paint and name, ascending: ns and number of events that start there."""

    bucket: Ints
    paint: NDArray[np.int64]
    name: NDArray[np.int64]
    ns: Ints
    count: Ints


@dataclass(frozen=True)
class Cut:
    """What is drawn of one lane: indices of its long slices, and per bucket that holds short ones their sums.

    ``paint`` is the one with most time in the bucket, ``name`` the one with most time in that paint (code -1: no name);
    ``ns`` is the time of all short slices in the bucket and ``count`` the events that start in it.
    """

    slices: NDArray[np.int64]
    bucket: Ints
    paint: NDArray[np.int64]
    name: NDArray[np.int64]
    ns: Ints
    count: Ints


class Pyramid:
    """The levels of one lane."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._dur = lane.end - lane.start
        span = int(lane.end[-1] - lane.start[0])
        self._base = max(0, (span * _CROWD // len(lane.start)).bit_length())
        self._levels: list[Sums] = []

    def cut(self, level: int, first: int, count: int) -> Cut:
        """What is drawn in the buckets ``first`` to ``first + count - 1`` of that level."""
        begins, stops = first << level, (first + count) << level
        low = int(np.searchsorted(self.lane.end, begins, "left"))
        high = int(np.searchsorted(self.lane.start, stops, "left"))
        inside = np.arange(low, high)
        inside = inside[(self.lane.end[low:high] > begins) | (self.lane.start[low:high] >= begins)]
        long = self._dur[inside] >= 1 << level
        sums = self._at(level) if level >= self._base else self._sum(inside[~long], level)
        low, high = np.searchsorted(sums.bucket, [first, first + count])
        return Cut(inside[long], *_dominant(Sums(*(a[low:high] for a in _columns(sums)))))

    def _at(self, level: int) -> Sums:
        """The sums of a level, made from the one below."""
        while len(self._levels) <= level - self._base:
            now = self._base + len(self._levels)
            if not self._levels:
                self._levels.append(self._sum(np.flatnonzero(self._dur < 1 << now), now))
                continue
            below = self._levels[-1]
            new = self._sum(np.flatnonzero((self._dur >= 1 << now - 1) & (self._dur < 1 << now)), now)
            halved = (below.bucket >> 1, *_columns(below)[1:])
            joined = (np.concatenate(pair) for pair in zip(halved, _columns(new), strict=True))
            self._levels.append(_grouped(*joined))
        return self._levels[level - self._base]

    def _sum(self, rows: NDArray[np.int64], level: int) -> Sums:
        """Slices shorter than a bucket, each in the one or two buckets that it touches."""
        lane = self.lane
        start, end = lane.start[rows], lane.end[rows]
        bucket, last = start >> level, np.maximum(end - 1, start) >> level
        over = np.flatnonzero(last > bucket)
        border = last << level
        ns = np.where(last > bucket, border, end) - start
        return _grouped(
            np.concatenate([bucket, last[over]]),
            np.concatenate([lane.paint[rows], lane.paint[rows[over]]]).astype(np.int64),
            np.concatenate([lane.name[rows], lane.name[rows[over]]]).astype(np.int64),
            np.concatenate([ns, (end - border)[over]]),
            np.concatenate([lane.counts[rows], np.zeros(len(over), bool)]).astype(np.int64),
        )


def _columns(sums: Sums) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    return sums.bucket, sums.paint, sums.name, sums.ns, sums.count


def _grouped(bucket: Ints, paint: Ints, name: Ints, ns: Ints, count: Ints) -> Sums:
    """Equal (bucket, paint, name) made one."""
    if not len(bucket):
        return Sums(bucket, paint, name, ns, count)
    base, names = int(bucket.min()), int(name.max()) + 2
    key = ((bucket - base) * len(PAINTS) + paint) * names + name + 1
    order = np.argsort(key, kind="stable")
    key = key[order]
    at = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    kept = order[at]
    return Sums(bucket[kept], paint[kept], name[kept], np.add.reduceat(ns[order], at), np.add.reduceat(count[order], at))


def _dominant(sums: Sums) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Per bucket: bucket, paint and name with most time (of equals the first), ns, count."""
    if not len(sums.bucket):
        return _columns(sums)
    by_paint = _firsts(sums.bucket, sums.paint)
    of_paint = np.add.reduceat(sums.ns, by_paint)
    lengths = np.diff(np.append(by_paint, len(sums.bucket)))
    order = np.lexsort((-sums.ns, sums.paint, -np.repeat(of_paint, lengths), sums.bucket))
    at = _firsts(sums.bucket)
    lead = order[at]
    ns, count = np.add.reduceat(sums.ns, at), np.add.reduceat(sums.count, at)
    return sums.bucket[lead], sums.paint[lead], sums.name[lead], ns, count


def _firsts(*keys: Ints) -> NDArray[np.int64]:
    """Where a new group of equal keys begins."""
    new = np.zeros(len(keys[0]), bool)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)
