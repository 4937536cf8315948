"""The peak of each rank of a pipeline, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from dtprof.plan.memory import buffers
from dtprof.plan.memory.activations import Kept, per_layer, sequence_parts, tokens
from dtprof.plan.memory.breakdown import GIB, Memory
from dtprof.plan.memory.flight import in_flight
from dtprof.plan.memory.states import element_bytes, held, states
from dtprof.plan.spec import Cluster, Layout, Model, Software
from dtprof.plan.stages import Stage, stages

Fit = Literal["fits", "tight", "no"]

# bytes of host memory for each GPU where a cluster does not say, by compute capability: as in DGX A100 80GB and later, DGX-1
_HOST = ((80, 256 * 10**9), (0, 64 * 10**9))
# what the processes themselves leave of it
_OF_HOST = 0.9


def peak_bytes(model: Model, cluster: Cluster, layout: Layout, software: Software) -> Memory:
    """The memory of the rank that needs most.

    Of ranks that hold alike the first has most micro-batches in flight, so that one of each kind is enough.
    """
    kinds: dict[tuple[object, ...], Stage] = {}
    for stage in stages(model, layout):
        kinds.setdefault((stage.layers, model.moe and _expert_layers(model, stage), stage.first, stage.last), stage)
    return max(_all(model, layout, software, kinds.values()), key=lambda memory: memory.device)


def per_stage(model: Model, cluster: Cluster, layout: Layout, software: Software) -> tuple[Memory, ...]:
    """The memory of a rank of each stage of the pipeline. Nothing of it depends on ``cluster`` as yet."""
    return tuple(_all(model, layout, software, stages(model, layout)))


def fits(memory: Memory, cluster: Cluster) -> Fit:
    """``fits`` with the allowances for fragmentation and context; ``tight`` where it fits without them, on a card with as many
    GiB as its name says GB: a run at that size may succeed, with an allocator that does not fragment; ``no`` where what is
    allocated alone is too much, or what lies on the host is more than a GPU's part of the host's memory.
    """
    if memory.host > host_bytes(cluster):
        return "no"
    if memory.device <= cluster.memory_bytes:
        return "fits"
    return "tight" if memory.allocated <= cluster.memory_bytes * GIB / 1e9 else "no"


def host_bytes(cluster: Cluster) -> int:
    """What one GPU may use of its host's memory, which is shared evenly."""
    capability = cluster.gpu.capability or _HOST[0][0]
    usual = next(each for least, each in _HOST if capability >= least)
    return int(_OF_HOST * (cluster.host_memory_bytes / cluster.gpus_per_node or usual))


def _all(model: Model, layout: Layout, software: Software, wanted: Iterable[Stage]) -> Iterator[Memory]:
    plain = per_layer(model, layout, software, experts=False)
    routed = per_layer(model, layout, software, experts=True) if model.moe else plain
    return (_of(model, layout, software, stage, plain, routed) for stage in wanted)


def _expert_layers(model: Model, stage: Stage) -> int:
    return sum(model.has_experts(layer) for chunk in stage.chunks for layer in chunk)


def _of(model: Model, layout: Layout, software: Software, stage: Stage, plain: Kept, routed: Kept) -> Memory:
    mine = held(model, layout, stage)
    kept_states = states(layout, software, mine)
    flying = in_flight(layout, stage.rank)
    with_experts = _expert_layers(model, stage) if model.moe else 0
    without = stage.layers - with_experts
    activations = flying * (without * plain.kept + with_experts * routed.kept)
    working = max(plain.working if without else 0.0, routed.working if with_experts else 0.0)
    if stage.last:
        # the last norm, in and out
        activations += 2 * flying * element_bytes(layout.precision) * tokens(layout) * model.hidden / sequence_parts(layout)
        waiting, most = buffers.logits(model, layout, software, flying if layout.schedule == "gpipe" else 1.0)
        activations, working = activations + waiting, max(working, most)
    host = kept_states.host
    if "activations" in layout.offload:
        near = min(activations, 2 * max(plain.kept, routed.kept))
        host, activations = host + round(activations - near), near
    return Memory(
        stage=stage.rank,
        parameters=kept_states.parameters,
        gradients=kept_states.gradients,
        optimizer=kept_states.optimizer,
        activations=round(activations),
        transient=round(working),
        communication=round(buffers.communication(model, layout, software, mine)),
        context=buffers.context(layout),
        host=host,
    )
