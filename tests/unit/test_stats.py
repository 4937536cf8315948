"""Exact paired statistics against brute force and published tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dtprof.stats import bounds, depth, location, walsh


def test_walsh_averages_are_all_pairs():
    d = [3.0, 1.0, 2.0]
    pairs = sorted((a + b) / 2 for i, a in enumerate(d) for b in d[i:])
    assert walsh(np.array(d)).tolist() == pairs
    assert location(np.array(d)) == 2.0


@pytest.mark.parametrize("n", range(1, 11))
@pytest.mark.parametrize("alpha", [0.005, 0.01, 0.025, 0.05])
def test_depth_is_exact(n, alpha):
    values = [sum(r for r, s in zip(range(1, n + 1), signs, strict=True) if s) for signs in itertools.product((0, 1), repeat=n)]
    k = depth(n, alpha)
    tail = [sum(v <= w for v in values) / 2**n for w in range(n * (n + 1) // 2 + 1)]
    assert k == 0 or tail[k - 1] <= alpha
    assert tail[k] > alpha


@pytest.mark.parametrize(
    ("n", "critical"), [(7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (25, 89)]
)  # Wilcoxon's two-sided 5% table: the largest W that is significant
def test_published_critical_values(n, critical):
    assert depth(n, 0.025) == critical + 1


def test_depth_of_many_pairs_goes_on_where_the_exact_one_ends():
    assert depth(100, 0.01) == 1851
    assert 1851 < depth(101, 0.01) <= 1891  # 1891 by exact counting
    assert depth(1000, 0.01) == pytest.approx(1000 * 1001 / 4 - 2.3263 * np.sqrt(1000 * 1001 * 2001 / 24), abs=2)


def test_bounds_need_enough_pairs():
    assert bounds(np.arange(6.0), 0.01) is None
    assert bounds(np.arange(7.0), 0.01) == (0.0, 6.0)


def test_bounds_hold_their_level():
    rng = np.random.default_rng(1)
    misses = sum(bounds(rng.standard_t(3, 12), 0.05)[0] > 0 for _ in range(2000))
    assert misses / 2000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
