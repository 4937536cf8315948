"""The process group of a job, and the loop around its step, measured or plain."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import dtprof


@dataclass(frozen=True)
class World:
    """This process in the job."""

    rank: int
    size: int
    device: torch.device


@contextlib.contextmanager
def world(seed: int) -> Iterator[World]:
    """Join the process group: NCCL with a GPU per rank where there are GPUs, gloo on the CPU otherwise."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(seed)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), torch.device("cuda" if cuda else "cpu"))
    finally:
        dist.destroy_process_group()


def train(name: str, args: argparse.Namespace, me: World, step: Callable[[int], Tensor]) -> None:
    """Run ``step(k)``, which returns the loss, for every step, measured unless --no-dtprof says otherwise."""
    losses: list[Tensor] = []
    capture = None if args.capture == "none" else args.capture
    knobs = {k: v for k, v in vars(args).items() if k not in ("out", "losses")}
    session = dtprof.profile(args.out or f"runs/{name}", capture=capture, job=name, knobs=knobs)
    with contextlib.nullcontext() if args.no_dtprof else session:
        for k in range(args.steps):
            loss = step(k)
            losses.append(loss.detach())
            dtprof.step(loss=loss if loss.device.type == "cpu" else None, tokens=args.batch * args.seq, samples=args.batch)
    if args.losses:
        write_losses(args.losses, me.rank, losses)
    if me.rank == 0:
        first, last = losses[0].item(), losses[-1].item()
        print(f"{name}: {args.steps} steps on {me.size} ranks, loss {first:.4f} to {last:.4f}", flush=True)


def write_losses(path: str, rank: int, losses: Sequence[Tensor]) -> None:
    """Write losses as hexadecimal floats: equal text is equal bits."""
    Path(f"{path}.rank{rank}").write_text(json.dumps([float(loss.item()).hex() for loss in losses]))
