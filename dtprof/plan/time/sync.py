"""Once a step, or once a micro-batch: gradients summed, parameters gathered, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.catalogue.hardware import PCIE_X16_GB_S
from dtprof.plan.constants import CONTENTION
from dtprof.plan.memory.states import GRADIENT_BYTES, Held, element_bytes, expert_shard_ranks
from dtprof.plan.spec import Layout, Optimizer
from dtprof.plan.time.layer import Setting
from dtprof.plan.time.wires import Group, group

# bytes of memory per parameter: fp32 parameter and moments read and written, gradient read (first for its norm), copy written
_OPTIMIZER: dict[Optimizer, float] = {
    "adam": 34, "adam-bf16": 26, "adam8bit": 22, "lamb": 46, "muon": 26, "lion": 26, "sgd": 26,
}  # fmt: skip
# shares: of a backward pass that gradients can be summed beside, of a micro-batch that gathering can; of PCIe's line rate
_BESIDE_BACKWARD, _BESIDE_MICROBATCH, _OF_PCIE = 0.9, 0.95, 0.8
# GB/s of a host's memory for all GPUs of a node, for an optimizer that runs there
_HOST_GB_S = 200.0
# DDP sums its gradients in buckets (torch, DistributedDataParallel's default)
_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Shared:
    """Parameters of one kind on a rank, and the ranks that have the same: ``shards`` of them share their states, the others
    have copies of those shards.
    """

    count: float
    ranks: int
    shards: int


def kinds(layout: Layout, mine: Held) -> list[Shared]:
    """Parameters that all data-parallel ranks have, and those of experts."""
    ranks = layout.dp * layout.cp
    routed = max(ranks * layout.tp // (layout.ep * layout.etp), 1)
    dense = Shared(mine.dense, ranks, layout.shard_ranks)
    return [dense, *([Shared(mine.experts, routed, min(expert_shard_ranks(layout), routed))] if mine.experts else [])]


def communication(setting: Setting, layout: Layout, mine: Held, layers: int, micro: float, backward: float) -> float:
    """Exposed seconds a step of summing gradients and gathering parameters; ``layers`` of the rank, seconds of one micro-batch
    and of a backward pass of it.
    """
    once = every = after = 0.0
    for kind in kinds(layout, mine):
        (scattered, copies), gathered = _sums(setting, layout, kind, layers), _gathers(setting, layout, kind, layers)
        if layout.zero >= 2:
            every += (2 if layout.zero == 3 else 1) * gathered + scattered
            once += copies
        else:
            once += scattered + copies
            # parameters come back after the optimizer, with nothing to do beside
            after += gathered
    hidden = setting.software.dp_hidden
    return after + sum(
        (
            _beside(once, _BESIDE_BACKWARD * backward, hidden),
            layout.microbatches * _beside(every, _BESIDE_MICROBATCH * micro, hidden),
        )
    )


def optimizer(setting: Setting, layout: Layout, mine: Held) -> float:
    """Seconds of the optimizer's step on what a rank updates, with the way to the host and back where it runs there."""
    updated = sum(kind.count / kind.shards for kind in kinds(layout, mine))
    moved = _OPTIMIZER[layout.optimizer] * updated
    if "optimizer" not in layout.offload and "parameters" not in layout.offload:
        return moved / setting.device.memory
    pcie = PCIE_X16_GB_S[setting.cluster.gpu.pcie] * 1e9 * _OF_PCIE
    host = _HOST_GB_S * 1e9 / setting.cluster.gpus_per_node
    return moved / host + updated * (4 + element_bytes(layout.precision)) / pcie


def _beside(wanted: float, room: float, hidden: float) -> float:
    """Exposed seconds of communication that can run beside ``room`` seconds of compute: what does not fit, and how much the
    rest slows the compute down.
    """
    covered = hidden * min(wanted, room)
    return wanted - covered * (1 - CONTENTION)


def _sums(setting: Setting, layout: Layout, kind: Shared, layers: int) -> tuple[float, float]:
    """Seconds of summing gradients over the ranks that share states, and over the copies of these."""
    size = GRADIENT_BYTES[layout.gradient_dtype] * kind.count
    near, far = _groups(setting, layout, kind)
    if kind.shards < 2:
        whole = group(kind.ranks, layout.tp, setting.cluster.gpus_per_node)
        buckets = max(size / _BUCKET_BYTES, 1) if setting.software.dp_hidden else 1
        return setting.wires.time("all_reduce", size, whole) + (buckets - 1) * setting.wires.latency("all_reduce", whole), 0.0
    return _pieces(setting, "reduce_scatter", size, near, layers), _pieces(
        setting, "all_reduce", size / kind.shards, far, layers
    )


def _gathers(setting: Setting, layout: Layout, kind: Shared, layers: int) -> float:
    near, _ = _groups(setting, layout, kind)
    return _pieces(setting, "all_gather", element_bytes(layout.precision) * kind.count, near, layers)


def _pieces(setting: Setting, op: str, size: float, ranks: Group, layers: int) -> float:
    """Seconds of an operation done layer by layer."""
    return setting.wires.time(op, size, ranks) + max(layers - 1, 0) * setting.wires.latency(op, ranks)


def _groups(setting: Setting, layout: Layout, kind: Shared) -> tuple[Group, Group]:
    """Ranks that share states, next to one another, and those that have copies of one shard."""
    node = setting.cluster.gpus_per_node
    return group(kind.shards, layout.tp, node), group(kind.ranks // kind.shards, layout.tp * kind.shards, node)
