"""What is there for a while: logits and their gradients, gathered parameters, gradients and tokens on their way."""

from __future__ import annotations

from dtprof.plan.memory.activations import sequence_parts, tokens
from dtprof.plan.memory.states import Held, element_bytes, fully_sharded
from dtprof.plan.spec import Layout, Model, Software

# driver, libraries and kernels of a process; buffers of each communicator: neither is in the allocator's count
CONTEXT_BYTES, COMMUNICATOR_BYTES = 500_000_000, 500_000_000
# DeepSpeed, configuration of ZeRO: reduce_bucket_size, elements
_BUCKET = 500_000_000


def logit_bytes(layout: Layout, software: Software) -> tuple[int, int]:
    """Bytes per logit: kept from the loss to its backward pass, and at the most.

    torch's cross entropy keeps the logarithm of softmax in fp32, and has its gradient and that of the logits in fp32 besides:
    12. A fused loss reads the logits and writes their gradient, both as matrix products take them.
    """
    size = element_bytes(layout.precision)
    return (size, 2 * size) if software.fused_loss or software.loss_in_place else (4, 12)


def logits(model: Model, layout: Layout, software: Software, in_flight: float) -> tuple[float, float]:
    """Bytes of the last stage: kept for micro-batches whose backward pass has not begun, and of the one in the loss."""
    count = tokens(layout) * model.vocab / layout.tp
    kept, most = logit_bytes(layout, software)
    return count * kept * max(in_flight - 1, 0), count * most


def communication(model: Model, layout: Layout, software: Software, mine: Held) -> float:
    """Bytes of buffers for communication at the peak."""
    return _parameters(layout, software, mine) + _activations(model, layout)


def _parameters(layout: Layout, software: Software, mine: Held) -> float:
    size = element_bytes(layout.precision)
    away = "parameters" in layout.offload
    if layout.zero < 2 and not away:
        return 0.0
    if layout.zero == 2 and not away:
        return float(size * min(_BUCKET, mine.all))
    if layout.pp > 1 and fully_sharded(layout, software) and not away:
        # between the passes of a pipeline parameters stay gathered, and gradients are reduced after the last
        summed = 4 * mine.all if layout.microbatches > 1 else 0
        return float(size * mine.all + summed)
    # embedding and head stay; the layer at work, the next one, the gradient of one and what is reduced of it
    return float(size * mine.ends + (2 * size + size + 4) * mine.layer)


def _activations(model: Model, layout: Layout) -> float:
    vector = element_bytes(layout.precision) * tokens(layout) * model.hidden
    out = 0.0
    if layout.tp > 1:
        # the whole sequence before a matrix product, or the sum after one
        out += vector
    if layout.pp > 1:
        out += 2 * vector / sequence_parts(layout)
    if layout.cp > 1:
        keys = 2 * max(model.kv_heads / layout.tp, 1) * model.head_dim
        out += 2 * vector / model.hidden * keys
    if layout.ep > 1 and model.moe is not None:
        out += 2 * vector * model.moe.top_k / sequence_parts(layout)
    return out


def context(layout: Layout) -> int:
    """Bytes outside of the allocator: one context, and a communicator for each axis that has ranks."""
    axes = sum(ranks > 1 for ranks in (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep))
    return CONTEXT_BYTES + axes * COMMUNICATOR_BYTES
