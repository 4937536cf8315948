"""How often to save a checkpoint, and what part of the time is left for training.

A save takes ``save_s`` seconds during which training stands, failures come ``mtbf_s`` seconds apart on average over the whole
job (exponentially distributed), and after one it takes ``restart_s`` seconds until training goes on from the last save.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def young(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that lose least time, to first order: sqrt(2 save mtbf).

    Young 1974, A first order approximation to the optimum checkpoint interval. Good where ``save_s`` is far below ``mtbf_s``.
    """
    _positive(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that lose least time, to higher order.

    Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, equation 37:
    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for saves of d < 2 M, and M for longer ones.
    """
    _positive(save_s=save_s, mtbf_s=mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    part = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def goodput(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of the time that is training which is kept, with a save after every ``interval_s`` seconds of training.

    Daly 2006, equation 20: a training of T seconds lasts M exp(R / M) (exp((tau + d) / M) - 1) T / tau.
    """
    _positive(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    exponent = (interval_s + save_s) / mtbf_s + max(restart_s, 0.0) / mtbf_s
    if exponent > 700:
        return 0.0
    lasts = mtbf_s * math.exp(max(restart_s, 0.0) / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    return min(interval_s / lasts, 1.0)


def job_mtbf_s(device_mtbf_s: float, devices: int) -> float:
    """Mean seconds between failures of a job that fails with any of its ``devices``, independently of each other."""
    _positive(device_mtbf_s=device_mtbf_s, devices=devices)
    return device_mtbf_s / devices


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, and has to be above 0")


def mtbf_limits(time_s: float, failures: int, level: float) -> tuple[float, float]:
    """Limits of the mean seconds between failures, two-sided at ``level``, after ``failures`` (1 or more) in ``time_s``.

    Garwood 1936, Fiducial limits for the Poisson distribution: the rates at which so many or more, and so many or fewer, would
    have been seen with probability (1 - level) / 2.
    """
    _positive(time_s=time_s, failures=failures)
    tail = (1 - level) / 2
    most = _rate(lambda rate: _at_most(failures, rate) < tail, failures)
    least = _rate(lambda rate: 1 - _at_most(failures - 1, rate) > tail, failures)
    return time_s / most, time_s / least


def _at_most(count: int, mean: float) -> float:
    """P(N <= count) of a Poisson variable."""
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


def _rate(beyond: Callable[[float], bool], failures: int) -> float:
    """The smallest mean that is ``beyond``, by bisection."""
    low, high = 1e-12, 10.0 * failures + 20.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high
