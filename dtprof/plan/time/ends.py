"""What the first and the last stage have beside their layers: embedding, output matrix, loss."""

from __future__ import annotations

from dtprof.plan.memory.states import element_bytes
from dtprof.plan.spec import Layout
from dtprof.plan.time.layer import Setting, summed, tokens
from dtprof.plan.time.passes import Passes

# bytes per hidden element of a token: look-up and sum of the forward pass, sorting and adding of the backward pass
_EMBEDDING = 10.0
# tokens that an encoder predicts (Devlin et al. 2018, section 3.1); Megatron computes the logits of all
_MASKED = 0.15
# a fused loss reads logits and writes their gradient
_FUSED = 4.0


def first(setting: Setting, layout: Layout) -> Passes:
    """Seconds of the embedding."""
    size = element_bytes(layout.precision) / 2
    return Passes(elementwise=setting.device.moved(_EMBEDDING * size * tokens(setting, layout) * setting.model.hidden))


def last(setting: Setting, layout: Layout) -> Passes:
    """Seconds of the output matrix and the loss. The output matrix is in 16 bits where layers are in fewer."""
    model, device, constants = setting.model, setting.device, setting.constants
    software = setting.software
    count, vocab = tokens(setting, layout), model.vocab / layout.tp
    if not model.causal and not software.parallel_loss:
        count *= _MASKED
    forward, backward = device.linear(count, vocab, model.hidden, high=True, summed=summed(software, layout))
    each = _FUSED if software.fused_loss else constants.logits_parallel if software.parallel_loss else constants.logits
    return Passes(products=forward + backward, loss=each * count * vocab / device.memory)
