"""Pipeline parallelism: every rank has some of the blocks, and a batch goes through the ranks in micro-batches.

Stages are slices of the model; with p ranks, m micro-batches, and per stage f for forward and b for backward, the bubble is

    gpipe, 1f1b    (p-1)(f+b), or (p-1)/(m+p-1) of the step; 1f1b keeps the activations of p micro-batches, not of m
    interleaved    two stages on a rank, so that filling takes half the time: (p-1)/(2m) of the ideal time
    zerobubble     interleaved; backward is parted into that of the input and that of the weights, which fills gaps
    zbv, dualpipev the same with stages in the form of a V: rank 0 has the first and the last

(Narayanan et al., Megatron-LM, 2021; Qi et al., Zero Bubble, 2024; DeepSeek-V3, 2024, for DualPipe.)

    dtprof job pipeline --ranks 2 --schedule interleaved --microbatches 8
    dtprof job pipeline --ranks 4 --layers 8 --checkpointing full --checkpoint-stages 0,1
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.pipeline --out runs/pipeline --schedule zbv --emulate stages.toml
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.emulate import Emulated
from dtprof_sample_jobs.common.faults import COMMON, SCALED, Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.options import check_common, common_parser, positive, read_options, refuse
from dtprof_sample_jobs.common.recompute import recompute
from dtprof_sample_jobs.common.setup import World, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, prepare, update

SCHEDULES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zerobubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}
ONE_STAGE, V_SHAPED = ("gpipe", "1f1b"), ("zbv", "dualpipev")
EMBEDDING, HEAD = ("tokens", "positions"), ("norm", "head")


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("pipeline", __doc__, (*COMMON, *SCALED, "stage_imbalance", "few_microbatches"))
    made.add_argument("--schedule", choices=SCHEDULES, default="1f1b", help="the order of the work (1f1b)")
    made.add_argument("--microbatches", type=positive, default=8, metavar="M", help="micro-batches per step (8)")
    made.add_argument("--checkpoint-stages", type=numbers, metavar="N,…", help="stages that --checkpointing is for (all)")
    return made


def numbers(text: str) -> frozenset[int]:
    """An argparse type: ``0,2``."""
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of stages such as 0,2")
    return frozenset(int(word) for word in text.split(","))


def microbatches_of(args: argparse.Namespace) -> int:
    """The number asked for, or that of the fault few_microbatches."""
    return int(Faults(args.inject, rank=0).amount("few_microbatches") or args.microbatches)


def stages_of(schedule: str, ranks: int) -> int:
    """Stages in all: one per rank, or two."""
    return ranks if schedule in ONE_STAGE else 2 * ranks


def stages_on(schedule: str, rank: int, ranks: int) -> tuple[int, ...]:
    """Numbers of the stages on a rank."""
    if schedule in ONE_STAGE:
        return (rank,)
    return (rank, 2 * ranks - 1 - rank) if schedule in V_SHAPED else (rank, ranks + rank)


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    stages, micro = stages_of(args.schedule, ranks), microbatches_of(args)
    check_common(args, ranks, stages, data_ranks=1)
    refuse(args, "pipeline", offload_parameters="many micro-batches are under way in a block at once")
    layers = len(args.emulate.layers) if args.emulate else args.layers
    name, rounds = args.schedule, max(micro // ranks, 1)
    if stages < 2:
        raise InputError(f"{name} on one rank is no pipeline", "give --ranks 2, or a schedule with two stages on a rank")
    if layers < stages:
        raise InputError(f"{name} on {ranks} ranks has {stages} stages, and the model {layers} layers", "give more layers")
    if name in ("1f1b", "dualpipev") and micro < stages:
        raise InputError(f"{name} needs a micro-batch for each of {stages} stages, not {micro}", f"give {stages} or more")
    if name in ("interleaved", "zerobubble") and micro % rounds:
        raise InputError(f"{name} cannot part {micro} micro-batches into {rounds} rounds", f"give a multiple of {ranks}")
    if beyond := [n for n in args.checkpoint_stages or () if n >= stages]:
        raise InputError(f"--checkpoint-stages: there is no stage {min(beyond)}", f"there are {stages}, numbered from 0")


class Slice(nn.Module):
    """Some blocks of a model; on the first stage its embeddings too, on the last its head. Parameters keep their names."""

    def __init__(self, model: GPT | Emulated, stage: int, stages: int) -> None:
        super().__init__()
        first, last = stage == 0, stage == stages - 1
        self.embed: Callable[[Tensor], Tensor] | None = model.embed if first else None
        self.project: Callable[[Tensor], Tensor] | None = model.project if last else None
        for name in EMBEDDING * first + HEAD * last:
            if hasattr(model, name):
                self.add_module(name, getattr(model, name))
        count = len(model.blocks)
        mine = range(count * stage // stages, count * (stage + 1) // stages)
        self.blocks = nn.ModuleDict({str(n): model.blocks[n] for n in mine})

    def forward(self, x: Tensor) -> Tensor:
        """Tokens on the first stage, what the stage before gives on the others; logits on the last."""
        if self.embed is not None:
            x = self.embed(x)
        for number, block in self.blocks.items():
            with dtprof.annotate("block", layer=f"blocks.{number}"):
                x = block(x)
        return x if self.project is None else self.project(x)


class TaggedStage(PipelineStage):
    """A stage that marks what it computes, one range per micro-batch and pass, whatever schedule calls it.

    torch's own annotations (``PP:1F0``) exist in schedules with several stages per rank only, and contain the waiting.
    """

    marks: BackwardMarks

    @contextlib.contextmanager
    def marked(self, name: str, phase: str, microbatch: int) -> Iterator[None]:
        """The range around one pass."""
        self.marks.microbatch = microbatch
        with dtprof.annotate(name, phase=phase, microbatch=microbatch, stage=self.stage_index):
            yield
            self.marks.close()

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The forward pass."""
        with self.marked("forward", "forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: Any = False
    ) -> Any:
        """The backward pass, or its part for the input."""
        name = "backward" if full_backward else "backward input"
        with self.marked(name, "backward", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The part of the backward pass for the weights."""
        with self.marked("backward weight", "backward", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


def clip(parameters: Sequence[nn.Parameter], norm: float, group: dist.ProcessGroup) -> None:
    """Clip the gradients by the norm over all stages."""
    squares = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) ** 2
    dist.all_reduce(squares, group=group)
    torch.nn.utils.clip_grads_with_norm_(parameters, norm, squares.sqrt())


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    mesh, micro, stages = Mesh({"pp": me.size}), microbatches_of(args), stages_of(args.schedule, me.size)
    # every rank makes the whole model on the host, so that all have the same; only its slices go to its device
    model = make_model(argparse.Namespace(**{**vars(args), "checkpointing": "none"}), torch.device("cpu"))
    slices = {n: Slice(model, n, stages).to(me.device) for n in stages_on(args.schedule, me.rank, me.size)}
    for number, part in slices.items():
        if args.checkpoint_stages is None or number in args.checkpoint_stages:
            recompute(part.blocks.values(), args.checkpointing)
        Faults(args.inject, me.rank, number).plant(list(part.blocks.values()))
    group = mesh.device_mesh(me.device.type).get_group("pp")
    held = [TaggedStage(part, n, stages, me.device, group=group) for n, part in slices.items()]
    for stage, part in zip(held, slices.values(), strict=True):
        stage.marks = BackwardMarks(part.blocks.items())

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        last = held[-1]
        with dtprof.annotate("loss", phase="forward", microbatch=last.marks.microbatch, stage=last.stage_index):
            return scaler.scale(model.loss(output, targets))

    scaler = make_scaler(args, me.device)
    schedule = SCHEDULES[args.schedule](held[0] if args.schedule in ONE_STAGE else held, micro, loss_fn=loss_of)
    parameters = [p for part in slices.values() for p in part.parameters()]
    optimizer = make_optimizer(parameters, kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))
    equip(model.blocks, optimizer, args, args.batch * micro)
    faults = Faults(args.inject, me.rank)
    data = make_data(args, 0, 1, faults)

    def step(k: int) -> Tensor | None:
        with dtprof.annotate("data"):
            tokens = torch.cat([data.batch(k * micro + m) for m in range(micro)]).to(me.device, non_blocking=True)
        inputs = (tokens[:, :-1],) if 0 in slices else ()
        losses: list[Tensor] = []
        last = {"target": tokens[:, 1:], "losses": losses} if stages - 1 in slices else {}
        # backward stays in this thread, and therefore inside the ranges of its stage, on a device too
        with torch.autograd.set_multithreading_enabled(False), autocast(args.precision, me.device):
            schedule.step(*inputs, **last, return_outputs=False)
        with dtprof.annotate("optimizer"):
            if args.clip is not None:
                prepare(optimizer, parameters, scaler, faults)
                clip(parameters, args.clip, group)
            scale = scaler.get_scale()
            update(optimizer, parameters, scaler=scaler, faults=faults, agree=True, prepared=args.clip is not None)
        return torch.stack(losses).mean() / scale if losses else None

    train("pipeline", args, me, step, mesh=mesh, faults=faults, sequences=args.batch * micro, data_ranks=1)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
