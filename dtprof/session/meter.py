"""The own-cost meter: what dtprof itself takes from the loop, as a fraction of the time of uncaptured steps.

Counted, step by step, with the monotonic clock: everything inside ``step()`` (step clock, collector hooks, writing) and
what collectors report beside it (garbage-collection callbacks, gradient hooks: number x a fixed price each). Added from a
calibration at the start: the ranges that were timed as phases, number x measured price. Not counted: captured steps, the
three before and the one after them (the tracer has a price of its own: its facts in part.json, and the steps marked
captured beside the others), the first step, and second-order effects such as cold caches; ``benchmarks/overhead.py``
measures those against a loop without dtprof.
"""

from __future__ import annotations

import math
from typing import Any

MOST_WAITING = 64


class Meter:
    """Running sums over uncaptured steps; constant memory."""

    def __init__(self) -> None:
        self._steps = 0
        self._waiting: list[tuple[int, int]] = []
        self._own = self._whole = 0.0
        self._own2 = self._own_whole = self._whole2 = 0.0

    def add(self, own_ns: int, step_ns: int) -> None:
        """One step: our time, and the job's own time beside it."""
        self._waiting.append((own_ns, step_ns))
        if len(self._waiting) >= MOST_WAITING:
            self._sum()

    def _sum(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._steps += len(waiting)
        for own, step in waiting:
            whole = float(own + step)
            self._own += own
            self._whole += whole
            self._own2 += float(own) ** 2
            self._own_whole += own * whole
            self._whole2 += whole**2

    def result(self, ranges: float, price_ns: tuple[float, float]) -> dict[str, Any] | None:
        """``fraction`` with ``low`` and ``high``, or None before the second step.

        ``ranges`` per step cost ``price_ns`` (best, median) each. low: measured time alone, minus two standard errors of
        the ratio (linearised). high: plus two standard errors, with ranges at twice their median price.
        """
        self._sum()
        if self._steps < 2 or self._whole <= 0:
            return None
        ratio = self._own / self._whole
        spread = self._own2 - 2 * ratio * self._own_whole + ratio**2 * self._whole2
        error = math.sqrt(max(spread, 0.0) * self._steps / (self._steps - 1)) / self._whole
        best, median = price_ns
        per_step = ranges * self._steps / self._whole
        return {
            "fraction": ratio + per_step * best,
            "low": max(ratio - 2 * error, 0.0),
            "high": ratio + 2 * error + 2 * per_step * median,
            "steps": self._steps,
        }
