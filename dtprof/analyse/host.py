"""The host in the way: garbage collection, and calls that wait until the device has run dry.

``study.result("host")`` is a ``HostResult``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.accounting import graphs_without_kernels
from dtprof.analyse.covers import PartView
from dtprof.analyse.host_steps import metric, usable
from dtprof.analyse.results import AccountingResult, settled
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING32, ROLES

# a collection that takes so long is felt
_NOTABLE_NS = 1_000_000
# runtime calls that return when the device has done what was queued before
BLOCKING_CALLS = ("Synchronize",)
# copies that do so, by their whole name: those with Async in it return at once
_BLOCKING_COPIES = ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH", "cuMemcpyHtoD")


@dataclass(frozen=True)
class Collections:
    """Garbage collection. ``per_rank``: ns per step, mean; ``joint_ns``: mean over the steps of the longest of all ranks,
    which is what a job that waits for its slowest rank loses; ``step_ns``: mean of the same steps; ``again``: in how many of
    them a rank collected for a millisecond or more."""

    per_rank: dict[int, float]
    joint_ns: float
    step_ns: float
    steps: tuple[int, ...]
    again: int


@dataclass(frozen=True)
class Stall:
    """One kind of blocking call: ``call`` inside the operator ``by`` (None: outside any). ``idle_ns``: device time that passed
    from when the queue was empty inside the call until the next operation began, mean per step and part; ``rows``: part ->
    calls."""

    call: str
    by: str | None
    idle_ns: float
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many calls emptied the device."""
        return sum(map(len, self.rows.values()))


@dataclass(frozen=True)
class HostResult:
    """``gc`` is None where it was not recorded; ``stalls``: dearest first; ``why`` says what could not be told."""

    gc: Collections | None
    stalls: tuple[Stall, ...]
    why: dict[str, str]


def analyse(study: Lens) -> HostResult:
    """Collections from the host collector, blocking calls from the trace."""
    why: dict[str, str] = {}
    collections = _collections(study.run)
    if collections is None:
        why["gc"] = "garbage collection was not recorded (collector host)"
    return HostResult(collections, _stalls(study, why), why)


def _collections(run: Run) -> Collections | None:
    spent: dict[int, dict[int, float]] = {}
    lengths: dict[int, int] = {}
    for part in run.parts:
        steps, read = usable(run, part.ordinal), metric(run, part.ordinal, "gc_time")
        inside = {step: ns for step, ns in _inside(run, part.ordinal).items() if step <= max(read, default=-1)}
        told, beside = read | inside, _beside_captures(run, part.ordinal)
        mine = {step: told[step] for step in steps if step in told and step not in beside}
        if part.rank is not None and mine:
            spent.setdefault(part.rank, {}).update(mine)
            lengths |= {step: steps[step] for step in mine}
    if not spent:
        return None
    per_rank = {rank: float(np.mean(list(of.values()))) for rank, of in sorted(spent.items())}
    common = sorted(set.intersection(*(set(of) for of in spent.values())))
    # readings of several ranks that share no step are compared by their means
    joint = float(np.mean([max(of[step] for of in spent.values()) for step in common])) if common else max(per_rank.values())
    again = len({step for of in spent.values() for step, ns in of.items() if ns >= _NOTABLE_NS})
    return Collections(per_rank, joint, float(np.mean(list(lengths.values()))), tuple(sorted(lengths)), again)


def _beside_captures(run: Run, part: int) -> set[int]:
    """Steps before and behind captured ones: a tracer that starts or ends leaves garbage which is not the job's."""
    steps = run.table("steps", part)
    captured = set(steps["step"][steps["captured"]].tolist())
    return ({s - 1 for s in captured} | {s + 1 for s in captured}) - captured


def _inside(run: Run, part: int) -> dict[int, float]:
    """Step -> ns of the recorded pauses that began in it: those between two steps stopped dtprof, not the job."""
    samples, steps = run.table("samples", part), run.table("steps", part)
    pauses = samples.is_("metric", "gc_pause")
    begins, lasts = samples["ts"][pauses], samples["value"][pauses]
    columns = (steps["step"].tolist(), steps["host_ts"].tolist(), steps["host_dur"].tolist())
    found = {step: float(lasts[(begins >= ts) & (begins < ts + dur)].sum()) for step, ts, dur in zip(*columns, strict=True)}
    return found if len(begins) else {}


def _stalls(study: Lens, why: dict[str, str]) -> tuple[Stall, ...]:
    accounting: AccountingResult = study.result("accounting")
    idle: dict[tuple[str, str | None], float] = defaultdict(float)
    rows: dict[tuple[str, str | None], dict[int, tuple[int, ...]]] = defaultdict(dict)
    parts = [p for p in accounting.parts if p.steps and p.steps[0].on_device]
    for account in parts:
        view = PartView(study.run, account.part)
        if graphs_without_kernels(view):
            why["stalls"] = account.unreliable
            continue
        steps = settled(account.steps)
        calls, lost = _emptied(view, [(s.ts, s.ts + s.dur_ns) for s in steps])
        names = view.events.values("name")
        found: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for call, ns in zip(calls.tolist(), lost.tolist(), strict=True):
            key = names[int(view.events["name"][call])], _operator(view, call)
            idle[key] += ns / len(steps) / len(parts)
            found[key].append(call)
        for key, mine in found.items():
            rows[key][account.part] = tuple(mine)
    made = [Stall(call, by, ns, rows[call, by]) for (call, by), ns in idle.items()]
    return tuple(sorted(made, key=lambda s: -s.idle_ns))


def _emptied(view: PartView, windows: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Blocking calls inside which the device ran dry, and how long it then was idle; ns. Each gap counts for one call."""
    calls = np.flatnonzero(_blocking(view))
    busy = intervals.join(view.device_compute, view.device_copy, view.device_comm)
    gaps = intervals.join(*(intervals.complement(busy, lo, hi) for lo, hi in windows))
    first, last = view.events["ts"][calls], view.end[calls]
    # the gap that begins inside the call: what was queued before it has just ended
    at = np.searchsorted(gaps[0], first, "right")
    inside = at < len(gaps[0])
    inside[inside] = gaps[0][at[inside]] <= last[inside]
    # where a step begins, a gap may only seem to
    inside[inside] = ~np.isin(gaps[0][at[inside]], [lo for lo, _ in windows])
    calls, at = calls[inside], at[inside]
    _, once = np.unique(at, return_index=True)
    return calls[once], (gaps[1] - gaps[0])[at[once]]


def _blocking(view: PartView) -> NDArray[np.bool_]:
    names = view.events.values("name")
    blocks = np.array([n in _BLOCKING_COPIES or any(s in n for s in BLOCKING_CALLS) for n in names] + [False], bool)
    threads = np.isin(view.lane_role, [ROLES.index("training"), ROLES.index("autograd")])
    mine: NDArray[np.bool_] = blocks[view.events["name"]] & view.events.is_("kind", "runtime") & threads
    return mine


def _operator(view: PartView, row: int) -> str | None:
    """The outermost operator around a call."""
    found, events = None, view.events
    parent, operator = events["parent"], events.code("kind", "cpu_op")
    at = int(parent[row])
    while at != MISSING32 and at >= 0:
        if int(events["kind"][at]) == operator:
            found = at
        at = int(parent[at])
    return None if found is None else events.values("name")[int(events["name"][found])]
