"""A pipeline's step from the seconds that each of its ranks takes for a micro-batch.

With m micro-batches and t_r seconds of rank r GPipe takes sum(t) + (m - 1) max(t). Under 1F1B rank r waits for the first
forward passes of the ranks before it, works m t_r, waits for the first backward pass to come back (less the forward passes that
it does meanwhile), and the ranks before it end with their last backward passes; the longest of these counts. With equal ranks,
or with the last one the slowest, that is sum(t) + (m - 1) max(t) too. A test runs both against a simulation
(``dtprof.model.pipeline``). Virtual stages divide what is beyond m max(t) by their number (Narayanan et al. 2021, section 2.2);
a zero-bubble schedule with 1F1B's memory leaves a third (Qi et al. 2024, table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dtprof.plan.spec import ScheduleName

_ZERO_BUBBLE = 1 / 3
# of a micro-batch's time a forward pass takes
FORWARD = 1 / 3


def step(
    seconds: Sequence[float], microbatches: int, schedule: ScheduleName, virtual: int = 1, forward: float = FORWARD
) -> tuple[float, float]:
    """Seconds of the slowest rank's work and of the bubble, whose sum is the step; ``seconds``: of one micro-batch, by rank;
    ``forward``: the share of a forward pass in them.
    """
    slowest = max(seconds)
    if schedule == "gpipe":
        return microbatches * slowest, sum(seconds) - slowest
    rest = max(_one_by_one(seconds, microbatches, forward) - microbatches * slowest, 0.0)
    if schedule == "zero-bubble":
        rest *= _ZERO_BUBBLE
    elif virtual > 1:
        rest /= virtual
    return microbatches * slowest, rest


def _one_by_one(seconds: Sequence[float], microbatches: int, forward: float) -> float:
    """Seconds under 1F1B."""
    ranks, whole = len(seconds), sum(seconds)
    longest = 0.0
    for rank, (own, until) in enumerate(zip(seconds, accumulate(seconds), strict=True)):
        ahead = min(ranks - 1 - rank, microbatches - 1) * forward * own
        longest = max(longest, until - own + microbatches * own + max(whole - until - ahead, 0.0))
    return longest
