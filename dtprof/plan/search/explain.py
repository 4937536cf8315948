"""Why a layout is what it is: its neighbours, and what Megatron's rules of thumb would have chosen.

Narayanan et al. 2021, section 3: tensor parallelism up to the GPUs of a node (takeaway 1), then a pipeline over nodes until the
model fits, then data parallelism (takeaway 2), and the micro-batch by what one takes in efficiency and bubble (takeaway 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import get_args

from dtprof.numbers import percent, seconds, size
from dtprof.plan.memory import fits, peak_bytes
from dtprof.plan.search.found import Candidate
from dtprof.plan.search.space import Space
from dtprof.plan.search.wanted import Wanted
from dtprof.plan.search.words import brief
from dtprof.plan.spec import Layout, Recompute, check
from dtprof.plan.time.step import Estimator, StepTime

# a difference of this share of the step is none
ALIKE = 0.01
# two layouts within this share of each other are not told apart (docs/planner.md: regret inside groups of a table)
TOLD_APART = 0.03
_PARTS = {
    "products": "matrix products", "attention": "attention", "elementwise": "elementwise work", "loss": "the loss",
    "recompute": "recomputation", "launch": "launches", "tp": "tp traffic", "cp": "cp traffic", "ep": "ep traffic",
    "bubble": "bubble", "messages": "messages between stages", "sync": "gradients, parameters", "optimizer": "optimizer",
}  # fmt: skip


@dataclass(frozen=True)
class Neighbour:
    """One change of a layout: ``what`` in words, ``seconds`` of its step (None where it cannot be or does not fit), ``why``."""

    what: str
    layout: Layout
    seconds: float | None
    why: str


def parts(time: StepTime) -> dict[str, float]:
    """Seconds of a step by what they are spent on, in the order of ``_PARTS``."""
    busy = {field.name: getattr(time.busy, field.name) for field in fields(time.busy)}
    found = {**busy, "bubble": time.bubble, "messages": time.messages, "sync": time.sync, "optimizer": time.optimizer}
    return {name: found.get(name, 0.0) for name in _PARTS}


def named(part: str) -> str:
    """A part of a step in words."""
    return _PARTS[part]


def difference(one: StepTime, other: StepTime) -> str:
    """What ``other`` spends more on than ``one``: the part that grows most."""
    before, after = parts(one), parts(other)
    worst = max(_PARTS, key=lambda name: after[name] - before[name])
    return f"{_PARTS[worst]} {seconds(before[worst])} -> {seconds(after[worst])}"


def neighbours(wanted: Wanted, best: Candidate, clock: Estimator) -> list[Neighbour]:
    """Each axis once up and once down, the others held, and each mode of recomputation and stage of ZeRO."""
    return [_judge(wanted, best, clock, what, layout) for what, layout in _changes(best.layout, wanted)]


def _judge(wanted: Wanted, best: Candidate, clock: Estimator, what: str, layout: Layout) -> Neighbour:
    cluster = clock.cluster
    broken = check(wanted.model, cluster, layout)
    if broken:
        return Neighbour(what, layout, None, f"cannot be: {broken[0]}")
    memory = peak_bytes(wanted.model, cluster, layout, wanted.software)
    if fits(memory, cluster) != "fits":
        return Neighbour(what, layout, None, f"does not fit: {size(memory.device)} of {size(cluster.memory_bytes)}")
    time = clock.step(layout)
    share = time.seconds / best.seconds - 1
    if abs(share) < ALIKE:
        return Neighbour(what, layout, time.seconds, "as fast")
    if share > 0:
        return Neighbour(what, layout, time.seconds, f"+{percent(share)}: {difference(best.time, time)}")
    return Neighbour(what, layout, time.seconds, f"{percent(share)}: {difference(time, best.time)} the other way")


def _changes(layout: Layout, wanted: Wanted) -> Iterator[tuple[str, Layout]]:
    for axis in ("tp", "pp", "cp"):
        yield from _along(layout, wanted, axis)
    for other in _twice_and_half(layout.micro_batch):
        yield f"micro-batch {layout.micro_batch} -> {other}", replace(layout, micro_batch=other)
    if layout.vpp > 1:
        yield f"vpp {layout.vpp} -> 1", replace(layout, vpp=1, schedule="1f1b")
    if layout.dp * layout.cp > 1:
        for zero in (layout.zero - 1, layout.zero + 1):
            if 0 <= zero <= 3:
                yield f"ZeRO-{layout.zero} -> ZeRO-{zero}", replace(layout, zero=zero, shard=0)
    for mode in get_args(Recompute):
        if mode != layout.recompute:
            yield f"recompute {layout.recompute} -> {mode}", replace(layout, recompute=mode)
    if wanted.model.moe is not None:
        for other in _twice_and_half(layout.ep):
            yield f"ep {layout.ep} -> {other}", replace(layout, ep=other)


def _along(layout: Layout, wanted: Wanted, axis: str) -> Iterator[tuple[str, Layout]]:
    """An axis twice and half as wide, with as many fewer or more copies."""
    value = getattr(layout, axis)
    for other in _twice_and_half(value):
        if layout.dp * value % other:
            continue
        changed = replace(layout, **{axis: other, "dp": layout.dp * value // other})
        if changed.pp == 1 or changed.pp * changed.vpp > wanted.model.layers:
            changed = replace(changed, vpp=1, schedule="1f1b")
        if changed.tp > 1 and (layout.seq // changed.cp) % changed.tp == 0:
            changed = replace(changed, sequence_parallel=True)
        if changed.dp * changed.cp == 1:
            changed = replace(changed, zero=0, shard=0)
        yield f"{axis} {value} -> {other}", changed


def _twice_and_half(value: int) -> tuple[int, ...]:
    return (2 * value, value // 2) if value > 1 else (2,)


def rule_of_thumb(wanted: Wanted, clock: Estimator) -> Candidate | None:
    """Megatron's choice: tp as large as a node allows, the shortest pipeline with which it fits, the best micro-batch."""
    cluster = clock.cluster
    space = Space(wanted, cluster.gpus, wanted.batches[0], lambda *_: None)
    inside = [grid for grid in space.grids() if grid[0] <= cluster.gpus_per_node and grid[1] == 1]
    widest = max((grid[0] for grid in inside), default=0)
    for grid in sorted((one for one in inside if one[0] == widest), key=lambda one: (one[2], one[4])):
        found: list[Candidate] = []
        for layout in space.layouts(grid):
            memory = peak_bytes(wanted.model, cluster, layout, wanted.software)
            if layout.zero <= 1 and layout.recompute != "full" and fits(memory, cluster) == "fits":
                time = clock.step(layout)
                found.append(Candidate(layout, time, memory, "fits", time.seconds, wanted.price))
        if found:
            return min(found, key=lambda one: one.score)
    return None


def megatron(wanted: Wanted, best: Candidate, clock: Estimator) -> list[str]:
    """The layout in Megatron's terms, and whether its rules of thumb hold here."""
    layout, node = best.layout, clock.cluster.gpus_per_node
    out = [_tensor(layout, node), _pipeline(layout), _data(layout)]
    rule = rule_of_thumb(wanted, clock)
    if rule is None:
        out.append(
            "Megatron's rule (tensor parallelism as wide as a node, then the shortest pipeline) fits nowhere without full "
            "recomputation or full sharding."
        )
        return out
    share = rule.seconds / best.seconds - 1
    chosen = f"Megatron's rule (tensor parallelism as wide as a node, then the shortest pipeline) gives {brief(rule.layout)}"
    if share < TOLD_APART:
        out.append(f"{chosen}: {seconds(rule.seconds)}, which the model does not tell apart. The rule holds here.")
    else:
        lost = difference(best.time, rule.time)
        out.append(f"{chosen}: {seconds(rule.seconds)}, +{percent(share)}. The rule is wrong here: {lost}.")
    return out


def _tensor(layout: Layout, node: int) -> str:
    if layout.tp == 1:
        return "No tensor parallelism: a layer's work is on one GPU, and nothing waits for an all-reduce inside it."
    if layout.tp <= node:
        return f"Tensor parallelism {layout.tp} stays inside a node of {node} GPUs, on the fast links."
    return f"Tensor parallelism {layout.tp} crosses nodes of {node} GPUs: its all-reduces share the network."


def _pipeline(layout: Layout) -> str:
    if layout.pp == 1:
        return "No pipeline, so no bubble."
    share = (layout.pp - 1) / (layout.vpp * layout.microbatches)
    stages = "" if layout.vpp == 1 else f", {layout.vpp} stages on each"
    told = f"A pipeline of {layout.pp}{stages}, over {layout.microbatches} micro-batches"
    return f"{told}: a bubble of {percent(share)} of the work with equal stages."


def _data(layout: Layout) -> str:
    ranks = layout.dp * layout.cp
    if ranks == 1:
        return "One copy of the model: nothing to sum over copies."
    what = ("plain copies", "optimizer states", "optimizer states and gradients", "all states")[layout.zero]
    over = f" over {layout.shard_ranks} ranks" if layout.zero else ""
    return f"{layout.dp} data-parallel copies with ZeRO-{layout.zero} ({what}{over}), {layout.cp} context-parallel parts each."
