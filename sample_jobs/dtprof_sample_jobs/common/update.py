"""The optimizer's step, in the right order: unscale, clip, step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS = {"adamw": 3e-4, "sgd": 0.1}


def make_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    kind: str | None = None,
    rate: float | None = None,
    emulated: bool = False,
) -> torch.optim.Optimizer:
    """Fused AdamW or plain SGD, as ``kind_of_optimizer`` says."""
    make, options = kind_of_optimizer(kind, rate, emulated=emulated)
    made: torch.optim.Optimizer = make(parameters, **options)
    return made


def kind_of_optimizer(kind: str | None, rate: float | None, *, emulated: bool) -> tuple[Any, dict[str, Any]]:
    """The class of an optimizer and its options: ``kind`` at ``rate``, or at the usual one.

    Where no kind is given it is AdamW, but for emulated layers SGD, which takes little time.
    """
    kind = kind or ("sgd" if emulated else "adamw")
    rate = OPTIMIZERS[kind] if rate is None else rate
    return (torch.optim.SGD, {"lr": rate}) if kind == "sgd" else (torch.optim.AdamW, {"lr": rate, "fused": True})


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
