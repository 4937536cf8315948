"""How often to save a checkpoint, and what part of the time is left for training.

A save takes ``save_s`` seconds during which training stands, failures come ``mtbf_s`` seconds apart on average over the whole
job (exponentially distributed), and after one it takes ``restart_s`` seconds until training goes on from the last save.
"""

from __future__ import annotations

import math


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
