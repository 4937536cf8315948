"""Creep: does what a step leaves behind grow, steadily, and by how much?

The lowest reading of each block of steps is compared with that of the block before it. A leak moves all differences up; an
arena that is taken once, a cache that fills, a buffer of the profiler move one or a few. So the question is put to the
centre of the differences: its one-sided lower bound by the Walsh averages (Hodges and Lehmann 1963; exact signed-rank
counts, Wilcoxon 1945) must lie above a page per step. A walk without drift has symmetric differences and passes only at
the rate ``ALPHA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtprof import stats
from dtprof.intervals import Ints
from dtprof.numbers import counted
from dtprof.stats import Floats

# steps that ascend, and the reading after each
Stretch = tuple[Ints, Ints]

ALPHA = 0.001
LEAST_STEPS = 20
BLOCKS = 24
PAGE = 4096
# steps at the start in which caches fill, and around a capture window, in which the profiler's own memory comes and goes
SETTLING, AROUND = 3, 3
# readings this many usual distances apart still belong together
_GAP = 3


@dataclass(frozen=True)
class Creep:
    """Growth of ``metric`` over ``steps`` readings: bytes per step with bounds, each at level ALPHA; ``grows`` or not."""

    metric: str
    bytes_per_step: float
    low: float
    high: float
    steps: int
    grows: bool


def creep(metric: str, stretches: Sequence[Stretch]) -> Creep | str:
    """The test over stretches of readings, in bytes; a sentence where it abstains."""
    readings = sum(len(steps) for steps, _ in stretches)
    if readings < LEAST_STEPS:
        return f"{counted(readings, 'settled step')} outside the capture; growth is judged from {LEAST_STEPS} on"
    length = max(1, readings // BLOCKS)
    differences = np.concatenate([_differences(*stretch, length) for stretch in stretches])
    found = stats.bounds(differences, ALPHA)
    if found is None:
        return f"{counted(len(differences), 'comparison')} of neighbouring blocks of steps; too few for a judgement"
    low, high = found
    return Creep(metric, stats.location(differences), low, high, readings, low > PAGE)


def _differences(steps: Ints, values: Ints, length: int) -> Floats:
    """Bytes per step from the lowest reading of each block of ``length`` to that of the next."""
    blocks = len(values) // length
    lowest = np.arange(blocks) * length + values[: blocks * length].reshape(-1, length).argmin(axis=1)
    found: Floats = np.diff(values[lowest]) / np.diff(steps[lowest])
    return found


def settled(steps: Ints, values: Ints, captured: Ints) -> list[Stretch]:
    """Stretches of readings without the first ones and without those around captured steps.

    ``steps`` ascend. Readings that lie closer than the usual ones, as at the beginning, are thinned out; a stretch ends where
    readings are missing.
    """
    if len(steps) < 2:
        return [(steps[:0], values[:0])]
    good = steps >= steps[0] + SETTLING
    if len(captured):
        good &= (steps < captured.min() - AROUND) | (steps > captured.max() + AROUND)
    steps, values = steps[good], values[good]
    if len(steps) < 2:
        return [(steps, values)]
    stride = max(int(np.median(np.diff(steps)) + 0.5), 1)
    kept = [0]
    for i, step in enumerate(steps.tolist()):
        if step - steps[kept[-1]] > stride / 2:
            kept.append(i)
    breaks = np.flatnonzero(np.diff(steps[kept]) > _GAP * stride) + 1
    parts = zip(np.split(steps[kept], breaks), np.split(values[kept], breaks), strict=True)
    return [(s, v) for s, v in parts if len(s)]
