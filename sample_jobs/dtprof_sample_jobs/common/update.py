"""The optimizer's step, in the right order: unscale, clip, step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def make_optimizer(parameters: Iterable[nn.Parameter], *, emulated: bool = False, rate: float = 3e-4) -> torch.optim.Optimizer:
    """Fused AdamW; plain SGD for emulated layers, whose optimizer is to take no time."""
    if emulated:
        return torch.optim.SGD(parameters, lr=0.1)
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
