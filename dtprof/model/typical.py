"""The step that a prediction is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtprof.run import Part, Run

# steps around a capture that are not as others: hooks go on before it, traces are written after it
_AROUND = (-3, -2, -1, 0, 1)
ENOUGH = 5
# standard deviation of a normal distribution over its median absolute deviation (P. Rousseeuw, C. Croux, 1993), and the
# standard error of its median over that of its mean, the root of half of pi
_SIGMA, _OF_MEDIAN = 1.4826, 1.2533


def error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median of ``values``, in their unit; a few that something delayed do not widen it."""
    off = np.median(np.abs(np.asarray(values) - np.median(values)))
    return float(_OF_MEDIAN * _SIGMA * off / np.sqrt(len(values)))


def typical_step(run: Run, parts: list[Part], traced_ns: float) -> tuple[float, int]:
    """(median over the untraced training steps of the longest duration over the ranks in ns, their number).

    With fewer than five of those: (``traced_ns``, 0).
    """
    plain = list(plain_steps(run, parts).values())
    return (float(np.median(plain)), len(plain)) if len(plain) >= ENOUGH else (traced_ns, 0)


def typical_error(run: Run, parts: list[Part], traced_ns: Sequence[float]) -> float:
    """Standard error of ``typical_step``, ns; ``traced_ns`` are the durations that it takes where nothing else is there."""
    plain = list(plain_steps(run, parts).values())
    return error_of_median(plain if len(plain) >= ENOUGH else traced_ns)


def plain_steps(run: Run, parts: list[Part]) -> dict[int, float]:
    """The training steps that are neither traced nor next to a traced one -> their longest duration over the ranks, ns."""
    longest: dict[int, float] = {}
    captured: set[int] = set()
    for part in parts:
        steps = run.table("steps", part.ordinal)
        kinds = steps.text("kind")
        for row, step in enumerate(steps["step"].tolist()):
            if kinds[row] in (None, "train"):
                longest[step] = max(longest.get(step, 0.0), float(steps["host_dur"][row]))
                if steps["captured"][row]:
                    captured.add(step)
    return {step: ns for step, ns in longest.items() if not captured & {step - near for near in _AROUND}}
