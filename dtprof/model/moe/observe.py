"""What the step graph of a run holds of its experts: the time between dispatch and combine, and their all-to-alls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtprof.model.graph.graph import EdgeKind, NodeKind, StepGraph
from dtprof.model.moe.loads import Load, owned_twice, read
from dtprof.ranges import parse_range
from dtprof.run import Run
from dtprof.schema import MISSING

# the range around an all-to-all -> does it bring tokens to the experts, in forward or in backward?
_TO_EXPERTS = {"dispatch": True, "combine": False, "combine backward": True, "dispatch backward": False}
_UNNAMED = (
    "no all-to-all of the run is known as dispatch or combine of a layer: mark them, dtprof.annotate('dispatch', layer='0') "
    "and dtprof.annotate('combine', layer='0')"
)
_NO_TOKENS = (
    "tokens of the experts are not recorded: on the rank that has the expert, "
    "dtprof.metric('moe_tokens', count, layer='0', expert=3) in every step"
)
Group = tuple[int, ...]
Place = tuple[Group, str, int]  # parts that share the experts, layer, step


@dataclass(frozen=True)
class AllToAll:
    """One named all-to-all of one part: its nodes in the graph, and the bytes that the part sends and receives."""

    part: int
    step: int
    layer: str
    word: str
    call: int
    lane: int
    meet: int
    sent: int
    received: int


@dataclass(frozen=True)
class Section:
    """A pass of one part through its experts of a layer: the edges of the graph in it, and its ns, without waiting."""

    part: int
    place: Place
    word: str
    edges: tuple[int, ...]
    nodes: tuple[int, ...]
    ns: float


@dataclass(frozen=True)
class Transfer:
    """An all-to-all over its ranks: node, ns, and by part the bytes sent and received; ``to_experts``: tokens go there."""

    meet: int
    place: Place
    to_experts: bool
    ns: float
    sent: dict[int, int]
    received: dict[int, int]

    @property
    def largest(self) -> float:
        """The most bytes that a rank sends or receives."""
        return float(max(*self.sent.values(), *self.received.values()))


@dataclass(frozen=True)
class SeenMoe:
    """Sections and transfers of the ``steps`` whose loads are known; ``counts``: (bytes, ns) of other all-to-alls."""

    sections: tuple[Section, ...]
    transfers: tuple[Transfer, ...]
    loads: dict[Place, Load]
    steps: frozenset[int]
    counts: tuple[tuple[float, float], ...] = ()


def observe(run: Run, graph: StepGraph) -> SeenMoe | str:
    """The experts of a run, or why the model cannot have them."""
    calls, others, lone = _all_to_alls(run, graph)
    if not calls:
        return "the traces hold ranks whose peers are missing: bring the traces of all ranks" if lone else _UNNAMED
    groups = _groups(calls)
    parts = {c.part for c in calls}
    if any(len(group) < 2 for group in groups.values()):
        return "the traces hold ranks whose peers are missing: bring the traces of all ranks"
    loads = read(run, dict.fromkeys(groups.values()))
    if not loads:
        return _NO_TOKENS
    if (twice := next((e for load in loads.values() if (e := owned_twice(load)) is not None), None)) is not None:
        return (
            f"several ranks of one group record tokens of expert {twice}: what it computed must be recorded by the rank that "
            "has it, and there alone"
        )
    sections = _sections(graph, calls, groups)
    if {s.part for s in sections} != parts:
        return "dispatch and combine of a layer do not follow each other on every rank"
    steps = {s.place[2] for s in sections}
    steps -= {s.place[2] for s in sections if s.place not in loads}
    if not steps:
        return _NO_TOKENS
    transfers = _transfers(graph, calls, groups)
    return SeenMoe(
        tuple(s for s in sections if s.place[2] in steps), tuple(t for t in transfers if t.place[2] in steps), loads,
        frozenset(steps), tuple(others),
    )  # fmt: skip


def _all_to_alls(run: Run, graph: StepGraph) -> tuple[list[AllToAll], list[tuple[float, float]], bool]:
    """(named ones by part, (bytes, ns) of the others, is there one whose peers are missing?)."""
    meet_of = dict(zip(*(a[graph.why == EdgeKind.MEET].tolist() for a in (graph.src, graph.dst)), strict=True))
    call_of = dict(zip(*(a[graph.why == EdgeKind.LAUNCH].tolist() for a in (graph.dst, graph.src)), strict=True))
    named: list[AllToAll] = []
    others: list[tuple[float, float]] = []
    lone = False
    for part in run.parts:
        events, comm = run.table("events", part.ordinal), run.table("comm", part.ordinal)
        codes, texts, parents = events["name"].tolist(), events.values("name"), events["parent"].tolist()
        mine = np.flatnonzero((graph.part == part.ordinal) & np.isin(graph.kind, [NodeKind.ARRIVAL, NodeKind.OP]))
        node_of = dict(zip(graph.row[mine].tolist(), mine.tolist(), strict=True))
        columns = (comm[name].tolist() for name in ("event", "bytes_in", "bytes_out"))
        for op, event, sent, received in zip(comm.text("op"), *columns, strict=True):
            node = node_of.get(event)
            if op != "all_to_all" or node is None or node not in call_of:
                continue
            call, meet = call_of[node], meet_of.get(node)
            word, layer = "", None
            at = int(graph.row[call])
            while at >= 0 and layer is None:
                base, tags = parse_range(texts[codes[at]] if codes[at] >= 0 else "")
                word, layer = (base, tags.get("layer")) if base in _TO_EXPERTS else ("", None)
                at = parents[at]
            lone |= bool(layer) and meet is None
            if meet is None:
                continue
            sent, received = (max(n, 0) if n != MISSING else 0 for n in (sent, received))
            if layer is None:
                others.append((float(max(sent, received)), float(graph.dur[meet])))
                continue
            step = int(events["step"][graph.row[call]])
            lane = int(graph.lane[call])
            named.append(AllToAll(part.ordinal, step, str(layer), word, call, lane, meet, sent, received))
    return named, others, lone


def _groups(calls: list[AllToAll]) -> dict[int, Group]:
    """Part -> the parts that it meets."""
    met: dict[int, set[int]] = defaultdict(set)
    for call in calls:
        met[call.meet].add(call.part)
    return {part: tuple(sorted(parts)) for parts in met.values() for part in parts}


def _sections(graph: StepGraph, calls: list[AllToAll], groups: dict[int, Group]) -> list[Section]:
    """From the call that brings tokens to the call that takes the results away, of one layer on one thread."""
    out = []
    of_lane: dict[tuple[int, int], list[AllToAll]] = defaultdict(list)
    for call in calls:
        of_lane[call.part, call.lane].append(call)
    for (part, lane), mine in of_lane.items():
        mine.sort(key=lambda c: int(graph.start[c.call]))
        edges = np.flatnonzero(
            (graph.why == EdgeKind.THREAD) & (graph.part[graph.dst] == part) & (graph.lane[graph.dst] == lane)
        )
        edges = edges[np.argsort(graph.start[graph.dst[edges]], kind="stable")]
        starts = graph.start[graph.dst[edges]]
        for before, after in pairwise(mine):
            if not _TO_EXPERTS[before.word] or _TO_EXPERTS[after.word] or before.layer != after.layer:
                continue
            lo, hi = (int(graph.start[c.call]) for c in (before, after))
            inside = edges[np.searchsorted(starts, lo, "right") : np.searchsorted(starts, hi, "right")]
            nodes = [n for n in graph.src[inside].tolist() if n != before.call]
            ns = int(graph.lag[inside].sum()) + int(graph.dur[nodes].sum())
            place = groups[part], before.layer, before.step
            out.append(Section(part, place, before.word, tuple(inside.tolist()), tuple(nodes), float(ns)))
    return out


def _transfers(graph: StepGraph, calls: list[AllToAll], groups: dict[int, Group]) -> list[Transfer]:
    by_meet: dict[int, list[AllToAll]] = defaultdict(list)
    for call in calls:
        by_meet[call.meet].append(call)
    return [
        Transfer(
            meet, (groups[mine[0].part], mine[0].layer, mine[0].step), _TO_EXPERTS[mine[0].word], float(graph.dur[meet]),
            {c.part: c.sent for c in mine}, {c.part: c.received for c in mine},
        )
        for meet, mine in by_meet.items()
    ]  # fmt: skip
