"""Where a series changes: E-divisive (Matteson and James, 2014), hierarchical, with permutations, seeded.

The energy distance between two samples is 0 only where their laws are equal, so that a shift, a wider spread and, as a
flight of stairs, a slow drift are all found, and no law is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST = 4
PERMUTATIONS = 199


@dataclass(frozen=True)
class Change:
    """The series is another from ``at`` on; ``p`` as a permutation test has it."""

    at: int
    p: float


def change_points(
    values: Floats, *, level: float = 0.05, least: int = LEAST, permutations: int = PERMUTATIONS, seed: int = 0
) -> list[Change]:
    """Changes of a series, in order; segments have at least ``least`` values. A level below 1 / (permutations + 1) finds none.

    At each stage the best split of all segments is tested against the best splits of the same segments with their values
    permuted, and the search ends at the first that is not significant.
    """
    rng = np.random.default_rng(seed)
    series = np.asarray(values, np.float64)
    borders, found = [0, len(series)], []
    while True:
        segments = list(pairwise(borders))
        best = max((_best_split(series[a:b], least, a) for a, b in segments), default=(0.0, -1))
        if best[1] < 0:
            break
        beaten = 0
        for _ in range(permutations):
            shuffled = [_best_split(rng.permutation(series[a:b]), least, a)[0] for a, b in segments]
            beaten += max(shuffled) >= best[0]
        p = (beaten + 1) / (permutations + 1)
        if p > level:
            break
        found.append(Change(best[1], p))
        borders = sorted([*borders, best[1]])
    return sorted(found, key=lambda c: c.at)


def _best_split(series: Floats, least: int, offset: int) -> tuple[float, int]:
    """(scaled energy distance, place) of the best split of one segment; place -1 where it is too short or constant.

    For every split t and end k of the right side: 2/(nm) sum|x-y| - sum|x-x'| / C(n,2) - sum|y-y'| / C(m,2), times
    nm/(n+m) (Matteson and James, equations 5 to 7). Block sums of the distances come from their double cumulative sum.
    """
    size = len(series)
    if size < 2 * least:
        return 0.0, -1
    sums = np.zeros((size + 1, size + 1))
    sums[1:, 1:] = np.abs(series[:, None] - series[None, :]).cumsum(0).cumsum(1)
    diagonal = np.diag(sums)
    t = np.arange(least, size - least + 1)[:, None]
    k = np.arange(size + 1)[None, :]
    n, m = t.astype(np.float64), (k - t).astype(np.float64)
    allowed = m >= least
    m = np.where(allowed, m, np.nan)
    between = sums[t, k] - diagonal[t]
    left, right = diagonal[t] / 2, (diagonal[k] - 2 * sums[t, k] + diagonal[t]) / 2
    energy = 2 * between / (n * m) - 2 * left / (n * (n - 1)) - 2 * right / (m * (m - 1))
    scaled = np.where(allowed, energy * n * m / (n + m), -np.inf)
    place = int(np.argmax(scaled.max(axis=1)))
    best = float(scaled[place].max())
    return (best, offset + least + place) if best > 0 else (0.0, -1)
