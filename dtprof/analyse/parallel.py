"""What each group of ranks sends along its mesh axis, and how rings overlap: tensor, sequence, context and expert parallelism.

A ring (Liu et al., Ring Attention, 2023) passes keys and values on while a rank attends to those that it holds: a message costs
only what of its moving no computing hides. Of causal attention over a sequence that is cut into one part per rank, rank r of c
has (2r + 1) / c of the mean work, so that compute and operations grow along the group; a zigzag split has them alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.links import hosts_of_ranks
from dtprof.analyse.messages import messages_of
from dtprof.analyse.results import AccountingResult, CommResult, Operation, PartAccount, settled
from dtprof.intervals import Cover
from dtprof.protocols import Lens
from dtprof.ranges import parse_range
from dtprof.run import Run
from dtprof.schema import POINT_TO_POINT

# operations per rank that differ by less than this share are the same number
_SAME = 0.02


@dataclass(frozen=True)
class GroupTraffic:
    """What one group of ranks does, per rank and step: operations, bytes (None: some are not known), ns that data move, that
    ranks wait, and that data move while nothing computes. ``axis`` and ``hosts`` are empty where not known; ``by_layer``: layer
    -> ns moving.
    """

    axis: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    operations: tuple[Operation, ...]
    per_step: float
    bytes_per_step: float | None
    transfer_ns: float
    wait_ns: float
    exposed_ns: float
    by_layer: dict[str, float]


@dataclass(frozen=True)
class Ring:
    """Messages between neighbours, per rank and step: how many, ns that they move and wait, and ns of moving left exposed;
    ``events``: part -> rows.
    """

    messages: float
    moving_ns: float
    wait_ns: float
    exposed_ns: float
    events: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Split:
    """Context parallelism: compute per step in ns and operators per step, by rank of the group in its order."""

    compute_ns: dict[int, float]
    operators: dict[int, float]

    @property
    def ascending(self) -> bool:
        """Do compute and operators grow from each rank to the next, as causal attention over one part per rank has it?"""
        counts, times = list(self.operators.values()), list(self.compute_ns.values())
        grows = all(b > a * (1 + _SAME) for a, b in pairwise(counts))
        return len(counts) > 1 and grows and all(b > a for a, b in pairwise(times))

    @property
    def excess_ns(self) -> float:
        """What the last rank has beyond the mean: what all others wait for, on average."""
        times = list(self.compute_ns.values())
        return times[-1] - float(np.mean(times))


@dataclass(frozen=True)
class ParallelResult:
    """Groups by what they expose, most first; the ring of each part of a mesh with messages but no pipeline; splits."""

    groups: tuple[GroupTraffic, ...]
    ring: Ring | None
    splits: tuple[Split, ...]


def analyse(study: Lens) -> ParallelResult:
    """Traffic of all groups, from operations inside settled steps."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    run = study.run
    accounts = {p.part: p for p in accounting.parts if p.steps}
    steps = {s.step for p in accounts.values() for s in settled(p.steps)}
    views = {part: PartView(run, part) for part in accounts}
    busy = {part: _busy(view) for part, view in views.items()}
    by_group: dict[str, list[Operation]] = defaultdict(list)
    for o in comm.operations:
        if o.op not in POINT_TO_POINT and o.step in steps:
            by_group[o.group].append(o)
    groups = [
        g for name, mine in by_group.items() if (g := _group(run, name, tuple(mine), views, busy, len(steps))) is not None
    ]
    ring = _ring(run, accounts, busy) if _has_axis(run, "cp") else None
    groups.sort(key=lambda g: -g.exposed_ns)
    return ParallelResult(tuple(groups), ring, tuple(_splits(run, accounts, views)))


def axis_of(run: Run, ranks: tuple[int, ...]) -> str:
    """Mesh axis of the group with these members, "" where the job does not say."""
    for part in run.parts:
        groups = run.table("groups", part.ordinal)
        for members, axis in zip(groups["ranks"].tolist(), groups.text("axis"), strict=True):
            if axis and members is not None and tuple(members) == ranks:
                return axis
    return ""


def hosts_of(run: Run, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Hosts of these ranks; () where one of them is not known."""
    hosts = hosts_of_ranks(run)
    found = [hosts.get(rank) for rank in ranks]
    return tuple(sorted({h for h in found if h is not None})) if None not in found else ()


def _has_axis(run: Run, axis: str) -> bool:
    return run.manifest.mesh.get(axis, 1) > 1


def _busy(view: PartView) -> Cover:
    return intervals.join(view.device_compute, view.device_copy) if view.on_device else view.host_compute


def _group(
    run: Run, name: str, mine: tuple[Operation, ...], views: dict[int, PartView], busy: dict[int, Cover], steps: int
) -> GroupTraffic | None:
    pieces = name.split(",")
    if len(pieces) < 2 or not all(r.isdigit() for r in pieces):
        return None
    ranks = tuple(map(int, pieces))
    present = len({part for o in mine for part in o.events}) or 1
    moving: dict[int, list[tuple[int, int]]] = defaultdict(list)
    by_layer: dict[str, float] = defaultdict(float)
    waited = 0
    ranks_of = {p.ordinal: p.rank for p in run.parts}
    for o in mine:
        layer = parse_range(o.label)[1].get("layer")
        for part, event in o.events.items():
            if part not in views:
                continue
            wait = o.wait_ns.get(ranks_of[part] or 0) or 0
            start, end = int(views[part].events["ts"][event]) + wait, int(views[part].end[event])
            moving[part].append((start, end))
            waited += wait
            if layer is not None:
                by_layer[str(layer)] += (end - start) / present / steps
    covers = {p: intervals.union(*np.array(spans, np.int64).T) for p, spans in moving.items()}
    exposed = sum(intervals.total(intervals.subtract(cover, busy[p])) for p, cover in covers.items())
    sizes = [o.bytes for o in mine if o.op != "barrier"]
    known = None if any(b is None for b in sizes) else sum(b for b in sizes if b is not None) / steps
    moved = sum(intervals.total(cover) for cover in covers.values())
    per = present * steps
    return GroupTraffic(
        axis_of(run, ranks), ranks, hosts_of(run, ranks), mine, len(mine) / steps, known, moved / per, waited / per,
        exposed / per, dict(by_layer),
    )  # fmt: skip


def _ring(run: Run, accounts: dict[int, PartAccount], busy: dict[int, Cover]) -> Ring | None:
    count = moving = waits = exposed = steps = 0
    events: dict[int, tuple[int, ...]] = {}
    for part, found in messages_of(run).items():
        if part not in accounts:
            continue
        numbers = {s.step for s in settled(accounts[part].steps)}
        step = run.table("events", part)["step"]
        known = [m for m in found.values() if m.moves is not None and int(step[m.event]) in numbers]
        if not known:
            continue
        spans = np.array([(m.moves, m.end, m.start) for m in known], np.int64).T
        cover = intervals.union(spans[0], spans[1])
        count, steps = count + len(known), steps + len(numbers)
        moving += intervals.total(cover)
        exposed += intervals.total(intervals.subtract(cover, busy[part]))
        waits += intervals.total(intervals.subtract(intervals.union(spans[2], spans[0]), intervals.join(busy[part], cover)))
        events[part] = tuple(m.event for m in known)
    return Ring(count / steps, moving / steps, waits / steps, exposed / steps, events) if steps else None


def _splits(run: Run, accounts: dict[int, PartAccount], views: dict[int, PartView]) -> list[Split]:
    """One for every group along the axis cp whose ranks are all there."""
    members = {tuple(g["ranks"]) for g in run.manifest.groups if g.get("axis") == "cp" and isinstance(g.get("ranks"), list)}
    parts = {a.rank: a for a in accounts.values() if a.rank is not None}
    out = []
    for ranks in sorted(members):
        if all(r in parts for r in ranks):
            compute, operators = {}, {}
            for r in ranks:
                steps, view = settled(parts[r].steps), views[parts[r].part]
                compute[r] = float(np.median([s.accounting["compute_ns"] for s in steps]))
                rows = view.device_rows if view.on_device else np.flatnonzero(view.events.is_("kind", "cpu_op"))
                operators[r] = float(np.isin(view.events["step"][rows], [s.step for s in steps]).sum() / len(steps))
            out.append(Split(compute, operators))
    return out
