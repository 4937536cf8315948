"""E-divisive: the statistic against its definition, false changes, shifts, drift."""

import itertools

import numpy as np
import pytest

from dtprof.check.changepoints import _best_split, change_points


def by_definition(series, least):
    """Matteson and James (2014), equations 5 to 7, in loops."""
    best = (0.0, -1)
    for t in range(least, len(series) - least + 1):
        for k in range(t + least, len(series) + 1):
            x, y = series[:t], series[t:k]
            n, m = len(x), len(y)
            between = 2 * sum(abs(a - b) for a in x for b in y) / (n * m)
            left = sum(abs(a - b) for a, b in itertools.combinations(x, 2)) * 2 / (n * (n - 1))
            right = sum(abs(a - b) for a, b in itertools.combinations(y, 2)) * 2 / (m * (m - 1))
            best = max(best, ((between - left - right) * n * m / (n + m), t))
    return best


@pytest.mark.parametrize("seed", range(5))
def test_the_statistic_is_the_defined_one(seed):
    series = np.random.default_rng(seed).normal(0, 1, 14) + np.repeat([0.0, seed], 7)
    score, place = by_definition(series, 4)
    found = _best_split(series, 4, 100)
    assert found[0] == pytest.approx(score)
    assert found[1] == (100 + place if place >= 0 else -1)


def test_changes_are_found_where_they_are():
    rng = np.random.default_rng(1)
    series = np.concatenate([rng.normal(0, 1, 25), rng.normal(4, 1, 25), rng.normal(0, 1, 25)])
    assert [c.at for c in change_points(series)] == pytest.approx([25, 50], abs=1)
    assert change_points(series) == change_points(series)


def test_a_slow_drift_is_seen():
    rng = np.random.default_rng(2)
    assert change_points(rng.normal(0, 0.01, 40) + np.linspace(0, 0.06, 40))


def test_a_wider_spread_is_a_change():
    rng = np.random.default_rng(3)
    assert change_points(np.concatenate([rng.normal(0, 0.1, 40), rng.normal(0, 3, 40)]))


def test_without_a_change_few_are_found():
    rng = np.random.default_rng(4)
    found = sum(bool(change_points(rng.standard_t(3, 24), permutations=59, seed=i)) for i in range(60))
    assert found <= 60 * (0.05 + 3 * np.sqrt(0.05 * 0.95 / 60))


@pytest.mark.parametrize("series", [[], [1.0], [1.0] * 7, [2.0] * 30])
def test_nothing_to_find(series):
    assert change_points(np.array(series)) == []
