"""What is drawn of a lane against a count by hand: no time and no event is lost, and the name shown has most time."""

from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof_dashboards.timeline.lanes import PAINTS, Lane
from dtprof_dashboards.timeline.pyramid import Pyramid


def lane_of(rng, count, pattern):
    """A lane of slices that do not overlap; among them some without length, and second halves that do not count."""
    if pattern == "dense":
        gap, dur = rng.integers(0, 3, count), rng.integers(0, 40, count)
    elif pattern == "bursts":
        gap = np.where(rng.random(count) < 0.02, rng.integers(10**5, 10**7, count), rng.integers(0, 50, count))
        dur = rng.integers(0, 300, count)
    else:
        gap, dur = (10 ** rng.uniform(0, 5, count)).astype(np.int64), (10 ** rng.uniform(0, 6, count)).astype(np.int64)
    start = np.cumsum(gap + np.concatenate([[0], dur[:-1]])).astype(np.int64)
    return Lane(
        0, 0, start, start + dur, rng.integers(0, len(PAINTS), count).astype(np.int8),
        rng.integers(-1, 6, count).astype(np.int32), np.arange(count, dtype=np.int32), rng.random(count) < 0.9,
    )  # fmt: skip


def by_hand(lane, level, first, count):
    """(long slices, {bucket: {(paint, name): ns}}, {bucket: events}) of a window."""
    width = 1 << level
    begins, stops = first * width, (first + count) * width
    long, sums, starts = [], defaultdict(lambda: defaultdict(int)), defaultdict(int)
    columns = zip(
        lane.start.tolist(), lane.end.tolist(), lane.paint.tolist(), lane.name.tolist(), lane.counts.tolist(), strict=True
    )
    for i, (start, end, paint, name, counts) in enumerate(columns):
        if not (start < stops and (end > begins or start >= begins)):
            continue
        if end - start >= width:
            long.append(i)
            continue
        for bucket in {start // width, max(end - 1, start) // width}:
            if first <= bucket < first + count:
                sums[bucket][paint, name] += max(0, min(end, (bucket + 1) * width) - max(start, bucket * width))
        if first <= start // width < first + count:
            starts[start // width] += counts
    return long, sums, starts


@pytest.mark.parametrize("pattern", ["dense", "bursts", "wide"])
@pytest.mark.parametrize("seed", range(4))
def test_every_level_against_a_count_by_hand(pattern, seed):
    rng = np.random.default_rng([seed, len(pattern)])
    lane = lane_of(rng, 600, pattern)
    pyramid = Pyramid(lane)
    top = int(lane.end[-1]).bit_length() + 1
    for level in rng.permutation(np.arange(0, top + 1)).tolist():
        at = int(rng.integers(0, int(lane.end[-1]) + 1)) >> level
        for first, count in ((max(0, at - 40), 90), (0, min((int(lane.end[-1]) >> level) + 1, 5000))):
            cut = pyramid.cut(level, first, count)
            long, sums, starts = by_hand(lane, level, first, count)
            assert cut.slices.tolist() == long
            assert cut.bucket.tolist() == sorted(sums)
            assert cut.ns.tolist() == [sum(sums[b].values()) for b in sorted(sums)]
            assert cut.count.tolist() == [starts[b] for b in sorted(sums)]
            for bucket, paint, name in zip(cut.bucket.tolist(), cut.paint.tolist(), cut.name.tolist(), strict=True):
                of_paint = defaultdict(int)
                for (p, _), ns in sums[bucket].items():
                    of_paint[p] += ns
                assert of_paint[paint] == max(of_paint.values())
                assert sums[bucket][paint, name] == max(ns for (p, _), ns in sums[bucket].items() if p == paint)


@pytest.mark.parametrize("level", [0, 3, 8, 14, 22])
def test_time_of_every_bucket_is_that_of_the_slices(level):
    lane = lane_of(np.random.default_rng(7), 3000, "wide")
    last = (int(lane.end[-1]) - 1) >> level
    first = max(0, last // 2 - 500)
    cut = Pyramid(lane).cut(level, first, 1000)
    edges = (np.arange(first, first + 1001, dtype=np.int64)) << level
    busy = np.zeros(1000, np.int64)
    busy[cut.bucket - first] = cut.ns
    for i in cut.slices.tolist():
        busy += np.maximum(0, np.minimum(edges[1:], lane.end[i]) - np.maximum(edges[:-1], lane.start[i]))
    # time up to an instant, interpolated: the slices do not overlap
    before = np.concatenate([[0], np.cumsum(lane.end - lane.start)])
    at = np.searchsorted(lane.start, edges, "right")
    done = before[at] - np.where(at > 0, np.maximum(0, lane.end[at - 1] - edges), 0)
    assert busy.tolist() == np.diff(done).tolist()


def test_tiles_side_by_side_count_every_event_once():
    lane = lane_of(np.random.default_rng(3), 5000, "bursts")
    pyramid = Pyramid(lane)
    for level in (0, 4, 9, 13, 20):
        seen, counted = set(), 0
        for index in range(((int(lane.end[-1]) >> level) // 1024) + 1):
            cut = pyramid.cut(level, index * 1024, 1024)
            seen |= set(cut.slices[lane.counts[cut.slices]].tolist())
            counted += int(cut.count.sum())
            assert len(cut.slices) <= 1025
            if level == 0 and index > 40:
                break
        else:
            assert len(seen) + counted == int(lane.counts.sum())


def test_one_slice_without_length():
    lane = Lane(
        0,
        0,
        np.array([5]),
        np.array([5]),
        np.zeros(1, np.int8),
        np.full(1, -1, np.int32),
        np.zeros(1, np.int32),
        np.ones(1, bool),
    )
    for level in (0, 1, 40):
        cut = Pyramid(lane).cut(level, 0, 1024)
        assert (cut.slices.tolist(), cut.bucket.tolist(), cut.ns.tolist(), cut.count.tolist()) == ([], [5 >> level], [0], [1])
