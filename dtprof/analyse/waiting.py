"""Who is waited for: exposed waiting by the rank that arrives last, and how late that rank enters its step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, CommResult, Operation, settled
from dtprof.protocols import Lens
from dtprof.schema import MISSING


@dataclass(frozen=True)
class Entry:
    """How one rank comes to its first operation of a step, clocks aligned."""

    rank: int
    step: int
    enters_ns: int
    arrives_ns: int

    @property
    def needs_ns(self) -> int:
        """From entering the step to its first operation."""
        return self.arrives_ns - self.enters_ns


@dataclass(frozen=True)
class WaitingResult:
    """Exposed waiting, ns per rank and step (mean).

    ``by_culprit``: rank that arrives last -> what is waited for it; ``by_victim``: rank -> what it waits;
    ``operations``: culprit -> operations in which it was last; ``entries``: first operations of each step.
    """

    per_step_ns: float
    by_culprit: dict[int, float] = field(default_factory=dict)
    by_victim: dict[int, float] = field(default_factory=dict)
    operations: dict[int, tuple[Operation, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


def analyse(study: Lens) -> WaitingResult:
    """Share the exposed waiting out to the ranks that arrive last."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    culprit: dict[int, float] = defaultdict(float)
    victim: dict[int, float] = {}
    lasts: dict[int, dict[int, Operation]] = defaultdict(dict)
    used = [p for p in accounting.parts if p.steps]
    by_part: dict[int, list[tuple[Operation, int]]] = defaultdict(list)
    for operation in comm.operations:
        if operation.last_rank is not None:
            for part, event in operation.events.items():
                by_part[part].append((operation, event))
    for account in used:
        view = PartView(study.run, account.part)
        steps = settled(account.steps)
        total = sum(s.accounting["comm_wait_ns"] for s in steps) / len(steps)
        if account.rank is not None:
            victim[account.rank] = total
        shares = _exposed(view, by_part[account.part], account.rank, [(s.ts, s.ts + s.dur_ns) for s in steps])
        whole = sum(shares.values())
        by_id = {o.id: o for o, _ in by_part[account.part]}
        for (rank, number), length in shares.items():
            culprit[rank] += total * length / whole / len(used)
            lasts[rank][number] = by_id[number]
    mean = float(np.mean(list(victim.values()))) if victim else 0.0
    ordered = dict(sorted(culprit.items(), key=lambda item: -item[1]))
    return WaitingResult(mean, ordered, victim, {r: tuple(lasts[r].values()) for r in ordered}, _entries(study, comm))


def _exposed(
    view: PartView, operations: list[tuple[Operation, int]], rank: int | None, windows: list[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """(culprit, operation) -> waiting of this part outside its own compute and copies, inside its steps."""
    if view.on_device:
        busy = intervals.join(view.device_compute, view.device_copy)
    else:
        busy = view.host_compute
    out: dict[tuple[int, int], float] = {}
    for operation, event in operations:
        wait = operation.wait_ns.get(rank) if rank is not None else None
        if not wait or wait == MISSING or operation.last_rank is None:
            continue
        start = int(view.events["ts"][event])
        span = np.array([start], np.int64), np.array([start + wait], np.int64)
        exposed = intervals.subtract(span, busy)
        inside = sum(intervals.total(intervals.clip(exposed, lo, hi)) for lo, hi in windows)
        if inside > 0:
            out[(operation.last_rank, operation.id)] = float(inside)
    return out


def _entries(study: Lens, comm: CommResult) -> tuple[Entry, ...]:
    """First operation of every step on every rank, with the host's entry into the step."""
    firsts: dict[int, Operation] = {}
    for operation in comm.operations:
        if operation.step is not None and not operation.one_sided and operation.n_present > 1:
            firsts.setdefault(operation.step, operation)
    out = []
    parts = {p.ordinal: p for p in study.run.parts}
    for step, operation in firsts.items():
        for ordinal, event in operation.events.items():
            part = parts[ordinal]
            steps, events = study.run.table("steps", ordinal), study.run.table("events", ordinal)
            rows = np.flatnonzero(steps["step"] == step)
            if len(rows) and part.rank is not None:
                launch = int(events["launch"][event])
                arrives = int(events["ts"][launch if launch >= 0 else event])
                enters = int(steps["host_ts"][rows[0]])
                out.append(Entry(part.rank, step, enters + part.clock_offset_ns, arrives + part.clock_offset_ns))
    return tuple(out)
