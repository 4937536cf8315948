"""Data parallelism with DistributedDataParallel: every rank has the whole model and its own batch.

Gradients are averaged over the ranks in buckets, and a bucket's all-reduce runs while backward goes on.

    dtprof job ddp --ranks 2 --inject slow_rank=1:20ms
    dtprof job ddp --ranks 3 --accumulate 4 --bucket-cap-mb 4 --gradient-as-bucket-view
    dtprof job ddp --ranks 2 --compress topk --data corpus
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.ddp --out runs/ddp --bucket-cap-mb 4
"""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DataParallel, DistributedDataParallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.compression import Averaged, Bucket, OneBit, TopK
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import COMMON, SCALED, Faults
from dtprof_sample_jobs.common.noise import NoiseScale
from dtprof_sample_jobs.common.options import check_common, common_parser, number, positive, read_options
from dtprof_sample_jobs.common.setup import World, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, update

FAULTS = (*COMMON, "tiny_buckets", "find_unused", "no_sync_forgotten", "no_sync_backward_only", "out_of_data", *SCALED)
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "topk", "onebit")
ONE_BUCKET_MB = 1 << 20


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("ddp", __doc__, FAULTS)
    add = made.add_argument
    add("--bucket-cap-mb", type=number, metavar="MIB", help="DDP's bucket size in MiB (DDP's own default)")
    add("--bucket-cap-mb-list", type=sizes, metavar="MIB,…", help="sizes of the first buckets; the last is for all others")
    add("--gradient-as-bucket-view", action="store_true", help="gradients are views of the buckets: no copy, less memory")
    add("--static-graph", action="store_true", help="tell DDP that every step uses the same parameters")
    add("--find-unused-parameters", action="store_true", help="have DDP look for parameters without gradient")
    add("--accumulate", type=positive, default=1, metavar="N", help="micro-batches per step (1); all but the last without sync")
    add("--uneven", type=int, default=0, metavar="N", help="rank 0 has N steps fewer, and joins (Join)")
    add("--compress", choices=COMPRESSIONS, default="none", help="gradient compression (none)")
    add("--top-k", type=number, default=0.01, metavar="RATIO", help="part of the elements that topk sends (0.01)")
    add("--powersgd-rank", type=positive, default=1, metavar="R", help="rank of PowerSGD's matrices (1)")
    add("--no-error-feedback", action="store_true", help="topk, onebit, powersgd: forget what was not sent")
    add("--noise-scale", action="store_true", help="record the gradient noise scale")
    add("--mark-buckets", action="store_true", help="mark each bucket as a range, by a communication hook")
    add("--data-parallel", action="store_true", help="DataParallel, one process for all GPUs, as a contrast")
    return made


def sizes(text: str) -> list[float]:
    """An argparse type: ``1,5,25``."""
    try:
        found = [number(size) for size in text.split(",")]
    except argparse.ArgumentTypeError:
        found = []
    if not found or min(found) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes such as 1,5,25")
    return found


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError where the options cannot go together."""
    check_common(args, ranks)
    kinds = {f.kind for f in args.inject}
    capped = args.bucket_cap_mb is not None or args.bucket_cap_mb_list or "tiny_buckets" in kinds
    if args.bucket_cap_mb is not None and args.bucket_cap_mb <= 0:
        raise InputError(f"--bucket-cap-mb {args.bucket_cap_mb} holds nothing", "give more than 0, or leave it out")
    if args.bucket_cap_mb is not None and args.bucket_cap_mb_list:
        raise InputError("--bucket-cap-mb and --bucket-cap-mb-list exclude each other", "give one of them")
    if not 0 < args.top_k <= 1:
        raise InputError(f"--top-k {args.top_k} is no part of the elements", "give more than 0, at most 1")
    check_hooks(args, ranks)
    if args.compress == "powersgd" and capped and not torch.cuda.is_available():
        raise InputError("PowerSGD with several buckets aborts on gloo", "leave the bucket size out: one bucket is used")
    for kind in ("no_sync_forgotten", "no_sync_backward_only"):
        if kind in kinds and args.accumulate < 2:
            raise InputError(f"--inject {kind} needs micro-batches to act on", "add --accumulate 2 or more")
    if not all(0 < steps_of(args, rank) <= args.steps for rank in range(ranks)):
        raise InputError("--uneven or out_of_data leaves a rank no step", f"it may have 0 to {args.steps - 1} fewer")
    if joins(args) and kinds & {"barrier_every_step", "late_collective"}:
        raise InputError("--uneven cannot be had with a collective of the job's own in every step", "leave one of them out")
    if args.data_parallel and ranks != 1:
        raise InputError(f"--data-parallel is one process, not {ranks}", "give --ranks 1")
    if args.data_parallel and not torch.cuda.is_available():
        raise InputError("DataParallel needs GPUs, and here is none", "leave --data-parallel out")


def check_hooks(args: argparse.Namespace, ranks: int) -> None:
    """InputError for options that would each register a communication hook: DDP takes one."""
    if args.mark_buckets and args.compress not in ("none", "topk", "onebit"):
        raise InputError(f"--mark-buckets cannot be had with --compress {args.compress}", "a model has one communication hook")
    if args.noise_scale and (ranks < 2 or args.mark_buckets or args.compress != "none"):
        raise InputError("--noise-scale needs two ranks, and DDP's one communication hook", "leave the other hook out")


def steps_of(args: argparse.Namespace, rank: int) -> int:
    """Steps that a rank has data for."""
    fewer: int = args.uneven if rank == 0 else 0
    steps: int = args.steps - fewer - int(Faults(args.inject, rank).amount("out_of_data") or 0)
    return steps


def joins(args: argparse.Namespace) -> bool:
    """Does some rank have fewer steps than others?"""
    return bool(args.uneven) or Faults(args.inject, 0).has("out_of_data")


def wrap(model: nn.Module, args: argparse.Namespace, faults: Faults) -> DistributedDataParallel:
    """The model in DDP, with the options and faults that change how it is wrapped."""
    options: dict[str, Any] = {
        "find_unused_parameters": args.find_unused_parameters or faults.has("find_unused"),
        "gradient_as_bucket_view": args.gradient_as_bucket_view,
        "static_graph": args.static_graph,
    }
    # an absent bucket_cap_mb is not the same as 25: it also makes the first bucket small
    tiny = faults.amount("tiny_buckets")
    if tiny is not None or args.bucket_cap_mb is not None:
        options["bucket_cap_mb"] = args.bucket_cap_mb if tiny is None else tiny
    elif args.bucket_cap_mb_list:
        options["bucket_cap_mb_list"] = args.bucket_cap_mb_list
    elif args.compress == "powersgd":
        # its hook issues collectives from callbacks: with several buckets gloo's ranks would issue them in different orders
        options["bucket_cap_mb"] = ONE_BUCKET_MB
    ddp = DistributedDataParallel(model, **options)
    compress(ddp, args)
    return ddp


def compress(ddp: DistributedDataParallel, args: argparse.Namespace) -> None:
    """Register the communication hook that the options ask for, if any."""
    group, feedback = dist.group.WORLD, not args.no_error_feedback
    if args.compress == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif args.compress == "bf16":
        ddp.register_comm_hook(group, bf16_all_reduce)
    elif args.compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=args.powersgd_rank, start_powerSGD_iter=2, use_error_feedback=feedback,
            warm_start=feedback,
        )  # fmt: skip
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif args.compress == "topk":
        ddp.register_comm_hook(group, TopK(args.top_k, feedback=feedback).top_k_hook)
    elif args.compress == "onebit":
        ddp.register_comm_hook(group, OneBit(feedback=feedback).one_bit_hook)
    elif args.mark_buckets:
        ddp.register_comm_hook(group, marked_all_reduce)


def marked_all_reduce(group: dist.ProcessGroup, bucket: Bucket) -> Averaged:
    """DDP's usual all-reduce of a bucket, inside a range that begins when the bucket is full and ends when it is issued."""
    with dtprof.annotate("bucket", bucket=bucket.index()):
        return default_hooks.allreduce_hook(group, bucket)


def bf16_all_reduce(group: dist.ProcessGroup, bucket: Bucket) -> Averaged:
    """torch's bf16 hook; DDP refuses it by its name where there is no NCCL, although gloo can do it."""
    return default_hooks.bf16_compress_hook(group, bucket)


class Step:
    """One training step: micro-batches, of which only the last one's backward pass averages gradients."""

    def __init__(self, args: argparse.Namespace, me: World, faults: Faults) -> None:
        self.args, self.me, self.faults = args, me, faults
        model = make_model(args, me.device)
        faults.plant(model.blocks)
        self.model = DataParallel(model) if args.data_parallel else wrap(model, args, faults)
        self.optimizer = make_optimizer(model.parameters(), kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))
        equip(model.blocks, self.optimizer, args, args.batch * args.accumulate * me.size)
        self.scaler = make_scaler(args, me.device)
        self.noise = self.noise_scale()
        self.data = make_data(args, me.rank, me.size, faults)

    def noise_scale(self) -> NoiseScale | None:
        """What --noise-scale asks for."""
        if not self.args.noise_scale or not isinstance(self.model, DistributedDataParallel):
            return None
        assert dist.group.WORLD is not None
        return NoiseScale(self.model, dist.group.WORLD, self.args.batch * self.args.accumulate)

    def __call__(self, k: int) -> Tensor:
        """Step ``k``; returns the mean loss of its micro-batches."""
        count = self.args.accumulate
        losses = [self.micro_batch(k * count + m, None if count == 1 else m) for m in range(count)]
        if self.noise is not None:
            self.noise.record([p.grad / self.scaler.get_scale() for p in self.model.parameters() if p.grad is not None])
        with dtprof.annotate("optimizer"):
            update(self.optimizer, self.model.parameters(), self.args.clip, self.scaler, self.faults)
        return torch.stack(losses).mean()

    def join(self) -> Join:
        """Ranks that are done take part in the others' all-reduces, with nothing to add."""
        assert isinstance(self.model, DistributedDataParallel)
        return Join([self.model])

    def micro_batch(self, number: int, m: int | None) -> Tensor:
        """Forward and backward of micro-batch ``m`` of the step (None if it is the only one), ``number`` of all steps."""
        with dtprof.annotate("data", microbatch=m):
            tokens = self.data.batch(number).to(self.me.device, non_blocking=True)
        forward_sync, backward_sync = self.sync(m)
        with forward_sync():
            with dtprof.annotate("forward", microbatch=m), autocast(self.args.precision, self.me.device):
                loss: Tensor = self.model(tokens).mean()
            with backward_sync(), dtprof.annotate("backward", microbatch=m):
                self.scaler.scale(loss / self.args.accumulate).backward()
        return loss.detach()

    def sync(self, m: int | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """What both passes together, and backward alone, run in. DDP decides in forward whether backward will average."""
        last = m is None or m == self.args.accumulate - 1
        if last or not isinstance(self.model, DistributedDataParallel) or self.faults.has("no_sync_forgotten"):
            return contextlib.nullcontext, contextlib.nullcontext
        if self.faults.has("no_sync_backward_only"):
            return contextlib.nullcontext, self.model.no_sync
        return self.model.no_sync, contextlib.nullcontext


def run(args: argparse.Namespace, me: World) -> None:
    """Train."""
    faults = Faults(args.inject, me.rank)
    step = Step(args, me, faults)
    train(
        "ddp",
        args,
        me,
        step,
        faults=faults,
        sequences=args.batch * args.accumulate,
        steps=steps_of(args, me.rank),
        around=step.join() if joins(args) else None,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
