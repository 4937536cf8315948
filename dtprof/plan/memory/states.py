"""Parameters, gradients and optimizer states of one rank.

Rajbhandari et al. 2020 (ZeRO), section 5: with P ranks and mixed-precision Adam a parameter takes 2 + 2 + 12 bytes; stage 1
divides the optimizer's 12 by P, stage 2 the gradients too, stage 3 all. Gradients accumulated in fp32 take 4 (Megatron-LM).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dtprof.plan import sizes
from dtprof.plan.spec import Layout, Model, Optimizer, Precision, Software
from dtprof.plan.stages import Stage

# bytes of moments per parameter; fp32 where the name does not say otherwise
MOMENT_BYTES: dict[Optimizer, int] = {
    "adam": 8, "adam8bit": 2, "adam-bf16": 4, "lamb": 8, "muon": 4, "lion": 4, "sgd": 4,
}  # fmt: skip
# of a gradient as it is summed
GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def element_bytes(precision: Precision) -> int:
    """Bytes of a parameter and of an activation as matrix products take them; fp8's scaled copies are left out."""
    return 4 if precision in ("fp32", "tf32") else 2


@dataclass(frozen=True)
class Held:
    """Parameters of one rank before ZeRO: ``dense`` are those that all data-parallel ranks have, ``experts`` those of its
    experts; ``layer``: of its largest layer, both kinds; ``ends``: of embedding and output matrix.
    """

    dense: int
    experts: int
    layer: int
    ends: int

    @property
    def all(self) -> int:
        """Both kinds."""
        return self.dense + self.experts


def held(model: Model, layout: Layout, stage: Stage) -> Held:
    """Parameters of a rank of this stage; matrices are divided over tp, experts over ep and etp, norms and routers are not."""
    plain, common, routed = _parts(model)
    with_experts = sum(_expert_layers(model, chunk.start, chunk.stop) for chunk in stage.chunks)
    without = stage.layers - with_experts
    ends = sizes.embedding_params(model) if stage.first else 0
    if stage.last:
        # a tied output matrix on another rank than the embedding is a copy
        ends += sizes.head_params(model) + (model.vocab * model.hidden if model.tied and not stage.first else 0)
    ends //= layout.tp
    a_plain = plain[0] // layout.tp + plain[1]
    a_common, a_routed = common[0] // layout.tp + common[1], routed // (layout.ep * layout.etp)
    largest = max(a_plain if without else 0, a_common + a_routed if with_experts else 0)
    return Held(without * a_plain + with_experts * a_common + ends, with_experts * a_routed, largest, ends)


@lru_cache(maxsize=256)
def _parts(model: Model) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Parameters of a layer without experts (divided, not divided), the same of one with them, and of its routed experts."""
    attention, norms = sizes.attention_params(model), sizes.norm_params(model)
    plain = (attention + sizes.dense_params(model), norms)
    if model.moe is None:
        return plain, (0, 0), 0
    expert = sizes.expert_params(model)
    common = (attention + model.moe.shared * expert, norms + sizes.router_params(model))
    return plain, common, model.moe.experts * expert


@lru_cache(maxsize=4096)
def _expert_layers(model: Model, start: int, stop: int) -> int:
    return sum(model.has_experts(layer) for layer in range(start, stop))


@dataclass(frozen=True)
class States:
    """Bytes on the device, and on the host where offloading puts them there."""

    parameters: int
    gradients: int
    optimizer: int
    host: int


def states(layout: Layout, software: Software, mine: Held) -> States:
    """What stays on the device from step to step, by ZeRO stage, optimizer and precision."""
    dense = _per_parameter(layout, software, layout.shard_ranks)
    routed = _per_parameter(layout, software, expert_shard_ranks(layout))
    parameters, gradients, optimizer = (
        round(mine.dense * one + mine.experts * other) for one, other in zip(dense, routed, strict=True)
    )
    if "parameters" in layout.offload:
        return States(0, 0, 0, parameters + gradients + optimizer)
    if "optimizer" in layout.offload:
        return States(parameters, gradients, 0, optimizer)
    return States(parameters, gradients, optimizer, 0)


def fully_sharded(layout: Layout, software: Software) -> bool:
    """FSDP: the sharded fp32 parameters are the optimizer's own, and their gradients have their type."""
    return layout.zero == 3 and software.fsdp > 0


def expert_shard_ranks(layout: Layout) -> int:
    """Ranks that share the states of an expert: those with the same ones, as many as shard at all."""
    return max(layout.shard_ranks * layout.tp // (layout.ep * layout.etp), 1) if layout.zero else 1


def _per_parameter(layout: Layout, software: Software, ranks: int) -> tuple[float, float, float]:
    """Bytes of parameter, gradient, optimizer states for each parameter of a rank."""
    compute, gradient = element_bytes(layout.precision), GRADIENT_BYTES[layout.gradient_dtype]
    moments = MOMENT_BYTES[layout.optimizer]
    if fully_sharded(layout, software):
        return 4 / ranks, 4 / ranks, moments / ranks
    master = 0 if compute == 4 else 4
    return (
        compute / (ranks if layout.zero == 3 else 1),
        gradient / (ranks if layout.zero >= 2 else 1),
        (master + moments) / (ranks if layout.zero >= 1 else 1),
    )
