"""Accounting: every millisecond of a step has one name.

The device step k runs from the first compute kernel on the main compute stream launched in host step k to the first one
launched in the next step; the last ends when the last device operation launched in its host interval ends, and is not
complete. On CPU jobs the host interval counts. Priority: compute > copy > communication > idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dtprof import intervals
from dtprof.analyse.compute_recompute import recomputed
from dtprof.analyse.covers import PartView
from dtprof.analyse.messages import Message, messages_of
from dtprof.analyse.results import ACCOUNTING, AccountingResult, DeviceTotals, HostTotals, PartAccount, StepAccount
from dtprof.analyse.windows import captured_runs, unseen_ns
from dtprof.intervals import Cover
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING
from dtprof.table import Table


def analyse(study: Lens) -> AccountingResult:
    """Account for every part of the run."""
    run = study.run
    shares = run.table("participations")
    parts = _of_one_kind(run, [_part(run, p.ordinal, p.rank, shares) for p in run.parts])
    return AccountingResult(parts, any(p.device.span_ns for p in parts))


def _of_one_kind(run: Run, parts: list[PartAccount]) -> tuple[PartAccount, ...]:
    """A step in which one rank compiles, saves or evaluates is no training step of those that wait for it either."""
    others: dict[tuple[int, int, int], str] = {}
    for part, account in zip(run.parts, parts, strict=True):
        others |= {(part.attempt, part.window, s.step): s.kind for s in account.steps if s.kind != "train"}
    return tuple(
        replace(
            account,
            steps=tuple(replace(s, kind=others.get((part.attempt, part.window, s.step), s.kind)) for s in account.steps),
        )
        for part, account in zip(run.parts, parts, strict=True)
    )


def _part(run: Run, ordinal: int, rank: int | None, shares: Table) -> PartAccount:
    view = PartView(run, ordinal)
    lost = graphs_without_kernels(view)
    borders = device_steps(view) if view.on_device else host_steps(view)
    split = _split_comm(view, shares, messages_of(run).get(ordinal, {}))
    covers = _StepCovers.of(view, split, bool(lost))
    return PartAccount(
        ordinal,
        rank,
        device_totals(view),
        host_totals(view),
        tuple(covers.account(b) for b in borders),
        f"{lost} graph launches have no kernels in the trace: idle and busy times cannot be told" if lost else "",
    )


@dataclass(frozen=True)
class Border:
    """Where one step begins and ends."""

    step: int
    start: int
    end: int
    complete: bool
    kind: str = "train"
    marked: str = "marked"


def device_steps(view: PartView) -> list[Border]:
    """Device steps of a part; host steps without a kernel on the main stream are skipped."""
    steps = view.run.table("steps", view.part)
    launched = view.events["step"][view.main_rows]
    first: dict[int, int] = {}
    for step, ts in zip(launched.tolist(), view.events["ts"][view.main_rows].tolist(), strict=True):
        first.setdefault(step, ts)
    order = np.argsort(steps["host_ts"], kind="stable")
    rows = [i for i in order.tolist() if int(steps["step"][i]) in first]
    kinds, marked = steps.text("kind"), steps.text("marked")
    run_of = {step: number for number, (a, b) in enumerate(captured_runs(steps)) for step in range(a, b + 1)}
    run_of = {step: run_of.get(step, -1) for step in first}
    borders = []
    for at, i in enumerate(rows):
        step = int(steps["step"][i])
        start = first[step]
        last = at + 1 == len(rows) or run_of[step] != run_of[int(steps["step"][rows[at + 1]])]
        end = _last_end(view, step) if last else first[int(steps["step"][rows[at + 1]])]
        if end > start:
            borders.append(Border(step, start, end, not last, kinds[i] or "train", marked[i] or "marked"))
    return borders


def _last_end(view: PartView, step: int) -> int:
    rows = view.device_rows[view.device_step == step]
    return int(view.end[rows].max())


def host_steps(view: PartView) -> list[Border]:
    """Steps of a CPU job: the host intervals that the tracer saw whole."""
    steps = view.run.table("steps", view.part)
    kinds, marked = steps.text("kind"), steps.text("marked")
    return [
        Border(int(s), int(t), int(t + d), bool(c), kinds[i] or "train", marked[i] or "marked")
        for i, (s, t, d, c, seen) in enumerate(
            zip(*(steps[n].tolist() for n in ("step", "host_ts", "host_dur", "complete", "captured")), strict=True)
        )
        if seen and d > 0
    ]


def device_totals(view: PartView) -> DeviceTotals:
    """Unions of the device spans over the whole file."""
    rows = view.device_rows
    if len(rows) == 0:
        return DeviceTotals(0, 0, 0, 0, 0, 0, 0, 0, 0)
    compute, copy, comm = view.device_compute, view.device_copy, view.device_comm
    steps, starts = view.run.table("steps", view.part), view.events["ts"][rows]
    span = int(view.end[rows].max() - starts.min()) - unseen_ns(steps, view.device_step, starts, view.end[rows])
    busy = intervals.total(intervals.join(compute, copy, comm))
    exposed = intervals.total(intervals.subtract(comm, intervals.join(compute, copy)))
    return DeviceTotals(
        span, busy, span - busy, intervals.total(compute), intervals.total(comm), intervals.total(copy),
        intervals.total(intervals.intersect(comm, compute)), exposed, len(view.comm_rows),
    )  # fmt: skip


def host_totals(view: PartView) -> HostTotals:
    """Unions on the host over the whole file."""
    compute, comm = view.host_compute, view.host_comm
    both = intervals.join(compute, comm)
    span = int(both[1][-1] - both[0][0]) if len(both[0]) else 0
    steps, events = view.run.table("steps", view.part), view.events
    span -= unseen_ns(steps, events["step"], events["ts"], view.end) if span else 0
    return HostTotals(
        span, intervals.total(compute), intervals.total(comm), intervals.total(intervals.intersect(comm, compute)),
        intervals.total(intervals.subtract(comm, compute)),
    )  # fmt: skip


def graphs_without_kernels(view: PartView) -> int:
    """Graph launches whose kernels are missing although other device work was recorded."""
    names = view.events.values("name")
    graph = np.array(["GraphLaunch" in n for n in names] + [False], bool)
    calls = np.flatnonzero(graph[view.events["name"]] & view.events.is_("kind", "runtime"))
    if len(calls) == 0 or not view.on_device:
        return 0
    correlation = view.events["correlation"]
    owned = set(correlation[view.device_rows].tolist())
    return sum(1 for c in correlation[calls].tolist() if c == MISSING or c not in owned)


@dataclass(frozen=True)
class CommSplit:
    """Communication of a part by what it does: moving, waiting for a late rank, not told, waiting for a message."""

    transfer: Cover
    wait: Cover
    unsplit: Cover
    messages: Cover


def _split_comm(view: PartView, shares: Table, messages: dict[int, Message]) -> CommSplit:
    """Each communication span is waiting until its transfer begins; without a known wait it is unsplit."""
    rows = view.comm_rows if view.on_device else view.host_comm_rows
    mine = shares["part"] == view.part
    wait = np.full(len(view.events), MISSING, np.int64)
    known = shares["wait"][mine]
    told = known != MISSING
    wait[shares["event"][mine][told]] = known[told]
    end, message = view.end.copy(), np.zeros(len(view.events), bool)
    for event, found in messages.items():
        end[event] = found.end
        if found.wait_ns is not None:
            wait[event], message[event] = found.wait_ns, True
    ts, ends, waits = view.events["ts"][rows], end[rows], wait[rows]
    split = waits != MISSING
    turn = np.where(split, ts + waits, ends)
    sent = message[rows]
    return CommSplit(
        intervals.union(turn[split], ends[split]),
        intervals.union(ts[split & ~sent], turn[split & ~sent]),
        intervals.union(ts[~split], ends[~split]),
        intervals.union(ts[sent], turn[sent]),
    )


@dataclass(frozen=True)
class _StepCovers:
    """Disjoint covers of a part, one per accounting key but for idle, and what splits idle."""

    view: PartView
    busy: dict[str, Cover]
    messages: Cover
    comm: Cover
    copy: Cover
    input: Cover
    checkpoint: Cover
    again: Cover | None
    unreliable: bool

    @classmethod
    def of(cls, view: PartView, split: CommSplit, unreliable: bool) -> _StepCovers:
        waits_input, waits_checkpoint = view.phase_cover("data"), view.phase_cover("checkpoint")
        if view.on_device:
            compute, copy, comm = view.device_compute, view.device_copy, view.device_comm
        else:
            compute = intervals.subtract(view.host_compute, intervals.join(waits_input, waits_checkpoint))
            copy, comm = intervals.empty(), view.host_comm
        taken = intervals.join(compute, copy)
        transfer = intervals.subtract(split.transfer, taken)
        late = intervals.subtract(split.wait, intervals.join(taken, transfer))
        messages = intervals.subtract(split.messages, intervals.join(taken, transfer, late))
        wait = intervals.join(late, messages)
        unsplit = intervals.subtract(split.unsplit, intervals.join(taken, transfer, wait))
        busy = {
            "compute_ns": compute,
            "copy_exposed_ns": intervals.subtract(copy, compute),
            "comm_wait_ns": wait,
            "comm_transfer_ns": transfer,
            "comm_unsplit_ns": unsplit,
        }
        return cls(view, busy, messages, comm, copy, waits_input, waits_checkpoint, recomputed(view), unreliable)

    def account(self, border: Border) -> StepAccount:
        """Account for one step; the keys sum to its duration."""
        lo, hi = border.start, border.end
        inside = {key: intervals.clip(cover, lo, hi) for key, cover in self.busy.items()}
        spent = dict.fromkeys(ACCOUNTING, 0) | {key: intervals.total(cover) for key, cover in inside.items()}
        idle = intervals.complement(intervals.join(*inside.values()), lo, hi)
        for key, length in self._idle(idle).items():
            spent[key] += length
        comm = intervals.total(intervals.clip(self.comm, lo, hi))
        copy = intervals.total(intervals.clip(self.copy, lo, hi))
        exposed = spent["comm_wait_ns"] + spent["comm_transfer_ns"] + spent["comm_unsplit_ns"]
        return StepAccount(
            border.step, lo, hi - lo, border.complete, self.view.on_device, spent, comm - exposed,
            copy - spent["copy_exposed_ns"], self._recomputed(lo, hi), border.kind, border.marked,
            intervals.total(intervals.clip(self.messages, lo, hi)),
        )  # fmt: skip

    def _recomputed(self, lo: int, hi: int) -> int | None:
        return None if self.again is None else intervals.total(intervals.clip(self.again, lo, hi))

    def _idle(self, idle: Cover) -> dict[str, int]:
        """Idle by cause: not launched yet (of that, input and checkpoint apart), waiting though launched, not told."""
        if self.unreliable:
            return {"idle_other_ns": intervals.total(idle)}
        if self.view.on_device:
            launched, untold = self._launched(idle)
            waiting = intervals.subtract(idle, intervals.join(launched, untold))
        else:
            launched, untold, waiting = intervals.empty(), intervals.empty(), idle
        for_input = intervals.intersect(waiting, self.input)
        for_checkpoint = intervals.subtract(intervals.intersect(waiting, self.checkpoint), for_input)
        rest = intervals.total(waiting) - intervals.total(for_input) - intervals.total(for_checkpoint)
        return {
            "idle_host_ns": rest,
            "idle_input_ns": intervals.total(for_input),
            "idle_checkpoint_ns": intervals.total(for_checkpoint),
            "idle_dependency_ns": intervals.total(launched),
            "idle_other_ns": intervals.total(untold),
        }

    def _launched(self, idle: Cover) -> tuple[Cover, Cover]:
        """Of the gaps, what lies after the launch call of the next operation, and gaps whose next launch is not known."""
        starts, returned = self.view.earliest_launch
        nearest = np.searchsorted(starts, idle[1], "left")
        exists = nearest < len(starts)
        launch = np.where(exists, returned[np.minimum(nearest, len(starts) - 1)], -1)
        told = launch >= 0
        begin = np.maximum(launch, idle[0])
        keep = told & (begin < idle[1])
        return (begin[keep], idle[1][keep]), (idle[0][~told], idle[1][~told])
