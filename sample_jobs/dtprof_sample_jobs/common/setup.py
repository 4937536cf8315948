"""Options that every job has, the process group, and the measured or plain loop around a step."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import dtprof
from dtprof_sample_jobs.common.faults import fault


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the common options; the job adds its own."""
    made = argparse.ArgumentParser(prog=f"dtprof job {name}", description=(doc or "").split("\n\n")[0])
    made.add_argument("--steps", type=int, default=40, help="steps to train (40)")
    made.add_argument("--layers", type=int, default=6, help="transformer blocks (6)")
    made.add_argument("--dim", type=int, default=192, help="width of the model (192)")
    made.add_argument("--heads", type=int, default=4, help="attention heads (4)")
    made.add_argument("--seq", type=int, default=64, help="sequence length (64)")
    made.add_argument("--batch", type=int, default=4, help="sequences per rank and step (4)")
    made.add_argument("--vocabulary", type=int, default=1024, help="tokens in the vocabulary (1024)")
    made.add_argument("--seed", type=int, default=0, help="seed of model and data (0)")
    made.add_argument("--inject", type=fault, action="append", default=[], metavar="FAULT", help="slow_rank=1:20ms")
    made.add_argument("--out", default=f"runs/{name}", metavar="RUN", help=f"run folder (runs/{name})")
    made.add_argument("--capture", default="5:8", metavar="A:B", help="steps to trace, A to B-1 (5:8); none for no trace")
    made.add_argument("--no-dtprof", action="store_true", help="train without any measurement")
    made.add_argument("--losses", metavar="FILE", help="write the losses, bit for bit, to FILE.rank0, FILE.rank1, …")
    return made


@dataclass(frozen=True)
class World:
    """This process in the job."""

    rank: int
    size: int
    device: torch.device


@contextlib.contextmanager
def world(seed: int):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a generator of one World
    """Join the process group: NCCL with a GPU per rank where there are GPUs, gloo on the CPU otherwise."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
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
    session = dtprof.profile(args.out, capture=capture, job=name, knobs=knobs)
    tokens = args.batch * args.seq
    with contextlib.nullcontext() if args.no_dtprof else session:
        for k in range(args.steps):
            loss = step(k)
            losses.append(loss.detach())
            dtprof.step(loss=loss if loss.device.type == "cpu" else None, tokens=tokens, samples=args.batch)
    if args.losses:
        write_losses(args.losses, me.rank, losses)
    if me.rank == 0:
        first, last = losses[0].item(), losses[-1].item()
        print(f"{name}: {args.steps} steps on {me.size} ranks, loss {first:.4f} to {last:.4f}", flush=True)


def write_losses(path: str, rank: int, losses: Sequence[Tensor]) -> None:
    """Write losses as hexadecimal floats: equal text is equal bits."""
    Path(f"{path}.rank{rank}").write_text(json.dumps([loss.item().hex() for loss in losses]))
