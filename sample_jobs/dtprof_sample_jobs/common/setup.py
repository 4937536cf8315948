"""The process group of a job, its model, and the loop around its step, measured or plain."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore

import dtprof
from dtprof_sample_jobs.common import offload
from dtprof_sample_jobs.common.emulate import Emulated
from dtprof_sample_jobs.common.faults import Faults
from dtprof_sample_jobs.common.flops import flops_per_token, mfu
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.offload import offload_activations, offload_parameters, offload_states
from dtprof_sample_jobs.common.recompute import recompute
from dtprof_sample_jobs.common.update import schedule
from dtprof_sample_jobs.lab.spec import lab_knob


@dataclass(frozen=True)
class World:
    """This process in the job."""

    rank: int
    size: int
    device: torch.device


@contextlib.contextmanager
def world(seed: int) -> Iterator[World]:
    """Join the process group: NCCL with a GPU per rank where there are GPUs, gloo on the CPU otherwise. Seeds everything.

    Make what holds the group (DDP, FSDP) in a function of its own, so that it is gone when the block ends: a reducer that goes
    last takes the group with it while it holds Python's lock, and gloo's threads, which may need that lock, are never joined.
    """
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)
    _init_process_group("nccl" if cuda else "gloo")
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), torch.device("cuda" if cuda else "cpu"))
    finally:
        gc.collect()
        dist.destroy_process_group()


def attempt() -> int:
    """How often torchrun has started the ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _init_process_group(backend: str) -> None:
    """From the environment; after a restart with keys of its own in torchrun's store.

    Without them gloo may read the addresses of the attempt before, and meet nobody (pytorch#135712).
    """
    if attempt() == 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    own = PrefixStore(f"attempt{attempt()}of{size}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)


def make_model(args: argparse.Namespace, device: torch.device) -> GPT | Emulated:
    """The model that the common options ask for, activation checkpointing included; ``model.blocks`` are its layers."""
    model: GPT | Emulated
    if args.emulate:
        model = Emulated(args.emulate, args.vocabulary)
    else:
        model = GPT(args.vocabulary, args.layers, args.dim, args.heads, args.seq, args.attention)
    if args.precision == "fp8":
        fp8_matmuls(model.blocks)
    recompute(model.blocks, args.checkpointing)
    if args.offload_activations:
        offload_activations(model.blocks, args.offload_activations)
    return model.to(device)


def equip(blocks: nn.ModuleList, optimizer: torch.optim.Optimizer, args: argparse.Namespace, sequences: int) -> None:
    """The learning rate's schedule for ``sequences`` per step of all ranks, and offloading, as the common options ask.

    To be called when the parameters have been wrapped, moved and loaded.
    """
    schedule(optimizer, args, sequences)
    if args.offload_states:
        offload_states(optimizer, args.offload_states)
    if args.offload_parameters:
        offload_parameters(blocks, optimizer, args.offload_parameters)


def fp8_matmuls(blocks: nn.ModuleList) -> None:
    """Linear layers of the blocks whose sizes allow it (multiples of 16) multiply in float8, by torchao."""
    convert: Any = importlib.import_module("torchao.float8").convert_to_float8_training

    def wide(module: nn.Module, _name: str) -> bool:
        return isinstance(module, nn.Linear) and module.in_features % 16 == 0 and module.out_features % 16 == 0

    convert(blocks, module_filter_fn=wide)


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """What the forward pass (the loss included) runs in: autocast for bf16, fp16 and what fp8 leaves; TF32 is a global switch,
    set here.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = _AUTOCAST.get(precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def train(
    name: str,
    args: argparse.Namespace,
    me: World,
    step: Callable[[int], Tensor | None],
    *,
    mesh: Mesh | None = None,
    faults: Faults | None = None,
    steps: int | None = None,
    sequences: int | None = None,
    data_ranks: int | None = None,
    around: contextlib.AbstractContextManager[object] | None = None,
    first: int = 0,
    saves: Callable[[int], bool] | None = None,
) -> None:
    """Run ``step(k)``, which returns the loss or None, for every step, measured unless --no-dtprof says otherwise.

    ``mesh`` (the default is one axis, dp) goes to the manifest; ``faults`` are those that act at the end of a step; ``steps``
    is the number for this rank; ``sequences`` is what this rank trains on per step (--batch), ``data_ranks`` how many ranks
    have data of their own (all); ``around`` is entered around the loop (Join); ``first`` is the step to begin with, and
    ``saves(k)`` says which steps write a checkpoint.
    """
    losses: list[Tensor | float] = []
    mesh = mesh or Mesh({"dp": me.size})
    count, sequences = args.steps if steps is None else steps, sequences or args.batch
    session = dtprof.profile(
        args.out or f"runs/{name}",
        capture=None if args.capture == "none" else args.capture,
        job=name,
        knobs={**{k: v for k, v in vars(args).items() if k not in ("out", "losses")}, **lab_knob()},
        mesh=mesh.axes,
        coordinates=mesh.coordinates(),
        groups=mesh.groups(),
        first_step=first,
    )
    began = time.perf_counter()
    with contextlib.nullcontext() if args.no_dtprof else session, around or contextlib.nullcontext():
        for k in range(first, count):
            loss = step(k)
            if faults is not None:
                faults.end_of_step(k, me.device)
            offload.record()
            on_host = loss is not None and loss.device.type == "cpu"
            if loss is not None:
                # a tensor that is kept in every step would split the host's free memory, which then grows
                losses.append(loss.item() if on_host else loss.detach())
            saved = saves(k) if saves is not None else getattr(args, "save", None) and k == count - 1
            dtprof.step(
                loss=loss if on_host else None,
                tokens=sequences * args.seq,
                samples=sequences,
                kind="checkpoint" if saved or (faults is not None and faults.stalls(k)) else None,
            )
            if k == first:
                began = _now(me.device)
    seconds = _now(me.device) - began
    offload.forget()
    if args.losses:
        write_losses(args.losses, me.rank, losses)
    if me.rank == 0 and count:
        text = f"{name}: {count - first} steps on {me.size} ranks"
        if losses:
            text += f", loss {float(losses[0]):.4f} to {float(losses[-1]):.4f}"
        if count > first + 1:
            tokens = sequences * args.seq * (data_ranks or me.size)
            text += ", " + _speed(args, me, tokens * (count - first - 1) / seconds)
        print(text, flush=True)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _speed(args: argparse.Namespace, me: World, tokens_per_s: float) -> str:
    """Tokens per second of the whole job and MFU, in words."""
    used = None
    if me.device.type == "cuda" and not getattr(args, "emulate", None):
        per_token = flops_per_token(args.layers, args.dim, args.seq, args.vocabulary, getattr(args, "experts_per_token", 1))
        used = mfu(tokens_per_s, per_token, me.size, torch.cuda.get_device_name(), getattr(args, "precision", "fp32"))
    return f"{tokens_per_s:,.0f} tokens/s, MFU {'not known' if used is None else f'{used:.1%}'}"


def write_losses(path: str, rank: int, losses: Sequence[Tensor | float]) -> None:
    """Write losses as hexadecimal floats: equal text is equal bits."""
    Path(f"{path}.rank{rank}").write_text(json.dumps([float(loss).hex() for loss in losses]))
