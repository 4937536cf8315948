"""How near kernels come to the two roofs of a device, arithmetic and memory, by the device's own counters.

Counters are readings in time (Nsight Systems' GPU metrics, percent of peak); a reading belongs to the kernel that runs then.
A kernel is called bound by a roof from 60% of it on, and by latency where it reaches 60% of neither, as Nsight Compute's
"Speed of Light" rule does (Nsight Compute Profiling Guide; Williams, Waterman and Patterson 2009, Roofline, for the model).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.run import Part, Run
from dtprof.table import Table

BOUND = 0.6
# what a metric's name begins with, in small letters
_ARITHMETIC, _MEMORY = ("tensor active", "sm issue"), ("dram read", "dram write")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reached:
    """Kernels of one name: ``total_ns``, how many readings fell into them, the share of each roof that they reached."""

    name: str
    total_ns: int
    readings: int
    arithmetic: float
    memory: float

    @property
    def bound(self) -> str:
        """By what the kernel is bound."""
        if max(self.arithmetic, self.memory) < BOUND:
            return "neither: latency, or too little work"
        return "memory" if self.memory > self.arithmetic else "arithmetic"


def reached(run: Run) -> list[Reached]:
    """Kernels that counters tell of, by time; empty where no counter of arithmetic and memory was recorded."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    totals: dict[str, int] = defaultdict(int)
    for part in run.parts:
        found = _of_part(run, part)
        if found is None:
            continue
        names, durs, inside, arithmetic, memory = found
        for name, dur in zip(names, durs.tolist(), strict=True):
            totals[name] += dur
        for i, a, m in zip(inside.tolist(), arithmetic.tolist(), memory.tolist(), strict=True):
            held = sums[names[i]]
            held[0], held[1], held[2] = held[0] + 1, held[1] + a, held[2] + m
    rows = [Reached(name, totals[name], int(n), a / n, m / n) for name, (n, a, m) in sums.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _of_part(run: Run, part: Part) -> tuple[list[str], Ints, Ints, Floats, Floats] | None:
    """Names and durations of the kernels, and for each reading that falls into one alone: which, and both shares."""
    samples, events = run.table("samples", part.ordinal), run.table("events", part.ordinal)
    arithmetic, memory = _readings(samples, _ARITHMETIC, np.maximum), _readings(samples, _MEMORY, np.add)
    if arithmetic is None or memory is None:
        return None
    kernels = events.take(events.is_("kind", "kernel"))
    order = np.argsort(kernels["ts"], kind="stable")
    start, dur = kernels["ts"][order], kernels["dur"][order]
    text = kernels.text("name")
    names = [text[i] or "" for i in order.tolist()]
    if not len(start):
        return None
    ts, (a, m) = _both(arithmetic, memory)
    at = np.searchsorted(start, ts, side="right") - 1
    ends = np.maximum.accumulate(start + dur)
    alone = (at >= 0) & (ts < (start + dur)[np.maximum(at, 0)])
    alone &= (at < 1) | (ends[np.maximum(at - 1, 0)] <= ts)
    return names, dur, at[alone], a[alone], m[alone]


def _readings(samples: Table, prefixes: Iterable[str], fold: np.ufunc) -> tuple[Ints, Floats] | None:
    """(instants, shares of peak) of the metrics that begin so, folded where several were read at one instant."""
    wanted = [name for name in samples.values("metric") if name.lower().startswith(tuple(prefixes))]
    rows = samples.take(samples.is_("metric", *wanted) & np.isfinite(samples["value"])) if wanted else None
    if rows is None or not len(rows):
        return None
    ts, at = np.unique(rows["ts"], return_inverse=True)
    shares = np.zeros(len(ts))
    fold.at(shares, at.reshape(-1), rows["value"] / 100)
    return ts, shares


def _both(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> tuple[Ints, tuple[Floats, Floats]]:
    """The instants at which both were read."""
    ts, i, j = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    return ts, (one[1][i], other[1][j])
