"""Exact statistics of few paired measurements: no assumption but symmetry, no random numbers."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_EXACT_UP_TO = 100


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
