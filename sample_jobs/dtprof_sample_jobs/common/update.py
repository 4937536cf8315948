"""The optimizer's step, in the right order: unscale, clip, step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

OPTIMIZERS = {"adamw": 3e-4, "sgd": 0.1}


def make_optimizer(
    parameters: Iterable[nn.Parameter], *, kind: str = "adamw", rate: float | None = None, emulated: bool = False
) -> torch.optim.Optimizer:
    """Fused AdamW or plain SGD, at ``rate`` or the usual one; always SGD for emulated layers, to take little time."""
    kind = "sgd" if emulated else kind
    rate = OPTIMIZERS[kind] if rate is None else rate
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=rate)
    return torch.optim.AdamW(parameters, lr=rate, fused=True)


def update(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[nn.Parameter],
    clip: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor | None:
    """One step and ``zero_grad``; returns the norm before clipping where ``clip`` is given.

    With a scaler the gradients are unscaled first: a norm of scaled gradients would be clipped at the wrong place.
    """
    norm = None
    if clip is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return norm
