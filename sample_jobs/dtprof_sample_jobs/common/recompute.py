"""Activation checkpointing: forget what a block computed, and compute it again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dtprof_sample_jobs.common.delay as _delay  # noqa: F401 - defines the operators

MODES = ("none", "full", "selective")
_aten = torch.ops.aten
# what is dear to compute and cheap to keep; all else is computed again
KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.dtprof_lab.forward.default,
}


def recompute(blocks: Iterable[nn.Module], mode: str) -> None:
    """Have every block checkpointed: "none", "full" (all of it) or "selective" (matrix products and attention are kept).

    The block's own ``forward`` is replaced, so that hooks and wrappers around the block (FSDP, planted faults) act once.
    """
    if mode == "none":
        return
    extra: dict[str, Any] = {}
    if mode == "selective":
        extra["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **extra)


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
