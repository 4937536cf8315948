"""A pipeline's step from the seconds that each of its ranks takes for a micro-batch.

With m micro-batches and t_r seconds of rank r the last finishes after sum(t) + (m - 1) max(t): equal to a simulation of GPipe
and 1F1B with these times (``dtprof.model.pipeline``; a test runs both). Virtual stages divide what is beyond m max(t) by their
number (Narayanan et al. 2021, section 2.2); a zero-bubble schedule with 1F1B's memory leaves a third (Qi et al. 2024, table 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from dtprof.plan.spec import ScheduleName

_ZERO_BUBBLE = 1 / 3


def step(seconds: Sequence[float], microbatches: int, schedule: ScheduleName, virtual: int = 1) -> tuple[float, float]:
    """Seconds of the slowest rank's work and of the bubble, whose sum is the step; ``seconds``: of one micro-batch, by rank."""
    slowest = max(seconds)
    rest = sum(seconds) - slowest
    if schedule == "zero-bubble":
        rest *= _ZERO_BUBBLE
    elif virtual > 1:
        rest /= virtual
    return microbatches * slowest, rest
