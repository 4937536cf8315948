"""Data, tensor and pipeline parallelism at once: a mesh of pp x dp x tp, 2 x 2 x 2 where nothing else is said.

Blocks are divided among the pipeline's stages (pp), every matrix of a stage among the ranks of a tensor-parallel group, with
sequence parallelism (tp), and what is left of it by FSDP2 among ranks that have data of their own (dp). Every rank is in one
group of each axis, and the axes differ in what they send:

    tp   activations, several times per block: all-gathers and reduce-scatters, in forward and backward
    pp   activations and their gradients between two stages, once per micro-batch: sends and receives
    dp   parameters, gathered once per step, and gradients, reduced once per step

That is why tp belongs inside a host (Narayanan et al., Megatron-LM, 2021): its ranks are neighbours here, tp being the last
axis of the mesh. The fault tp_across_nodes makes it the first.

    dtprof job hybrid --ranks 8
    dtprof job hybrid --ranks 4 --dp 2 --tp 2 --pp 1 --lab hosts=2,rate=200mbit --inject tp_across_nodes=all
    torchrun --nproc_per_node 4 -m dtprof_sample_jobs.hybrid --out runs/hybrid --dp 1 --tp 2 --pp 2
"""

import argparse
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.block_time import add_block_ms, check_block_ms, take
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import COMMON, Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.options import check_common, common_parser, positive, read_options, refuse
from dtprof_sample_jobs.common.recompute import recompute
from dtprof_sample_jobs.common.setup import World, autocast, make_model, train, world
from dtprof_sample_jobs.common.tensor import by_layout, check_tensor, clip, norm_squared, parallelize, settle
from dtprof_sample_jobs.common.update import make_optimizer, schedule, update
from dtprof_sample_jobs.pipeline import ONE_STAGE, SCHEDULES, Slice, TaggedStage

FAULTS = (*COMMON, "stage_imbalance", "tp_across_nodes")


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("hybrid", __doc__, FAULTS)
    made.add_argument("--dp", type=positive, default=2, help="ranks of data parallelism, FSDP2 (2)")
    made.add_argument("--tp", type=positive, default=2, help="ranks of tensor and sequence parallelism (2)")
    made.add_argument("--pp", type=positive, default=2, help="pipeline stages, one per rank (2)")
    made.add_argument("--schedule", choices=ONE_STAGE, default="1f1b", help="the pipeline's order of the work (1f1b)")
    made.add_argument("--microbatches", type=positive, default=4, metavar="M", help="micro-batches per step (4)")
    add_block_ms(made)
    return made


def mesh_of(args: argparse.Namespace) -> Mesh:
    """Axes and their sizes, the one with neighbouring ranks last."""
    if Faults(args.inject, rank=0).has("tp_across_nodes"):
        return Mesh({"tp": args.tp, "pp": args.pp, "dp": args.dp})
    return Mesh({"pp": args.pp, "dp": args.dp, "tp": args.tp})


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    mesh_of(args).check(ranks)
    check_common(args, ranks, args.pp, data_ranks=args.dp)
    check_block_ms("hybrid", args)
    divided = "parameters and states are divided along two axes"
    refuse(
        args, "hybrid", fp16="its stages have no common scale", fp8=divided, offload_activations=divided,
        offload_states=divided, offload_parameters=divided,
    )  # fmt: skip
    check_tensor(args.tp, heads=args.heads, dim=args.dim, sequence=args.seq, vocabulary=args.vocabulary, divided=True)
    if args.layers < args.pp:
        raise InputError(f"{args.pp} stages, and the model has {args.layers} layers", "give more --layers")
    if args.schedule == "1f1b" and args.microbatches < args.pp:
        raise InputError(f"1f1b needs a micro-batch for each of {args.pp} stages, not {args.microbatches}", "give more")
    if Faults(args.inject, rank=0).has("tp_across_nodes") and (args.tp == 1 or args.dp * args.pp == 1):
        raise InputError("tp_across_nodes needs --tp 2 or more, and other ranks to lie between", "give more --dp or --pp")


def divide(part: Slice, args: argparse.Namespace, mesh: DeviceMesh) -> None:
    """Divide a stage among the ranks of its tensor-parallel group, then what each has among those with other data."""
    if args.tp > 1:
        parallelize(part, mesh["tp"], sequence=True)
    if args.dp > 1:
        bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = bf16 if args.precision == "bf16" else MixedPrecisionPolicy()
        # parameters stay gathered for all micro-batches of a step
        for block in part.blocks.values():
            fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False, mp_policy=policy)
        fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False, mp_policy=policy)


class Step:
    """One training step of this rank's stage."""

    def __init__(self, args: argparse.Namespace, me: World, mesh: DeviceMesh, faults: Faults) -> None:
        self.args, self.me = args, me
        self.number, self.group = mesh.get_local_rank("pp"), mesh.get_group("pp")
        # every rank makes the whole model on the host, so that all have the same; only its part goes to its device
        model = make_model(argparse.Namespace(**{**vars(args), "checkpointing": "none"}), torch.device("cpu"))
        part = Slice(model, self.number, args.pp).to(me.device)
        blocks = list(part.blocks.values())
        recompute(blocks, args.checkpointing)
        Faults(args.inject, me.rank, self.number).plant(blocks)
        take(blocks, round(args.block_ms * 1e6 / args.tp))
        self.stage_marks = BackwardMarks(part.blocks.items())
        divide(part, args, mesh)
        self.stage = TaggedStage(part, self.number, args.pp, me.device, group=self.group)
        self.stage.marks = self.stage_marks
        self.model = model
        # a pipeline of one stage has nothing to alternate with
        kind = SCHEDULES[args.schedule if args.pp > 1 else "gpipe"]
        self.schedule = kind(self.stage, args.microbatches, loss_fn=self.loss_of)
        self.parameters = list(part.parameters())
        self.optimizer = make_optimizer(by_layout(self.parameters), kind=args.optimizer, rate=args.lr)
        schedule(self.optimizer, args, args.batch * args.microbatches * args.dp)
        self.data = make_data(args, mesh.get_local_rank("dp"), args.dp, faults)

    def loss_of(self, output: Tensor, targets: Tensor) -> Tensor:
        """The loss of a micro-batch, on the last stage."""
        with dtprof.annotate("loss", phase="forward", microbatch=self.stage_marks.microbatch, stage=self.number):
            return self.model.loss(output, targets)

    def __call__(self, k: int) -> Tensor | None:
        """Step ``k``; returns the mean loss of its micro-batches on the last stage."""
        micro, losses = self.args.microbatches, list[Tensor]()
        with dtprof.annotate("data"):
            batches = [self.data.batch(k * micro + m) for m in range(micro)]
            tokens = torch.cat(batches).to(self.me.device, non_blocking=True)
        inputs = (tokens[:, :-1],) if self.stage.is_first else ()
        last = {"target": tokens[:, 1:], "losses": losses} if self.stage.is_last else {}
        # FSDP has a mixed precision of its own
        compute = autocast(self.args.precision if self.args.dp == 1 else "fp32", self.me.device)
        # backward stays in this thread, and therefore inside the ranges of its stage, on a device too
        with torch.autograd.set_multithreading_enabled(False), compute:
            self.schedule.step(*inputs, **last, return_outputs=False)
        with dtprof.annotate("optimizer"):
            settle(self.parameters)
            if self.args.clip is not None:
                squared = norm_squared(self.parameters)
                dist.all_reduce(squared, group=self.group)
                clip(self.parameters, self.args.clip, squared)
            update(self.optimizer, self.parameters)
        return torch.stack(losses).mean() if losses else None


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    mesh, faults = mesh_of(args), Faults(args.inject, me.rank)
    # the logits are such a view, and nobody writes into them
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    step = Step(args, me, mesh.device_mesh(me.device.type), faults)
    sequences = args.batch * args.microbatches
    train("hybrid", args, me, step, mesh=mesh, faults=faults, sequences=sequences, data_ranks=args.dp)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
