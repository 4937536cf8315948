"""Context parallelism: the ranks have the same sequences, and each a part of every one; attention needs them all.

Attention goes by a ring, in which keys and values are passed on while a rank attends to those that it holds, or by all-to-alls
after which every rank has the whole sequence for some of the heads (Ulysses). ``common.context`` has both, and the splits.
All else is each token's own. Gradients are averaged over the ranks by DistributedDataParallel.

    dtprof job context_parallel --ranks 2 --seq 256
    dtprof job context_parallel --ranks 4 --method ulysses
    dtprof job context_parallel --ranks 4 --inject unbalanced_split=all --block-ms 40
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.context_parallel --out runs/context --split contiguous

A causal text that is cut into equal parts, one per rank, is not equal work: the last rank attends to all of it. The zigzag
split is balanced. ``--method torch`` is torch's own ring (context_parallel), which trains on CUDA devices only.
"""

import argparse
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.block_time import add_block_ms, check_block_ms
from dtprof_sample_jobs.common.context import SPLITS, Ring, Split, Ulysses
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import COMMON, SCALED, Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT, Block
from dtprof_sample_jobs.common.options import check_common, common_parser, read_options
from dtprof_sample_jobs.common.setup import World, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, update

METHODS = ("ring", "ulysses", "torch")


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("context_parallel", __doc__, (*COMMON, *SCALED, "unbalanced_split"))
    made.add_argument("--method", choices=METHODS, default="ring", help="how attention gets all of the sequence (ring)")
    made.add_argument("--split", choices=SPLITS, default="zigzag", help="which parts of the sequence a rank has (zigzag)")
    made.add_argument("--no-overlap", action="store_true", help="ring: send when the computing beside it has ended")
    add_block_ms(made, "attention of each block")
    return made


def split_of(args: argparse.Namespace, ranks: int) -> Split:
    """The split asked for, or that of the fault unbalanced_split."""
    return Split("contiguous" if Faults(args.inject, rank=0).has("unbalanced_split") else args.split, ranks)


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks, data_ranks=1)
    check_block_ms("context_parallel", args)
    split = split_of(args, ranks)
    if args.seq % split.parts:
        raise InputError(f"--seq {args.seq} cannot be cut into {split.parts} parts ({split.kind})", "give a multiple")
    if args.method == "ulysses" and args.heads % ranks:
        raise InputError(f"--heads {args.heads} cannot be divided among {ranks} ranks", "give a multiple, or --method ring")
    if args.method != "ring" and args.no_overlap:
        raise InputError(f"--no-overlap is for the ring, not for --method {args.method}", "leave it out")
    if Faults(args.inject, rank=0).has("unbalanced_split") and (args.method != "ring" or ranks == 1):
        raise InputError("unbalanced_split is for a ring of two ranks or more", "use --method ring and --ranks 2")
    if args.method == "torch" and not torch.cuda.is_available():
        raise InputError("torch's context_parallel cannot train on the CPU", "use --method ring or ulysses here")
    if args.method == "torch" and (args.split != "zigzag" or args.block_ms or args.attention != "sdpa"):
        raise InputError("torch's context_parallel has a split and an attention of its own", "leave those options out")


class Part(nn.Module):
    """The model on some places of the sequences."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, places: Tensor) -> Tensor:
        """Mean loss of tokens (batch, sequence / ranks) and the ones that follow them, at ``places`` in the text."""
        x = self.model.embed(inputs, places)
        for number, block in enumerate(self.model.blocks):
            with dtprof.annotate("block", layer=f"blocks.{number}"):
                x = block(x)
        return self.model.loss(self.model.project(x), targets)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """torch's attention by its name at the time of the call: context_parallel puts its own in that place."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


class Step:
    """One training step."""

    def __init__(self, args: argparse.Namespace, me: World, mesh: DeviceMesh, faults: Faults) -> None:
        self.args, self.me, self.mesh, self.split = args, me, mesh, split_of(args, me.size)
        model = make_model(args, me.device)
        assert isinstance(model, GPT)
        faults.plant(model.blocks)
        group, block_ns = mesh.get_group(), round(args.block_ms * 1e6)
        for block in cast(list[Block], model.blocks):
            if args.method == "ring":
                block.attend = Ring(self.split, group, block_ns, not args.no_overlap)
            elif args.method == "ulysses":
                block.attend = Ulysses(self.split, group, block.attend, block_ns)
            else:
                block.attend = torch_attention
        self.marks = BackwardMarks(model.blocks.named_children())
        self.model = DistributedDataParallel(Part(model), process_group=group)
        self.optimizer = make_optimizer(model.parameters(), kind=args.optimizer, rate=args.lr)
        equip(model.blocks, self.optimizer, args, args.batch)
        self.scaler, self.faults = make_scaler(args, me.device), faults
        self.data = make_data(args, 0, 1, faults)

    def __call__(self, k: int) -> Tensor:
        """Step ``k``; returns the mean loss of this rank's tokens, which are as many as any other rank's."""
        with dtprof.annotate("data"):
            tokens = self.data.batch(k).to(self.me.device, non_blocking=True)
            inputs, targets, places = self.mine(tokens)
        with self.cut(inputs, targets, places):
            with dtprof.annotate("forward"), autocast(self.args.precision, self.me.device):
                loss: Tensor = self.model(inputs, targets, places)
            with dtprof.annotate("backward"):
                self.scaler.scale(loss).backward()
                self.marks.close()
        with dtprof.annotate("optimizer"):
            update(self.optimizer, self.model.parameters(), self.args.clip, self.scaler, self.faults)
        return loss.detach()

    def mine(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets (batch, sequence / ranks) and places of this rank; torch's method cuts the whole ones itself."""
        length = tokens.shape[1] - 1
        if self.args.method == "torch":
            places = torch.arange(length, device=tokens.device)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), places
        places = self.split.places(self.me.rank, length).to(tokens.device)
        return tokens[:, places], tokens[:, places + 1], places

    def cut(self, inputs: Tensor, targets: Tensor, places: Tensor) -> AbstractContextManager[Any]:
        """What both passes run in: torch's context_parallel, which cuts the three tensors in place, where asked for."""
        if self.args.method != "torch":
            return contextlib.nullcontext()
        from torch.distributed.tensor.experimental import context_parallel

        return context_parallel(self.mesh, buffers=[inputs, targets, places], buffer_seq_dims=[1, 1, 0])


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    mesh, faults = Mesh({"cp": me.size}), Faults(args.inject, me.rank)
    step = Step(args, me, mesh.device_mesh(me.device.type), faults)
    train("context_parallel", args, me, step, mesh=mesh, faults=faults, data_ranks=1)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
