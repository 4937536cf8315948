"""What another schedule, or other micro-batches, would make of a measured pipeline step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.pipeline import Kind
from dtprof.model.pipeline.observe import SeenPipeline
from dtprof.model.pipeline.schedules import Action, Order, order

# how often a plan is run with other passes delayed; odd, for one of them is the median
_DRAWS = 25


@dataclass(frozen=True)
class Plan:
    """A schedule to simulate: actions of each rank, number of stages, and ns of each (kind, stage)."""

    actions: Order
    stages: int
    takes: Mapping[tuple[Kind, int], float]


@dataclass(frozen=True)
class Result:
    """Step and bubble of a simulated plan, ns and share of the ranks' time; ``spans``: when each action runs."""

    step_ns: float
    bubble: float
    spans: dict[Action, tuple[float, float]]


def simulate(seen: SeenPipeline, plan: Plan) -> Result:
    """The median of several runs of a plan, in each of which passes are off their medians as measured ones were.

    A late pass holds up those that wait for it and no early one makes up for that, so passes of median length alone make a step
    too short. What delays a pass is taken to come once per pass, however long it is. ValueError where the order deadlocks.
    """
    chance = np.random.default_rng(0)
    late = np.array(seen.late or (0.0,))
    count = sum(map(len, plan.actions.values()))
    draws = _DRAWS if late.any() else 1
    found = [_run(seen, plan, iter(chance.choice(late, count).tolist())) for _ in range(draws)]
    return sorted(found, key=lambda result: result.step_ns)[draws // 2]


def _run(seen: SeenPipeline, plan: Plan, late: Iterator[float]) -> Result:
    """Run a plan: an action begins when its rank has done the one before and what it needs has arrived."""
    todo = {rank: list(actions) for rank, actions in plan.actions.items()}
    free = dict.fromkeys(todo, seen.head - seen.between)
    spans: dict[Action, tuple[float, float]] = {}
    busy = 0.0
    while any(todo.values()):
        before = sum(map(len, todo.values()))
        for rank, actions in todo.items():
            while actions and (there := _there(actions[0], spans, plan.stages, seen)) is not None:
                action = actions.pop(0)
                start = max(free[rank] + seen.between, there)
                takes = max(plan.takes[action.kind, action.stage] + next(late), 0.0)
                free[rank] = start + takes
                busy += takes
                spans[action] = start, free[rank]
        if sum(map(len, todo.values())) == before:
            raise ValueError("the order of the passes deadlocks")
    last = max(free.values())
    whole = (last - seen.head) * len(todo)
    return Result(last + seen.tail, (whole - busy) / whole if whole else 0.0, spans)


def _there(action: Action, spans: dict[Action, tuple[float, float]], stages: int, seen: SeenPipeline) -> float | None:
    """When what an action needs has arrived; None where it has not been made yet."""
    kind, stage, micro = action
    own: list[Action] = [Action("F", stage, micro)] if kind in "BI" else [Action("I", stage, micro)] if kind == "W" else []
    times = [spans[a][1] for a in own if a in spans]
    if len(times) < len(own):
        return None
    other = stage - 1 if kind == "F" else stage + 1
    if kind in "FBI" and 0 <= other < stages:
        names: tuple[Kind, ...] = ("F",) if kind == "F" else ("B", "I")
        sent = [spans[a][1] for k in names if (a := Action(k, other, micro)) in spans]
        if not sent:
            return None
        times.append(sent[0] + seen.message)
    return max(times, default=0.0)


def measured_plan(seen: SeenPipeline) -> Plan:
    """The schedule as it was run."""
    return Plan(seen.orders, seen.stages, seen.takes)


def changed_plan(
    seen: SeenPipeline, schedule: str | None, microbatches: int | None, per_rank: int | None, even: bool = False
) -> Plan:
    """The plan of a change. ValueError says why it cannot be made.

    A stage that is parted goes into equal pieces; a backward pass that is parted takes half of its time for the input and half
    for the weights, and on the first stage, whose input needs no gradient, all of it for the weights. The batch
    is held: passes of other micro-batches take time in proportion to their size, but for what every pass takes, whatever is in
    it (``SeenPipeline.fixed``).
    """
    ranks = len(seen.ranks)
    have = seen.stages // ranks
    if have < 1:
        raise ValueError(f"{ranks} ranks have {seen.stages} stages: no order of passes can be planned")
    name = schedule or _schedule_of(seen)
    count = microbatches or seen.microbatches
    wanted = per_rank or ((have if have > 1 else 2) if name in ("interleaved", "zero-bubble") else 1)
    if wanted % have and have % wanted:
        raise ValueError(f"{have} stages per rank cannot become {wanted}")
    if have > 1 and wanted != have and seen.stages != ranks * have:
        raise ValueError("the ranks have different numbers of stages")
    actions = order(name, ranks, count, wanted)
    stages = ranks * wanted
    takes = _takes(seen, stages, name == "zero-bubble", even, seen.microbatches / count)
    return Plan(actions, stages, takes)


def _schedule_of(seen: SeenPipeline) -> str:
    """The schedule that was run, by its order."""
    ranks = len(seen.ranks)
    for name in ("1f1b", "gpipe", "interleaved", "zero-bubble"):
        try:
            if order(name, ranks, seen.microbatches, seen.stages // ranks) == seen.orders:
                return name
        except ValueError:
            continue
    raise ValueError("the schedule that was run is none that is modelled; name one with pipeline.schedule")


def _takes(seen: SeenPipeline, stages: int, parted: bool, even: bool, scale: float) -> dict[tuple[Kind, int], float]:
    """ns of every pass of ``stages`` stages, of micro-batches that are ``scale`` times as large as the measured ones."""
    forward, backward = _per_stage(seen, "F", stages, even), _per_stage(seen, "B", stages, even)
    fixed, again = _fixed(seen, "F"), _fixed(seen, "B")
    out: dict[tuple[Kind, int], float] = {}
    for stage in range(stages):
        out["F", stage] = fixed + scale * forward[stage]
        if not parted:
            out["B", stage] = again + scale * backward[stage]
            continue
        share = 0.5 if stage else 0.0
        out["I", stage] = (again if stage else 0.0) + scale * share * backward[stage]
        out["W", stage] = again + scale * (1 - share) * backward[stage]
    return out


def _fixed(seen: SeenPipeline, kind: Kind) -> float:
    """What every pass of a direction takes, ns; of a backward pass that was parted, what its longer half does."""
    return seen.fixed.get(kind, max(seen.fixed.get("I", 0.0), seen.fixed.get("W", 0.0)) if kind == "B" else 0.0)


def _per_stage(seen: SeenPipeline, kind: Kind, stages: int, even: bool) -> list[float]:
    """Time of one direction in each of ``stages`` equal pieces of the model, without what every pass takes; a parted backward
    pass counts whole.
    """
    whole = [
        max(sum(seen.takes[k, s] - seen.fixed.get(k, 0.0) for k in _kinds(kind) if (k, s) in seen.takes), 0.0)
        for s in range(seen.stages)
    ]
    if even:
        return [float(np.sum(whole)) / stages] * stages
    along = np.concatenate([[0.0], np.cumsum(whole)])
    edges = np.interp(np.linspace(0, seen.stages, stages + 1), np.arange(seen.stages + 1), along)
    pieces: list[float] = np.diff(edges).tolist()
    return pieces


def _kinds(kind: Kind) -> tuple[Kind, ...]:
    """The passes that make up one direction."""
    return ("F",) if kind == "F" else ("B", "I", "W")
