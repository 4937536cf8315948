"""Who is waited for: exposed waiting by the rank that arrives last, and how late that rank enters its step.

Waiting for a message of one other rank (a pipeline's, a ring's) is no part of it: nobody there is last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, CommResult, Operation, StepAccount, settled
from dtprof.intervals import Cover
from dtprof.protocols import Lens


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

    ``by_culprit``: rank that arrives last -> what is waited for it, shared where several arrive together; ``by_victim``:
    rank -> what it waits; ``operations``: culprit -> operations in which it was last; ``entries``: first operations of
    each step.
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
    victims: dict[int, list[float]] = defaultdict(list)
    lasts: dict[int, dict[int, Operation]] = defaultdict(dict)
    used = [(p, p.rank) for p in accounting.parts if p.steps and p.rank is not None]
    by_part: dict[int, list[tuple[Operation, int]]] = defaultdict(list)
    for operation in comm.operations:
        if operation.last_ranks:
            for part, event in operation.events.items():
                by_part[part].append((operation, event))
    for account, rank in used:
        steps = settled(account.steps)
        total = sum(s.accounting["comm_wait_ns"] - s.message_wait_ns for s in steps) / len(steps)
        victims[rank].append(total)
        shares = _exposed(PartView(study.run, account.part), by_part[account.part], rank, _windows(steps))
        whole = sum(length for _, length in shares)
        for operation, length in shares:
            for last in operation.last_ranks:
                culprit[last] += total * length / whole / len(used) / len(operation.last_ranks)
                lasts[last][operation.id] = operation
    mean = sum(map(sum, victims.values())) / len(used) if used else 0.0
    ordered = dict(sorted(culprit.items(), key=lambda item: -item[1]))
    by_victim = {rank: sum(totals) / len(totals) for rank, totals in victims.items()}
    return WaitingResult(mean, ordered, by_victim, {r: tuple(lasts[r].values()) for r in ordered}, _entries(study, comm))


def _windows(steps: tuple[StepAccount, ...]) -> Cover:
    """The time that these steps take together."""
    starts = np.array([s.ts for s in steps], np.int64)
    return intervals.union(starts, starts + np.array([s.dur_ns for s in steps], np.int64))


def _exposed(view: PartView, operations: list[tuple[Operation, int]], rank: int, windows: Cover) -> list[tuple[Operation, int]]:
    """What this part waits in each operation outside its own compute and copies, inside its steps; ns, where above zero."""
    busy = intervals.join(view.device_compute, view.device_copy) if view.on_device else view.host_compute
    free = intervals.subtract(windows, busy)
    waited = [(o, e, w) for o, e in operations if (w := o.wait_ns.get(rank))]
    starts = view.events["ts"][np.array([e for _, e, _ in waited], np.int64)]
    lengths = intervals.measure(free, starts, starts + np.array([w for _, _, w in waited], np.int64))
    return [(o, length) for (o, _, _), length in zip(waited, lengths.tolist(), strict=True) if length > 0]


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
