"""Tensor parallelism: the ranks have the same batch, and each a share of every matrix, as Megatron-LM divides them.

A block divides attention by heads and the feed-forward layer by its hidden width, and has two all-reduces of batch x sequence
x dim in each pass (Shoeybi et al., 2019). Sequence parallelism (Korthikanti et al., 2022) divides norms and residuals along
the sequence: a reduce-scatter and an all-gather take the place of each all-reduce, which move as much, and less is kept for
the backward pass. Loss parallelism leaves the logits divided along the vocabulary, instead of gathering them.

    dtprof job tensor_parallel --ranks 2 --sequence-parallel
    dtprof job tensor_parallel --ranks 2 --loss-parallel --lab rate=1gbit --block-ms 10
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.tensor_parallel --out runs/tensor --sequence-parallel

Asynchronous tensor parallelism splits a matrix product and its all-gather or reduce-scatter into pieces that overlap. torch
has it in its compiler, on CUDA devices with symmetric memory.
"""

import argparse
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.block_time import add_block_ms, check_block_ms, take
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.options import check_common, common_parser, read_options, refuse
from dtprof_sample_jobs.common.setup import World, autocast, make_model, train, world
from dtprof_sample_jobs.common.tensor import SavedBytes, by_layout, check_tensor, clip, norm_squared, parallelize, settle
from dtprof_sample_jobs.common.update import make_optimizer, schedule, update


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("tensor_parallel", __doc__)
    made.add_argument("--sequence-parallel", action="store_true", help="divide norms and residuals along the sequence")
    made.add_argument("--loss-parallel", action="store_true", help="leave the logits divided along the vocabulary")
    made.add_argument("--async-tp", action="store_true", help="overlap matrix products with their messages; CUDA only")
    add_block_ms(made)
    return made


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks, data_ranks=1)
    check_block_ms("tensor_parallel", args)
    why = "parameters, activations and gradients are divided among the ranks, as DTensors"
    refuse(
        args, "tensor_parallel", fp16=why, fp8=why, offload_activations=why, offload_states=why, offload_parameters=why
    )  # fmt: skip
    divided = args.sequence_parallel
    check_tensor(ranks, heads=args.heads, dim=args.dim, sequence=args.seq, vocabulary=args.vocabulary, divided=divided)
    if args.async_tp and not torch.cuda.is_available():
        raise InputError(
            "--async-tp needs CUDA symmetric memory (GPUs that reach each other's memory), and here is no GPU", "leave it out"
        )
    if args.async_tp and not divided:
        raise InputError("--async-tp overlaps the messages of sequence parallelism", "add --sequence-parallel")


def overlap(model: GPT, mesh: DeviceMesh) -> None:
    """Asynchronous tensor parallelism: the compiler fuses matrix products with the all-gathers and reduce-scatters."""
    from torch._inductor import config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)
    for block in model.blocks:
        block.compile(fullgraph=True)


class Step:
    """One training step."""

    def __init__(self, args: argparse.Namespace, me: World, mesh: DeviceMesh, faults: Faults) -> None:
        self.args, self.me = args, me
        # every rank makes the whole model, so that all have the same, and keeps its share
        model = make_model(args, me.device)
        assert isinstance(model, GPT)
        faults.plant(model.blocks)
        take(model.blocks, round(args.block_ms * 1e6 / me.size))
        self.marks = BackwardMarks(model.blocks.named_children())
        parallelize(model, mesh, sequence=args.sequence_parallel, loss=args.loss_parallel)
        if args.async_tp:
            overlap(model, mesh)
        self.model, self.parameters = model, list(model.parameters())
        self.optimizer = make_optimizer(by_layout(self.parameters), kind=args.optimizer, rate=args.lr)
        schedule(self.optimizer, args, args.batch)
        self.data = make_data(args, 0, 1, faults)

    def __call__(self, k: int) -> Tensor:
        """Step ``k``; returns the loss, which all ranks have. The first one counts the activations."""
        with dtprof.annotate("data"):
            tokens = self.data.batch(k).to(self.me.device, non_blocking=True)
        counted = SavedBytes(self.model) if k == 0 and self.args.checkpointing == "none" else None
        with self.divided_loss():
            with dtprof.annotate("forward"), autocast(self.args.precision, self.me.device), counted or contextlib.nullcontext():
                loss: Tensor = self.model(tokens)
            with dtprof.annotate("backward"):
                loss.backward()
                self.marks.close()
        if counted is not None:
            dtprof.metric("activation_bytes", counted.total, unit="bytes")
        with dtprof.annotate("optimizer"):
            settle(self.parameters)
            if self.args.clip is not None:
                clip(self.parameters, self.args.clip, norm_squared(self.parameters))
            update(self.optimizer, self.parameters)
        return loss.full_tensor() if isinstance(loss, DTensor) else loss

    def divided_loss(self) -> AbstractContextManager[Any]:
        """What both passes run in: cross-entropy of logits that are divided along the vocabulary, where asked for."""
        return loss_parallel() if self.args.loss_parallel else contextlib.nullcontext()


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    mesh, faults = Mesh({"tp": me.size}), Faults(args.inject, me.rank)
    step = Step(args, me, mesh.device_mesh(me.device.type), faults)
    train("tensor_parallel", args, me, step, mesh=mesh, faults=faults, data_ranks=1)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
