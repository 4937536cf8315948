"""Names that frameworks give their ranges: phase, micro-batch, stage and layer that they mean.

torch.distributed.pipelining: ``Forward 3``, ``PP:1F3`` (stage, action, micro-batch); FSDP: ``FSDP::pre_forward (layers.0)``;
Megatron-LM: the calling function's path and a suffix, ``megatron.core.….mlp``; Lightning: ``[Strategy]DDPStrategy.backward``.
"""

from __future__ import annotations

import re
from functools import cache

_STEP_OF_PIPELINE = re.compile(r"^(?P<action>Forward|Backward) (?P<microbatch>\d{1,6})$")
_ACTION = re.compile(r"^PP:(?P<stage>\d{1,6})(?P<action>[A-Z_]+?)(?P<microbatch>\d{1,6})?$")
_FSDP = re.compile(r"^FSDP::\w+ \((?P<layer>[^()]+)\)$")
_MEGATRON = re.compile(
    r"^(?:megatron(?:\.\w+)+\.|)(?P<layer>self_attention|cross_attention|core_attention|self_attn_bda|mlp_bda|mlp|linear_fc1|"
    r"linear_fc2|linear_qkv|linear_proj|qkv|rotary_pos_emb|input_layernorm|pre_mlp_layernorm|activation|router|dispatch|experts|"
    r"combine|moe|embedding|output_layer)$"
)
_MEGATRON_PATH = re.compile(r"^megatron(?:\.\w+)+\.(?P<layer>\w+)$")
_LIGHTNING = re.compile(
    r"^(?:\[pl\])?(?:\[profile\])?\[[\w.]+\](?:\w+\.)?(?P<hook>training_step|backward|train_dataloader_next)$"
)
_PHASES = {
    "Forward": "forward", "Backward": "backward", "F": "forward", "B": "backward", "I": "backward", "W": "backward",
    "training_step": "forward", "backward": "backward", "train_dataloader_next": "data",
}  # fmt: skip


@cache
def phase_and_tags(name: str) -> tuple[str | None, dict[str, int | str]]:
    """(phase, tags) of a framework's range; (None, {}) for any other name."""
    for pattern in (_STEP_OF_PIPELINE, _ACTION, _FSDP, _MEGATRON, _MEGATRON_PATH, _LIGHTNING):
        found = pattern.match(name)
        if found:
            groups = found.groupdict()
            tags: dict[str, int | str] = {key: int(groups[key]) for key in ("microbatch", "stage") if groups.get(key)}
            if groups.get("layer"):
                tags["layer"] = groups["layer"]
            return _PHASES.get(groups.get("action") or groups.get("hook") or ""), tags
    return None, {}
