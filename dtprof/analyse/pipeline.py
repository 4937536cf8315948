"""Pipelines: passes of stages on micro-batches, and where a rank waits for what another one computes.

A bubble is waiting between two passes of a rank, before its first one (since the pipeline's first pass began) or after its last
one (until the last pass of all ends). What a rank needs between passes that follow each other at once is none: gaps below a
quarter of the shortest pass are taken for that, and their median is taken off the others. Gaps are medians over the steps, one
by one, whose order is always the same. Theory: (p-1)/(m+p-1) of the time for GPipe and 1F1B alike (Narayanan et al., 2021).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from dtprof.analyse.covers import PartView
from dtprof.analyse.messages import messages_of
from dtprof.intervals import Ints
from dtprof.protocols import Lens
from dtprof.ranges import parse_range
from dtprof.run import Part, Run
from dtprof.schema import PHASES

Kind = Literal["F", "B", "I", "W"]
Where = Literal["warm-up", "steady", "drain"]
KINDS: dict[str, Kind] = {"forward": "F", "backward": "B", "backward input": "I", "backward weight": "W"}
# a gap of this much of the shortest pass or more is waiting; less is what a rank needs between two passes
WAITING = 0.25


@dataclass(frozen=True)
class Pass:
    """One pass of a stage on a micro-batch; ns, clocks aligned; ``rows``: its events, in time order."""

    kind: Kind
    stage: int
    microbatch: int
    start: int
    end: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Bubble:
    """Waiting before a pass of a rank (None: after the last one), ns per step; ``receive``: the event that blocks, by step."""

    where: Where
    ns: float
    before: tuple[Kind, int, int] | None
    receives: tuple[int, ...]


@dataclass(frozen=True)
class RankPasses:
    """One rank of a pipeline, ns per step: busy in passes, what lies between passes without waiting, and its bubbles."""

    part: int
    rank: int
    stages: tuple[int, ...]
    busy_ns: float
    between_ns: float
    bubbles: tuple[Bubble, ...]
    rows: tuple[int, ...]

    def waits(self, where: Where | None = None) -> float:
        """Bubble of one kind, or all, ns per step."""
        return sum(b.ns for b in self.bubbles if where is None or b.where == where)


@dataclass(frozen=True)
class Pipeline:
    """One pipeline: its ranks in the order of their first stages. ``takes``: (kind, stage) -> ns, median; ``window_ns``: from
    the first pass to the end of the last, median.
    """

    ranks: tuple[RankPasses, ...]
    stages: int
    microbatches: int
    steps: tuple[int, ...]
    window_ns: float
    takes: dict[tuple[Kind, int], float]

    @property
    def bubble(self) -> float:
        """Share of the ranks' time, without what lies between passes, that is waiting."""
        waits, busy = sum(r.waits() for r in self.ranks), sum(r.busy_ns for r in self.ranks)
        return waits / (waits + busy) if busy else 0.0

    @property
    def bubble_ns(self) -> float:
        """Waiting per step, mean over the ranks."""
        return sum(r.waits() for r in self.ranks) / len(self.ranks)

    @property
    def theory(self) -> float | None:
        """Bubble of GPipe and 1F1B with stages of equal length; None where ranks have several stages."""
        ranks = len(self.ranks)
        return (ranks - 1) / (self.microbatches + ranks - 1) if self.stages == ranks else None

    def per_microbatch(self, rank: RankPasses) -> float:
        """What one micro-batch takes of a rank, ns."""
        return sum(ns for (_, stage), ns in self.takes.items() if stage in rank.stages)


@dataclass(frozen=True)
class PipelineResult:
    """The pipelines of a run; ``abstained`` says why there is none ("" where there is one)."""

    pipelines: tuple[Pipeline, ...]
    abstained: str


def analyse(study: Lens) -> PipelineResult:
    """All pipelines of the run: with data or tensor parallelism beside it there are several."""
    run = study.run
    parts = [p for p in run.parts if p.rank is not None]
    if len({p.rank for p in parts}) < len(parts):
        return PipelineResult((), "several captures of one rank: their passes cannot be paired")
    passes = {p.ordinal: found for p in parts if (found := _passes(run, p))}
    if not passes:
        return PipelineResult(
            (), "no pass is tagged with stage and micro-batch: mark them, dtprof.annotate('forward', stage=0, microbatch=0)"
        )
    apart: dict[tuple[tuple[str, int], ...], list[Part]] = defaultdict(list)
    for part in parts:
        if part.ordinal in passes:
            place = run.manifest.coordinates.get(str(part.rank), {})
            apart[tuple(sorted((axis, n) for axis, n in place.items() if axis != "pp"))].append(part)
    pipelines = [_pipeline(run, members, passes) for members in apart.values()]
    made = tuple(p for p in pipelines if isinstance(p, Pipeline))
    return PipelineResult(made, "" if made else next(str(p) for p in pipelines))


def _passes(run: Run, part: Part) -> dict[int, list[Pass]]:
    """Step -> passes in the order of their begin: of kernels where the job is on a device, else of marked ranges."""
    view = PartView(run, part.ordinal)
    events = view.events
    tagged = events.known("microbatch") & events.known("stage") & (events["step"] >= 0)
    device = view.main_rows[tagged[view.main_rows]]
    if len(device):
        rows, kinds = device, [_of_phase(int(c)) for c in events["phase"][device].tolist()]
    else:
        rows = np.flatnonzero(tagged & events.is_("kind", "range") & (view.lane_device < 0))
        texts, codes = events.values("name"), events["name"][rows].tolist()
        kinds = [KINDS.get(parse_range(texts[c])[0]) for c in codes]
    held: dict[tuple[int, Kind, int, int], list[int]] = defaultdict(list)
    columns = (events[c][rows].tolist() for c in ("step", "stage", "microbatch"))
    for row, kind, step, stage, microbatch in zip(rows.tolist(), kinds, *columns, strict=True):
        if kind is not None:
            held[step, kind, stage, microbatch].append(row)
    out: dict[int, list[Pass]] = defaultdict(list)
    for (step, kind, stage, microbatch), mine in held.items():
        start = int(events["ts"][mine[0]]) + part.clock_offset_ns
        end = int(view.end[mine].max()) + part.clock_offset_ns
        out[step].append(Pass(kind, stage, microbatch, start, end, tuple(mine)))
    return {step: sorted(found, key=lambda p: p.start) for step, found in out.items()}


def _of_phase(code: int) -> Kind | None:
    name = PHASES[code] if code >= 0 else ""
    return "F" if name == "forward" else "B" if name == "backward" else None


def _pipeline(run: Run, parts: list[Part], passes: dict[int, dict[int, list[Pass]]]) -> Pipeline | str:
    if len(parts) < 2:
        return f"of this pipeline only rank {parts[0].rank} is in the run: what it waits for cannot be told"
    parts = sorted(parts, key=lambda p: min(x.stage for found in passes[p.ordinal].values() for x in found))
    whole = [set(run.table("steps", p.ordinal)["step"][run.table("steps", p.ordinal)["captured"]].tolist()) for p in parts]
    common = sorted(set.intersection(*whole, *(set(passes[p.ordinal]) for p in parts)))
    orders = {s: [[(x.kind, x.stage, x.microbatch) for x in passes[p.ordinal][s]] for p in parts] for s in common}
    steps = tuple(s for s in common if orders[s] == orders[common[0]])
    if not steps:
        return "no captured step has the passes of all ranks: capture the same whole steps on all"
    every = [x for p in parts for s in steps for x in passes[p.ordinal][s]]
    stages = {x.stage for x in every}
    if any({k for k, _, _ in mine} <= {"F"} or "F" not in {k for k, _, _ in mine} for mine in orders[steps[0]]):
        return "some ranks have no forward or no backward pass that is tagged: tag both"
    if stages != set(range(max(stages) + 1)):
        return "some stages have no pass in the run: bring the traces of all ranks"
    lengths: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    for x in every:
        lengths[x.kind, x.stage].append(x.end - x.start)
    takes = {key: float(np.median(found)) for key, found in lengths.items()}
    limits = {s: _limits([passes[p.ordinal][s] for p in parts]) for s in steps}
    shortest = min(ns for (kind, _), ns in takes.items() if kind == "F")
    ranks = tuple(_rank(run, p, {s: passes[p.ordinal][s] for s in steps}, limits, WAITING * shortest) for p in parts)
    window = float(np.median([b - a for a, b in limits.values()]))
    return Pipeline(ranks, len(stages), 1 + max(x.microbatch for x in every), steps, window, takes)


def _limits(ranks: list[list[Pass]]) -> tuple[int, int]:
    """Begin of the first pass and end of the last one of all ranks."""
    return min(x.start for mine in ranks for x in mine), max(x.end for mine in ranks for x in mine)


def _rank(
    run: Run, part: Part, passes: dict[int, list[Pass]], limits: dict[int, tuple[int, int]], waiting: float
) -> RankPasses:
    lead = [mine[0].start - limits[s][0] for s, mine in passes.items()]
    tail = [limits[s][1] - mine[-1].end for s, mine in passes.items()]
    inner = [[b.start - a.end for a, b in pairwise(mine)] for mine in passes.values()]
    gaps = np.median(np.column_stack([lead, np.array(inner).reshape(len(passes), -1), tail]), axis=0)
    near = gaps[1:-1][gaps[1:-1] < waiting]
    own = float(np.median(near)) if len(near) else 0.0
    order = next(iter(passes.values()))
    forward = [i for i, x in enumerate(order) if x.kind == "F"]
    backward = [i for i, x in enumerate(order) if x.kind != "F"]
    bubbles = []
    for place, gap in enumerate(gaps.tolist()):
        if gap < waiting:
            continue
        where: Where = "drain" if place > max(forward) + 1 else "warm-up" if place <= min(backward) else "steady"
        before = order[place] if place < len(order) else None
        key = (before.kind, before.stage, before.microbatch) if before else None
        inside = gap - (own if 0 < place < len(order) else 0.0)
        bubbles.append(Bubble(where, inside, key, _receives(run, part, passes, limits, place)))
    lengths = np.median([[x.end - x.start for x in mine] for mine in passes.values()], axis=0)
    rows = tuple(row for mine in passes.values() for x in mine for row in x.rows)
    stages = tuple(sorted({x.stage for x in order}))
    return RankPasses(
        part.ordinal, part.rank or 0, stages, float(lengths.sum()), float(np.sum(gaps) - sum(b.ns for b in bubbles)),
        tuple(bubbles), rows,
    )  # fmt: skip


def _receives(
    run: Run, part: Part, passes: dict[int, list[Pass]], limits: dict[int, tuple[int, int]], place: int
) -> tuple[int, ...]:
    """In each step the message that overlaps most of a gap."""
    found = []
    messages = list(messages_of(run).get(part.ordinal, {}).values())
    starts: Ints = np.array([m.start for m in messages], np.int64) + part.clock_offset_ns
    ends: Ints = np.array([m.end for m in messages], np.int64) + part.clock_offset_ns
    for step, mine in passes.items():
        lo = mine[place - 1].end if place else limits[step][0]
        hi = mine[place].start if place < len(mine) else limits[step][1]
        inside = np.minimum(ends, hi) - np.maximum(starts, lo)
        if len(inside) and inside.max() > 0:
            found.append(messages[int(inside.argmax())].event)
    return tuple(found)
