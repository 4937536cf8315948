"""Sharded parameters: gathers and reductions of every unit that computing does not hide, and why it does not.

Causes, by what is measured of an operation that is mostly exposed:

    first       the first gather of a step, or its last reduction: there is nothing to hide it behind
    sync        the host was held by a synchronising call, and asked for it as soon as that returned
    launch      it started as soon as the host had asked for it: the host asked late
    order       asked for earlier, it stood behind another operation of its stream
    dependency  asked for earlier, and it waited for something else
    bandwidth   it ran beside computing for the most part, and took longer than that
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dtprof import intervals
from dtprof.analyse.calls import calls_of
from dtprof.analyse.covers import PartView
from dtprof.analyse.parallel import axis_of
from dtprof.analyse.results import AccountingResult, CommResult, Operation, PartAccount, settled
from dtprof.catalogue.collectives import operation
from dtprof.protocols import Lens
from dtprof.ranges import parse_range
from dtprof.run import Run

_OPS = ("all_gather", "reduce_scatter")
# an operation of which less is exposed is hidden; one of which this much is hidden ran beside computing
_LEAST, _BESIDE = 0.1, 0.5
# an operation starts at once where it starts within this share of what is exposed, or this long, after what it waited for
_AT_ONCE, _AT_ONCE_NS = 0.25, 50_000
_LEAST_PER_STEP = 2


@dataclass
class Exposed:
    """Exposed operations of one cause: ns per rank and step; units and ns; ``behind``: what held them, in words, and how often;
    ``bound_ns``: what running beside what they stood behind could save.
    """

    ns: float = 0.0
    count: int = 0
    units: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    behind: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bound_ns: float = 0.0
    events: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class FsdpResult:
    """(operation, cause) -> what is exposed; ns moving and hidden of all, per rank and step; operations per step."""

    exposed: dict[tuple[str, str], Exposed]
    moving_ns: float = 0.0
    hidden_ns: float = 0.0
    per_step: float = 0.0


def analyse(study: Lens) -> FsdpResult:
    """Gathers and reductions of parameters, in settled steps; empty where there are none."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    run = study.run
    mine = [o for o in comm.operations if o.step is not None and _sharding(run, o)]
    steps = {s.step for p in accounting.parts for s in settled(p.steps)}
    mine = [o for o in mine if o.step in steps]
    if len(mine) < _LEAST_PER_STEP * max(len(steps), 1):
        return FsdpResult({})
    found: dict[tuple[str, str], Exposed] = defaultdict(Exposed)
    totals = [0.0, 0.0]
    accounts = [p for p in accounting.parts if p.steps]
    for account in accounts:
        _part(run, account, mine, found, totals, len(accounts) * len(steps))
    return FsdpResult(dict(found), totals[0], totals[1], len(mine) / len(steps))


def _sharding(run: Run, o: Operation) -> bool:
    """A gather or a reduction of parameters: FSDP's by its range, else any that is not of another axis."""
    if "FSDP::" in o.label:
        return o.op in (*_OPS, "all_reduce")
    named = o.op in _OPS and all(r.isdigit() for r in o.group.split(","))
    return named and axis_of(run, tuple(map(int, o.group.split(",")))) not in ("tp", "ep", "cp", "pp")


def _part(
    run: Run, account: PartAccount, mine: list[Operation], found: dict[tuple[str, str], Exposed], totals: list[float], over: int
) -> None:
    view = PartView(run, account.part)
    if not view.on_device and not any("FSDP::" in o.label for o in mine):
        return
    busy = intervals.join(view.device_compute, view.device_copy) if view.on_device else view.host_compute
    asked = _asked(view)
    syncs = _syncs(view)
    ordered = sorted(
        (o for o in mine if account.part in o.events), key=lambda o: int(view.events["ts"][o.events[account.part]])
    )
    before = _before(view)
    firsts = {min((o for o in ordered if o.step == s and _kind(o) == "all_gather"), key=lambda o: o.first_start_ns).id
              for s in {o.step for o in ordered if _kind(o) == "all_gather"}}  # fmt: skip
    lasts = {max((o for o in ordered if o.step == s and _kind(o) != "all_gather"), key=lambda o: o.first_start_ns).id
             for s in {o.step for o in ordered if _kind(o) != "all_gather"}}  # fmt: skip
    previous = -(1 << 62)
    for o in ordered:
        event = o.events[account.part]
        start, end = int(view.events["ts"][event]), int(view.end[event])
        start += o.wait_ns.get(account.rank if account.rank is not None else -1) or 0
        span = (np.array([start]), np.array([end]))
        exposed = int(intervals.total(intervals.subtract(span, busy)))
        totals[0] += (end - start) / over
        totals[1] += (end - start - exposed) / over
        launched = asked.get(event, start)
        if exposed >= _LEAST * max(end - start, 1):
            cause, behind, bound = _cause(view, o, event, exposed, (previous, launched), syncs, before)
            cause = "first" if o.id in firsts or o.id in lasts else cause
            into = found[_kind(o), cause]
            into.ns += exposed / over
            into.count += 1
            into.units[_unit(view, o, event)] += exposed / over
            into.bound_ns += (bound if cause == "order" else exposed) / over
            into.events[account.part].append(event)
            if behind and cause != "first":
                into.behind[behind] += 1
        previous = launched


def _kind(o: Operation) -> str:
    """Gather or reduction: on gloo a reduce-scatter is an all-reduce."""
    return "all_gather" if o.op == "all_gather" else "reduce_scatter"


def _cause(
    view: PartView,
    o: Operation,
    event: int,
    exposed: int,
    asked: tuple[int, int],
    syncs: list[tuple[int, int, str]],
    before: dict[int, tuple[int, str, int]],
) -> tuple[str, str, int]:
    """(cause, what held it, at most ns that another order saves)."""
    start, length = int(view.events["ts"][event]), max(int(view.events["dur"][event]), 1)
    if exposed < (1 - _BESIDE) * length:
        return "bandwidth", "", exposed
    near = max(_AT_ONCE * exposed, _AT_ONCE_NS)
    previous, launched = asked
    place = bisect_left(syncs, (launched, 0, "")) - 1
    if start - launched > near and event in before:
        end, name, took = before[event]
        if start - end <= near and launched < end:
            return "order", name, min(took, length)
        return "dependency", "", exposed
    if place >= 0 and syncs[place][1] <= launched and launched - syncs[place][1] <= near and syncs[place][0] > previous:
        return "sync", syncs[place][2], exposed
    return ("launch", "", exposed) if start - launched <= near else ("dependency", "", exposed)


def _asked(view: PartView) -> dict[int, int]:
    """Event of an operation -> when the host had asked for it: its launch, or the call that handed it over."""
    comm = view.run.table("comm", view.part)
    if view.on_device:
        launch = view.events["launch"]
        return {e: int(view.events["ts"][launch[e]]) for e in comm["event"].tolist() if launch[e] >= 0}
    rows = comm["event"].tolist()
    return {rows[row]: int(view.events["ts"][call]) for row, call in calls_of(view.events, comm).items()}


def _syncs(view: PartView) -> list[tuple[int, int, str]]:
    """(begin, end, name) of the calls that hold the host until the device has done something; with the operator around."""
    names = view.events.values("name")
    holds = np.array(["Synchronize" in n for n in names] + [False], bool)
    rows = np.flatnonzero(holds[view.events["name"]] & view.events.is_("kind", "runtime", "sync") & (view.lane_device < 0))
    out = []
    for row in rows.tolist():
        name, parent = names[int(view.events["name"][row])], int(view.events["parent"][row])
        around = names[int(view.events["name"][parent])] if parent >= 0 else ""
        told = f"{name} in {parse_range(around)[0]}" if around and not around.startswith("ProfilerStep") else name
        out.append((int(view.events["ts"][row]), int(view.end[row]), told))
    return sorted(out)


def _before(view: PartView) -> dict[int, tuple[int, str, int]]:
    """Device operation -> end, name and length of the communication before it on its stream."""
    out: dict[int, tuple[int, str, int]] = {}
    last: dict[int, int] = {}
    names = view.events.values("name")
    for row in view.comm_rows[np.argsort(view.events["ts"][view.comm_rows], kind="stable")].tolist():
        lane = int(view.events["lane"][row])
        if lane in last:
            at = last[lane]
            name = names[int(view.events["name"][at])]
            out[row] = int(view.end[at]), operation(name) or name, int(view.events["dur"][at])
        last[lane] = row
    return out


def _unit(view: PartView, o: Operation, event: int) -> str:
    """What is gathered: the unit in FSDP's range, else the layer of the event; "" where neither is known."""
    if "(" in o.label:
        return o.label.partition("(")[2].rstrip(")")
    if " for " in o.label:
        return o.label.partition(" for ")[2]
    code = int(view.events["layer"][event])
    return str(view.events.values("layer")[code]) if code >= 0 else str(parse_range(o.label)[1].get("layer", ""))
