"""The optimizer's step, in the right order (unscale, clip, step), and its learning rate."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

import dtprof
from dtprof_sample_jobs.common.faults import Faults

OPTIMIZERS = {"adamw": 3e-4, "sgd": 0.1}
FIRST_SCALE, GROW_AFTER = 2.0**16, 2000


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


def make_scaler(args: argparse.Namespace, device: torch.device) -> torch.amp.GradScaler:
    """The loss scaler of ``--precision fp16``; for all other precisions one that does nothing."""
    wanted = args.precision == "fp16"
    made = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE, growth_interval=GROW_AFTER, enabled=wanted)
    made.scale(torch.zeros(1, device=device))  # else a rank without a loss would never have a scale
    return made


def schedule(optimizer: torch.optim.Optimizer, args: argparse.Namespace, sequences: int) -> None:
    """Scale the learning rate by ``sequences`` per step (of all ranks) over --base-batch, and warm it up, as the options ask.

    Linear scaling: Goyal et al. 2017; square root: Krizhevsky 2014. Warm-up is linear, from 1/N of the rate in the first step
    to all of it in step N. The rate of each step is recorded as the metric ``learning_rate``.
    """
    if args.lr_scaling == "none" and not args.warm_up:
        return
    ratio = sequences / (args.base_batch or sequences)
    rate = optimizer.param_groups[0]["lr"] * {"none": 1.0, "linear": ratio, "sqrt": ratio**0.5}[args.lr_scaling]
    steps = itertools.count(1)

    def before(*_: object) -> None:
        now = rate * min(1.0, next(steps) / max(args.warm_up, 1))
        for group in optimizer.param_groups:
            group["lr"] = now
        dtprof.metric("learning_rate", now)

    optimizer.register_step_pre_hook(before)


def update(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[nn.Parameter],
    clip: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    faults: Faults | None = None,
    *,
    agree: bool = False,
    prepared: bool = False,
) -> Tensor | None:
    """One step and ``zero_grad``; returns the norm before clipping where ``clip`` is given.

    With a scaler the gradients are unscaled first: a norm of scaled gradients would be clipped at the wrong place (which is
    what the fault clip_before_unscale does). With ``agree`` all ranks skip the step where one of them has an overflow, by an
    all-reduce; ranks whose gradients are averages of all need none. A job that clips by itself calls ``prepare`` before and
    says so. The scale, and whether the step was skipped, are recorded as metrics.
    """
    norm, parameters = None, list(parameters)
    scaled = scaler is not None and scaler.is_enabled()
    if not prepared:
        prepare(optimizer, parameters, scaler, faults, unscale=clip is not None)
    if clip is not None:
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    if scaler is None or not scaled:
        optimizer.step()
    else:
        scale = scaler.get_scale()
        if agree:
            everywhere(scaler, optimizer)
        scaler.step(optimizer)
        scaler.update()
        dtprof.metric("loss_scale", scale)
        dtprof.metric("skipped", float(scaler.get_scale() < scale), unit="steps")
    optimizer.zero_grad()
    return norm


def prepare(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[nn.Parameter],
    scaler: torch.amp.GradScaler | None,
    faults: Faults | None,
    *,
    unscale: bool = True,
) -> None:
    """Plant the overflow of a fault; unscale gradients that are scaled, unless the fault clip_before_unscale forgets it."""
    if faults is not None and faults.overflows():
        next(p.grad for p in parameters if p.grad is not None).fill_(math.inf)
    if unscale and scaler is not None and scaler.is_enabled() and not (faults and faults.has("clip_before_unscale")):
        scaler.unscale_(optimizer)


def everywhere(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Unscale, if that has not been done, and let an overflow on one rank count on all."""
    states: Any = scaler._per_optimizer_states[id(optimizer)]  # torch has no public name for it
    if states["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
    for found in states["found_inf_per_device"].values():
        dist.all_reduce(found, dist.ReduceOp.MAX)
