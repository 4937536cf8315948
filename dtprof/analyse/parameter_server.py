"""Parameter servers: how stale gradients are, how long workers wait for the server, and which worker is slow.

Workers are told by the job's metrics ``staleness`` (clocks) and ``staleness_updates``; what they wait is the time in their
ranges ``pull`` and ``push``, and what they compute that of their forward and backward passes, in which no worker waits for
another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtprof.analyse.stragglers import Excess, excess_of, least_share
from dtprof.protocols import Lens
from dtprof.ranges import parse_range
from dtprof.run import Part, Run
from dtprof.stats import Floats

_PHASES = ("phase_forward", "phase_backward")
_LEAST_STEPS, _LEAST_NS = 3, 1_000_000


@dataclass(frozen=True)
class Worker:
    """One worker, per step: ns in pull and push, ns computing, staleness mean and most (clocks, updates), timed steps."""

    part: int
    rank: int
    waits_ns: float
    computes_ns: float
    clocks: float
    updates: float
    most_updates: float
    rows: tuple[int, ...]


@dataclass(frozen=True)
class ServerResult:
    """The workers; the slow one with its excess over the others, None where none stands out; no workers: no such job."""

    workers: tuple[Worker, ...] = ()
    slow: Worker | None = None
    excess: Excess | None = None


def analyse(study: Lens) -> ServerResult:
    """Compare the workers of a job that records staleness."""
    run = study.run
    parts = [p for p in run.parts if p.rank is not None and _metric(run, p, "staleness_updates").size]
    if len(parts) < 2:
        return ServerResult()
    rows = [_by_step(run, p, _PHASES[0]) + _by_step(run, p, _PHASES[1]) for p in parts]
    workers = tuple(_worker(run, p) for p in parts)
    length = min(map(len, rows))
    if length < _LEAST_STEPS:
        return ServerResult(workers)
    # asynchronous steps of one number do not run at one time: they are only as many measurements of each worker
    times: Floats = np.array([r[-length:] for r in rows])
    least = max(_LEAST_NS, least_share(length) * float(np.median(times)))
    found = [(e, w) for i, w in enumerate(workers) if (e := excess_of(times, i, least)) is not None]
    if not found:
        return ServerResult(workers)
    excess, slow = max(found, key=lambda f: f[0].centre)
    return ServerResult(workers, slow, excess)


def _metric(run: Run, part: Part, name: str) -> Floats:
    table = run.table("metrics", part.ordinal)
    found: Floats = table["value"][table.is_("metric", name)]
    return found


def _by_step(run: Run, part: Part, name: str) -> Floats:
    """A metric of every step but the first, which warms up, in the order of the steps."""
    table = run.table("metrics", part.ordinal)
    mine = table.take(table.is_("metric", name))
    found: Floats = mine["value"][np.argsort(mine["step"], kind="stable")][1:]
    return found


def _worker(run: Run, part: Part) -> Worker:
    events = run.table("events", part.ordinal)
    names = np.array([parse_range(n)[0] in ("pull", "push") for n in events.values("name")] + [False], bool)
    rows = np.flatnonzero(names[events["name"]] & events.is_("kind", "range") & (events["step"] >= 0))
    steps = max(len(np.unique(events["step"][rows])), 1)
    updates = _metric(run, part, "staleness_updates")
    computes = sum(float(np.median(found)) if (found := _by_step(run, part, n)).size else 0.0 for n in _PHASES)
    return Worker(
        part.ordinal, part.rank or 0, float(events["dur"][rows].sum()) / steps, computes,
        float(np.mean(_metric(run, part, "staleness"))), float(np.mean(updates)), float(np.max(updates)), tuple(rows.tolist()),
    )  # fmt: skip
