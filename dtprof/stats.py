"""Exact statistics of few paired measurements: no assumption but symmetry.

A *difference* is ``ln(candidate / baseline)`` of one pair: of two runs that followed each other in random order. Where
nothing changed, differences are symmetric about 0 whatever the noise, which is all that the signed-rank test needs
(Wilcoxon, 1945). A margin is a share: 0.02 allows the candidate to take 2% longer.

    FAIL   the lower bound of the centre lies above ln(1 + margin): P(FAIL) <= alpha while the truth is within the margin
    PASS   the upper bound lies below it: P(PASS) <= alpha while the truth is beyond the margin
    else   inconclusive: more pairs are needed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Outcome = Literal["pass", "fail", "inconclusive"]
_EXACT_UP_TO = 100
# where a failure is repeated before it is believed: the level of the repetition
CONFIRM_ALPHA = 0.05
_TRIALS = 2000


def walsh(differences: Floats) -> Floats:
    """The n(n+1)/2 averages of all pairs (i <= j), ascending."""
    d = np.asarray(differences, np.float64)
    i, j = np.triu_indices(len(d))
    return np.sort((d[i] + d[j]) / 2)


def location(differences: Floats) -> float:
    """Hodges-Lehmann estimate of the centre: the median of the Walsh averages (Hodges and Lehmann, 1963)."""
    return float(np.median(walsh(differences)))


@cache
def _signed_rank_counts(n: int) -> tuple[int, ...]:
    """How many of the 2^n sign patterns give each value of the signed-rank statistic W+ (Wilcoxon, 1945)."""
    counts = [1]
    for rank in range(1, n + 1):
        shifted = [0] * rank + counts
        counts = [a + b for a, b in zip(counts + [0] * rank, shifted, strict=True)]
    return tuple(counts)


def depth(n: int, alpha: float) -> int:
    """Largest k with P(W+ <= k - 1) <= alpha under symmetry; 0 where n is too small for this alpha.

    Exact up to 100 differences; above, by the normal limit of W+ (mean n(n+1)/4, variance n(n+1)(2n+1)/24; Wilcoxon, 1945).
    """
    if n > _EXACT_UP_TO:
        mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(mean + NormalDist().inv_cdf(alpha) * deviation + 0.5))
    allowed, tail, k = alpha * 2**n, 0, 0
    for count in _signed_rank_counts(n):
        tail += count
        if tail > allowed:
            break
        k += 1
    return k


def bounds(differences: Floats, alpha: float) -> tuple[float, float] | None:
    """One-sided bounds (low, high) of the centre, each at level ``alpha``: the k-th Walsh average from either end.

    None where there are too few differences for this level: at least ceil(log2(1 / alpha)) are needed.
    """
    k = depth(len(differences), alpha)
    if k == 0:
        return None
    averages = walsh(differences)
    return float(averages[k - 1]), float(averages[-k])


def tail(n: int, w: float) -> float:
    """P(W+ <= w) of n differences under symmetry: exact up to 100, then normal (see ``depth``)."""
    if w < 0:
        return 0.0
    if n <= _EXACT_UP_TO:
        return float(sum(_signed_rank_counts(n)[: math.floor(w) + 1]) / 2**n)
    mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return NormalDist(mean, deviation).cdf(w + 0.5)


def p_above(differences: Floats, limit: float) -> float:
    """p-value against "the centre is at or below ``limit``"; what lies exactly on the limit speaks for it."""
    return tail(len(differences), int(np.count_nonzero(walsh(differences) <= limit)))


@dataclass(frozen=True)
class Decision:
    """What n differences say at level ``alpha``; ``estimate``, ``low`` and ``high`` are shares (0.05: 5% longer).

    The bounds are None where n is below ``least_pairs(alpha)``.
    """

    outcome: Outcome
    n: int
    alpha: float
    estimate: float
    low: float | None
    high: float | None


def decide(differences: Floats, margin: float, alpha: float) -> Decision:
    """One look at the differences."""
    centre = math.expm1(location(differences))
    limits = bounds(differences, alpha)
    if limits is None:
        return Decision("inconclusive", len(differences), alpha, centre, None, None)
    low, high = limits
    limit = math.log1p(margin)
    outcome: Outcome = "fail" if low > limit else "pass" if high < limit else "inconclusive"
    return Decision(outcome, len(differences), alpha, centre, math.expm1(low), math.expm1(high))


def least_pairs(alpha: float) -> int:
    """The fewest differences that can decide at level alpha: ceil(log2(1 / alpha)), 7 at 1%."""
    return math.ceil(math.log2(1 / alpha) - 1e-12)


def looks(pairs: int, alpha: float, most: int = 3) -> tuple[tuple[int, ...], float]:
    """When to look at up to ``pairs`` differences, and the level of each look: alpha / number of looks (Bonferroni).

    The looks are evenly spaced and the first has enough pairs for its level; () where ``pairs`` are too few for one.
    """
    for count in range(most, 0, -1):
        first = least_pairs(alpha / count)
        # a look that comes soon after another costs level and gains nothing
        if count == 1 and first <= pairs:
            return (pairs,), alpha
        if first + 2 * (count - 1) <= pairs:
            return tuple(round(first + (pairs - first) * i / (count - 1)) for i in range(count)), alpha / count
    return (), alpha


def confirming(pairs: int) -> int:
    """Pairs of the repetition that a failure after ``pairs`` pairs needs: half as many, enough for its level."""
    return max(math.ceil(pairs / 2), least_pairs(CONFIRM_ALPHA) + 1)


def spread(differences: Floats) -> float:
    """Standard deviation of the differences: the noise of one pair; nan below 2."""
    return float(np.std(differences, ddof=1)) if len(differences) > 1 else math.nan


def detectable(
    differences: Floats, pairs: int, *, margin: float, alpha: float, power: float = 0.8, most: int = 3, confirm: bool = True
) -> float:
    """Slowdown (share) that ``pairs`` pairs with the noise of these differences fail with probability ``power``.

    A look fails where the truth lies further above the margin than the lower bound of the noise lies below 0, so that the
    slowdown is the ``power`` quantile of the least of these distances over the looks; a repetition must fail as well.
    The noise is drawn from the differences about their centre, with both signs. Their law is known from few only: each
    trial gives them weights of its own (see ``_drawn``) and has the scale's uncertainty (chi-squared). Close to margin +
    1.1 (z(1-alpha) + z(power)) sigma / sqrt(pairs) for normal noise. inf where ``pairs`` are too few for the level or
    there are less than 3 differences.
    """
    schedule, level = looks(pairs, alpha, most)
    if not schedule or len(differences) < 3:
        return math.inf
    rng = np.random.default_rng(12345)
    trials = _TRIALS if pairs <= 60 else _TRIALS // 4
    residuals = np.asarray(differences, np.float64) - location(differences)
    known = len(residuals) - 1
    scale = np.sqrt(known / rng.chisquare(known, trials))
    repeated = confirming(pairs) if confirm else 0
    noise = _drawn(residuals, trials, pairs + repeated, rng) * scale[:, None]
    needs = np.min([_reach(noise[:, :n], level) for n in schedule], axis=0)
    if repeated:
        needs = np.maximum(needs, _reach(noise[:, pairs:], CONFIRM_ALPHA))
    return math.expm1(math.log1p(margin) + float(np.quantile(needs, power)))


def _drawn(residuals: Floats, trials: int, count: int, rng: np.random.Generator) -> Floats:
    """trials x count residuals of either sign, by weights that differ from trial to trial (Bayesian bootstrap; Rubin, 1981).

    Equal weights would take the share of rare spikes among the residuals for known.
    """
    weights = rng.exponential(size=(trials, len(residuals))).cumsum(axis=1)
    places = rng.random((trials, count)) * weights[:, -1:]
    chosen = np.array([np.searchsorted(w, place) for w, place in zip(weights, places, strict=True)])
    found: Floats = residuals[chosen] * rng.choice((-1.0, 1.0), (trials, count))
    return found


def _reach(samples: Floats, alpha: float) -> Floats:
    """How far below 0 the lower bound of each row's centre lies."""
    n = samples.shape[1]
    k = depth(n, alpha)
    if k == 0:
        return np.full(len(samples), math.inf)
    i, j = np.triu_indices(n)
    blocks = [samples[at : at + 200] for at in range(0, len(samples), 200)]
    return np.concatenate([-np.partition((b[:, i] + b[:, j]) / 2, k - 1, axis=1)[:, k - 1] for b in blocks])


def pairs_for(
    differences: Floats, effect: float, *, margin: float, alpha: float, power: float = 0.8, most: int = 3, confirm: bool = True
) -> int | None:
    """The fewest pairs with which ``effect`` is detectable in this noise; None where 200 are not enough."""

    def enough(n: int) -> bool:
        return detectable(differences, n, margin=margin, alpha=alpha, power=power, most=most, confirm=confirm) <= effect

    too_few = least_pairs(alpha) - 1
    found = max(too_few + 1, 8)
    while not enough(found):
        if found >= 200:
            return None
        too_few, found = found, min(2 * found, 200)
    while found - too_few > 1:
        middle = (found + too_few) // 2
        too_few, found = (too_few, middle) if enough(middle) else (middle, found)
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in their order: the smallest by n, the next by n - 1, … (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    reached = 0.0
    for place, i in enumerate(order):
        reached = max(reached, min(1.0, p_values[i] * (len(p_values) - place)))
        adjusted[i] = reached
    return adjusted


def student_sf(t: float, degrees: float) -> float:
    """P(T > t) of Student's t: half the regularised incomplete beta function at degrees / (degrees + t^2)."""
    half = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
    return half if t >= 0 else 1 - half


@cache
def student_quantile(alpha: float, degrees: float) -> float:
    """The t with P(T > t) = alpha, for alpha up to one half."""
    low, high = 0.0, 1.0
    while student_sf(high, degrees) > alpha:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_sf(middle, degrees) > alpha else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    value = 1.0
    for n in range(200, 0, -1):
        m, odd = divmod(n, 2)
        if odd:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return min(1.0, front / value)
