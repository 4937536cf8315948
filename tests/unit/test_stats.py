"""Exact paired statistics against brute force and published tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dtprof.stats import (
    CONFIRM_ALPHA,
    bounds,
    confirming,
    decide,
    depth,
    detectable,
    holm,
    least_pairs,
    location,
    looks,
    p_above,
    pairs_for,
    spread,
    tail,
    walsh,
)


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


@pytest.mark.parametrize("n", range(1, 9))
def test_p_values_are_shares_of_sign_patterns(n):
    rng = np.random.default_rng(n)
    d = rng.normal(0.02, 0.05, n)
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    observed = ranks[d > 0].sum()
    patterns = [sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product((0, 1), repeat=n)]
    assert p_above(d, 0.0) == pytest.approx(sum(w >= observed for w in patterns) / 2**n)


def test_p_value_and_bound_agree():
    rng = np.random.default_rng(5)
    for _ in range(200):
        d = rng.normal(0.03, 0.02, 9).round(2)  # with ties, and differences that are the margin
        assert (p_above(d, 0.02) <= 0.01) == (bounds(d, 0.01)[0] > 0.02)


@pytest.mark.parametrize(
    ("n", "w", "p"), [(5, 0, 0.0313), (6, 2, 0.0469), (8, 5, 0.0391), (9, 8, 0.0488), (10, 10, 0.0420), (12, 17, 0.0461)]
)  # published cumulative probabilities of the signed-rank statistic
def test_published_tails(n, w, p):
    assert tail(n, w) == pytest.approx(p, abs=5.1e-5)


def test_the_normal_tail_goes_on_where_the_exact_one_ends():
    assert tail(100, 1850) == pytest.approx(0.01, abs=2e-4)
    assert tail(101, 1890) == pytest.approx(0.01, abs=2e-4)
    assert tail(5, -1) == 0.0


@pytest.mark.parametrize(("alpha", "n"), [(0.01, 7), (0.05, 5), (0.005, 8), (0.5, 1), (0.25, 2), (0.01 / 3, 9)])
def test_least_pairs_are_those_that_decide(alpha, n):
    assert least_pairs(alpha) == n
    assert depth(n, alpha) > 0 and depth(n - 1, alpha) == 0


@pytest.mark.parametrize("pairs", range(1, 60))
def test_looks_spend_no_more_than_alpha(pairs):
    schedule, level = looks(pairs, 0.01)
    assert (schedule == ()) == (pairs < 7)
    if schedule:
        assert list(schedule) == sorted(set(schedule)) and schedule[-1] == pairs
        assert len(schedule) * level == pytest.approx(0.01)
        assert schedule[0] >= least_pairs(level)


def test_three_outcomes():
    d = np.linspace(-0.005, 0.005, 9)
    assert decide(d + math.log(1.10), 0.02, 0.01).outcome == "fail"
    assert decide(d, 0.02, 0.01).outcome == "pass"
    assert decide(d + math.log(1.02), 0.02, 0.01).outcome == "inconclusive"
    assert decide(d[:6] + 1, 0.02, 0.01).outcome == "inconclusive"
    made = decide(d + math.log(1.10), 0.02, 0.01)
    assert made.estimate == pytest.approx(0.10)
    assert made.low < 0.10 < made.high


def test_holm_against_its_definition():
    # Holm (1979): reject while p(i) <= alpha / (n - i + 1)
    rng = np.random.default_rng(3)
    for _ in range(300):
        p = rng.random(8) ** 4
        rejected, order = set(), np.argsort(p)
        for place, i in enumerate(order):
            if p[i] > 0.05 / (8 - place):
                break
            rejected.add(i)
        assert {i for i, a in enumerate(holm(list(p))) if a <= 0.05} == rejected
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_detectable_effect_is_near_the_formula_for_normal_noise():
    rng = np.random.default_rng(11)
    d = rng.normal(0, 0.03, 60)
    z = 2.3263 + 0.8416
    for n in (20, 40):
        formula = 0.02 + 1.1 * z * spread(d) / math.sqrt(n)
        assert detectable(d, n, margin=0.02, alpha=0.01, confirm=False, most=1) == pytest.approx(formula, rel=0.12)
    assert detectable(d, 6, margin=0.02, alpha=0.01) == math.inf
    assert detectable(d[:2], 20, margin=0.02, alpha=0.01) == math.inf
    assert detectable(np.zeros(10), 10, margin=0.02, alpha=0.01) == pytest.approx(0.02)


def test_pairs_for_is_the_fewest():
    d = np.random.default_rng(2).normal(0, 0.03, 40)
    n = pairs_for(d, 0.06, margin=0.02, alpha=0.01)
    assert detectable(d, n, margin=0.02, alpha=0.01) <= 0.06 < detectable(d, n - 1, margin=0.02, alpha=0.01)
    assert pairs_for(d, 0.02, margin=0.02, alpha=0.01) is None
    assert pairs_for(d * 30, 0.03, margin=0.02, alpha=0.01) is None


def test_spread_of_nothing_is_not_known():
    assert math.isnan(spread(np.array([0.1])))
    assert spread(np.array([0.1, -0.1])) == pytest.approx(0.1 * math.sqrt(2))
    assert confirming(20) == 10 and confirming(7) == least_pairs(CONFIRM_ALPHA) + 1
