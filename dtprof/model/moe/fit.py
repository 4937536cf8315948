"""How a time grows with a load, from many pairs of both: a straight line without the pairs that something delayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# a pair further from the line than so many deviations (1.4826 times the median absolute one, which is sigma of a normal
# distribution; Rousseeuw and Croux 1993), and than this part of the line's own time, was delayed by something else
_OUTLYING, _SIGMA, _NEAR = 3.0, 1.4826, 0.5
_ROUNDS = 4
# loads that differ by less, of their mean, say nothing of a slope; nor does one that is known to less than this part of itself
LEAST_SPREAD, MOST_ERROR = 0.2, 0.25


@dataclass(frozen=True)
class Slope:
    """ns per unit of load, with the range that it lies in.

    ``determined``: by a line through the pairs; otherwise between none of the time growing with the load and all of it.
    """

    value: float
    low: float
    high: float
    determined: bool
    pairs: int


def slope_of(load: Sequence[float], times: Sequence[float]) -> Slope | None:
    """The slope of least squares; its range is two standard errors to both sides. None without any load."""
    x, y = np.asarray(load, float), np.asarray(times, float)
    loaded = x > 0
    if not loaded.any():
        return None
    if len(x) >= 4 and np.ptp(x) >= LEAST_SPREAD * x.mean():
        keep = _undelayed(x, y)
        x, y = (x[keep], y[keep]) if np.ptp(x[keep]) >= LEAST_SPREAD * x[keep].mean() else (x, y)
        slope, left = _line(x, y)
        error = float(np.sqrt(np.sum(left**2) / max(len(x) - 2, 1) / np.sum((x - x.mean()) ** 2)))
        if slope > 0 and 2 * error <= MOST_ERROR * slope:
            return Slope(slope, slope - 2 * error, slope + 2 * error, True, len(x))
    most = float(np.median(np.asarray(times, float)[loaded] / np.asarray(load, float)[loaded]))
    return Slope(most / 2, 0.0, most, False, len(load))


def _undelayed(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Pairs near the line, of those that remain when the ones that are not are left out, several times."""
    keep = np.ones(len(x), bool)
    for _ in range(_ROUNDS):
        if keep.sum() < 4 or np.ptp(x[keep]) == 0:
            break
        slope, _ = _line(x[keep], y[keep])
        left = y - slope * x
        start = float(np.median(left[keep]))
        usual = _SIGMA * float(np.median(np.abs(left[keep] - start)))
        keep = np.abs(left - start) <= np.maximum(_OUTLYING * usual, _NEAR * np.abs(start + slope * x))
    return keep


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Slope of least squares, and what the line leaves of every pair."""
    across = x - x.mean()
    slope = float(np.sum(across * (y - y.mean())) / np.sum(across**2))
    return slope, y - y.mean() - slope * across
