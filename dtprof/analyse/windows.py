"""Capture windows of one part: time between them was seen by no tracer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dtprof.table import Table


def captured_runs(steps: Table) -> list[tuple[int, int]]:
    """(first, last) step of every run of captured steps that no uncaptured step interrupts, in order of time."""
    runs: list[tuple[int, int]] = []
    going = False
    order = np.argsort(steps["host_ts"], kind="stable")
    for step, captured in zip(steps["step"][order].tolist(), steps["captured"][order].tolist(), strict=True):
        if captured and going:
            runs[-1] = (runs[-1][0], step)
        elif captured:
            runs.append((step, step))
        going = bool(captured)
    return runs


def unseen_ns(steps: Table, step: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Time between the windows: from the last end of one to the first start of the next, over these events (step, ns)."""
    total = 0
    runs = captured_runs(steps)
    for (_, last), (first, _) in pairwise(runs):
        before, after = end[(step >= 0) & (step <= last)], start[step >= first]
        if len(before) and len(after):
            total += max(int(after.min() - before.max()), 0)
    return total
