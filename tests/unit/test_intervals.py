"""Interval algebra against an oracle that knows no algebra: one boolean per nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dtprof import intervals

SPAN = 40
BASE = 1_700_000_000_000_000_000  # ns of a real epoch: a float64 would lose the difference

pairs = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(-3, 12)).map(lambda p: (p[0], min(p[0] + p[1], SPAN))), max_size=12
)


def bitmap(intervals_):
    bits = np.zeros(SPAN, bool)
    for start, end in intervals_:
        if end > start:
            bits[start:end] = True
    return bits


def cover(pairs_):
    starts = np.array([BASE + s for s, _ in pairs_], np.int64)
    ends = np.array([BASE + e for _, e in pairs_], np.int64)
    return intervals.union(starts, ends)


def bits_of(cover_):
    """The bitmap of a cover, after checking that it is one: int64, not empty, disjoint, not touching, ascending."""
    starts, ends = cover_
    assert starts.dtype == ends.dtype == np.int64
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all()
    return bitmap(zip((starts - BASE).tolist(), (ends - BASE).tolist(), strict=True))


def same(cover_, bits):
    assert bits_of(cover_).tolist() == bits.tolist()
    assert intervals.total(cover_) == bits.sum()


@given(pairs)
def test_union(a):
    same(cover(a), bitmap(a))


@given(pairs, pairs, pairs)
def test_join(a, b, c):
    same(intervals.join(cover(a), cover(b), cover(c)), bitmap(a) | bitmap(b) | bitmap(c))


@given(pairs, pairs)
def test_intersect(a, b):
    same(intervals.intersect(cover(a), cover(b)), bitmap(a) & bitmap(b))


@given(pairs, pairs)
def test_subtract(a, b):
    same(intervals.subtract(cover(a), cover(b)), bitmap(a) & ~bitmap(b))


@given(pairs, st.integers(0, SPAN), st.integers(0, SPAN))
def test_clip_and_complement(a, lo, hi):
    lo, hi = min(lo, hi), max(lo, hi)
    window = bitmap([(lo, hi)])
    same(intervals.clip(cover(a), BASE + lo, BASE + hi), bitmap(a) & window)
    same(intervals.complement(cover(a), BASE + lo, BASE + hi), ~bitmap(a) & window)


@given(pairs, st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=8))
def test_measure(a, windows):
    lo = np.array([BASE + x for x, _ in windows], np.int64)
    hi = np.array([BASE + y for _, y in windows], np.int64)
    expected = [int(bitmap(a)[x:y].sum()) for x, y in windows]
    assert intervals.measure(cover(a), lo, hi).tolist() == expected


@given(pairs, pairs)
def test_lengths_add_up(a, b):
    both = intervals.intersect(cover(a), cover(b))
    left, right = intervals.subtract(cover(a), cover(b)), intervals.subtract(cover(b), cover(a))
    whole = intervals.join(cover(a), cover(b))
    assert sum(map(intervals.total, (both, left, right))) == intervals.total(whole)


def test_nothing():
    nothing = intervals.empty()
    assert intervals.total(nothing) == 0
    same(intervals.complement(nothing, BASE, BASE + SPAN), np.ones(SPAN, bool))
    assert intervals.measure(nothing, np.array([BASE]), np.array([BASE + 1])).tolist() == [0]


def test_touching_intervals_become_one():
    starts, ends = cover([(0, 5), (5, 9)])
    assert (starts - BASE).tolist() == [0]
    assert (ends - BASE).tolist() == [9]
