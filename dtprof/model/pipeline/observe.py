"""What a measured run shows of its pipeline: how long passes last, what lies between two, and what a message costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dtprof import intervals
from dtprof.analyse.pipeline import KINDS, WAITING, Kind
from dtprof.model.pipeline.schedules import Action
from dtprof.model.typical import typical_step
from dtprof.ranges import parse_range
from dtprof.run import Part, Run


@dataclass(frozen=True)
class Pass:
    """One pass of a rank, ns from the step's origin; ``outside``: how much of it lies in no operator and no layer."""

    action: Action
    start: float
    end: float
    outside: float


@dataclass(frozen=True)
class PipelineStep:
    """Passes of every rank in one step, in time order, and when the step ended on the last rank."""

    passes: dict[int, list[Pass]]
    end: float


@dataclass(frozen=True)
class SeenPipeline:
    """The pipeline steps of a run.

    ``stages``: their number; ``microbatches``; ``takes``: (kind, stage) -> ns, median; ``between``: ns between two passes of a
    rank that follow each other at once; ``message``: ns from a pass's end to the start of the one that waited for what it
    sent; ``head`` and ``tail``: ns of the step before its first and after its last pass; ``orders``: each rank's actions;
    ``fixed``: kind -> ns of a pass, median, in which neither an operator nor a layer runs: what every pass takes; ``late``:
    by how many ns each measured pass was longer than the median of its kind and stage, below zero where shorter.
    """

    ranks: tuple[int, ...]
    stages: int
    microbatches: int
    takes: dict[tuple[Kind, int], float]
    between: float
    message: float
    head: float
    tail: float
    orders: dict[int, list[Action]]
    steps: dict[int, PipelineStep]
    typical_ns: float
    untraced: int
    fixed: dict[Kind, float] = field(default_factory=dict)
    late: tuple[float, ...] = ()


def observe(run: Run) -> SeenPipeline | str:
    """The pipeline steps of a run, or why there are none to be had."""
    parts = [p for p in run.parts if p.rank is not None]
    if not any(run.table("events", p.ordinal).known("microbatch").any() for p in parts):
        return "no pass is tagged with stage and micro-batch: mark them, dtprof.annotate('forward', stage=0, microbatch=0)"
    origins = _origins(run, parts)
    if not origins:
        return "no captured step has the passes of all ranks: capture the same whole steps on all"
    found: dict[int, dict[int, list[Pass]]] = defaultdict(dict)
    for rank, part in enumerate(parts):
        for step, passes in _passes(run, part, origins).items():
            found[step][rank] = passes
    steps = {}
    for step, ranks in sorted(found.items()):
        if len(ranks) == len(parts) and all(_same(ranks[r], found[min(found)].get(r, [])) for r in ranks):
            steps[step] = PipelineStep(ranks, max(_end(run, p, step, origins) for p in parts))
    if not steps:
        return "no captured step has the passes of all ranks: capture the same whole steps on all"
    return _summary(run, parts, steps)


def _same(one: list[Pass], other: list[Pass]) -> bool:
    return [p.action for p in one] == [p.action for p in other]


def _origins(run: Run, parts: list[Part]) -> dict[int, int]:
    """Begin of every captured step on the rank of the first stage: the others enter it when their part of the last is done."""
    first = min(parts, key=lambda part: _lowest_stage(run, part))
    steps = run.table("steps", first.ordinal)
    begins = zip(steps["step"].tolist(), steps["host_ts"].tolist(), steps["captured"].tolist(), strict=True)
    return {step: ts + first.clock_offset_ns for step, ts, captured in begins if captured}


def _lowest_stage(run: Run, part: Part) -> int:
    events = run.table("events", part.ordinal)
    return int(min(events["stage"][events.known("stage")], default=1 << 30))


def _passes(run: Run, part: Part, origins: dict[int, int]) -> dict[int, list[Pass]]:
    events = run.table("events", part.ordinal)
    rows = events.take(events.is_("kind", "range") & events.known("microbatch") & events.known("stage"))
    columns = [rows[name].tolist() for name in ("step", "stage", "microbatch", "ts", "dur")]
    working = np.flatnonzero(events.is_("kind", "cpu_op") | (events.is_("kind", "range") & events.known("layer")))
    work = intervals.union(events["ts"][working], (events["ts"] + events["dur"])[working])
    inside = intervals.measure(work, rows["ts"], rows["ts"] + rows["dur"]).tolist()
    out: dict[int, list[Pass]] = defaultdict(list)
    for text, step, stage, microbatch, ts, dur, known in zip(rows.text("name"), *columns, inside, strict=True):
        kind = KINDS.get(parse_range(text or "")[0])
        if kind is not None and step in origins:
            start = float(ts + part.clock_offset_ns - origins[step])
            out[step].append(Pass(Action(kind, stage, microbatch), start, start + dur, float(dur - known)))
    return out


def _end(run: Run, part: Part, step: int, origins: dict[int, int]) -> float:
    steps = run.table("steps", part.ordinal)
    row = int(np.flatnonzero(steps["step"] == step)[0])
    return float(steps["host_ts"][row] + steps["host_dur"][row] + part.clock_offset_ns - origins[step])


def _summary(run: Run, parts: list[Part], steps: dict[int, PipelineStep]) -> SeenPipeline:
    every = [p for step in steps.values() for passes in step.passes.values() for p in passes]
    lengths: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for p in every:
        lengths[p.action.kind, p.action.stage].append(p.end - p.start)
    takes = {key: float(np.median(values)) for key, values in lengths.items()}
    first = next(iter(steps.values()))
    shortest = min(value for (kind, _), value in takes.items() if kind == "F")
    gaps = [b.start - a.end for s in steps.values() for passes in s.passes.values() for a, b in pairwise(passes)]
    near = [g for g in gaps if g < WAITING * shortest]
    between = float(np.median(near)) if near else 0.0
    heads = [min(p.start for passes in s.passes.values() for p in passes) for s in steps.values()]
    tails = [s.end - max(p.end for passes in s.passes.values() for p in passes) for s in steps.values()]
    typical, untraced = typical_step(run, parts, float(np.median([s.end for s in steps.values()])))
    return SeenPipeline(
        tuple(int(p.rank or 0) for p in parts), 1 + max(p.action.stage for p in every),
        1 + max(p.action.microbatch for p in every), takes, between, _message(steps, shortest, between),
        float(np.median(heads)), float(np.median(tails)), {r: [p.action for p in passes] for r, passes in first.passes.items()},
        steps, typical, untraced, _fixed(every), tuple(p.end - p.start - takes[p.action.kind, p.action.stage] for p in every),
    )  # fmt: skip


def _fixed(every: list[Pass]) -> dict[Kind, float]:
    """Median time of a pass outside of operators and layers, by kind."""
    outside: dict[Kind, list[float]] = defaultdict(list)
    for p in every:
        outside[p.action.kind].append(p.outside)
    return {kind: float(np.median(found)) for kind, found in outside.items()}


def _message(steps: dict[int, PipelineStep], shortest: float, between: float) -> float:
    """Median time from the end of a sending pass to the start of the pass that was waiting for it."""
    lags = []
    for step in steps.values():
        ends = {p.action: p.end for passes in step.passes.values() for p in passes}
        for passes in step.passes.values():
            for before, after in pairwise(passes):
                kind, stage, microbatch = after.action
                sender = Action(kind, stage - 1 if kind == "F" else stage + 1, microbatch)
                sent = ends.get(sender)
                if kind != "W" and sent is not None and after.start - before.end >= WAITING * shortest and sent > before.end:
                    lags.append(after.start - sent)
    return float(np.median(lags)) if lags else between
