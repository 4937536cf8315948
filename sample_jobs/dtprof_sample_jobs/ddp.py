"""Data parallelism with DistributedDataParallel: every rank has the whole model and its own batch.

Gradients are averaged over the ranks in buckets, and a bucket's all-reduce runs while backward goes on.

    dtprof job ddp --ranks 2 --inject slow_rank=1:20ms
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.ddp --out runs/ddp --bucket-cap-mb 4
"""

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_sample_jobs.common.data import SyntheticTokens
from dtprof_sample_jobs.common.faults import plant
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.options import common_parser
from dtprof_sample_jobs.common.setup import train, world


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("ddp", __doc__)
    made.add_argument("--bucket-cap-mb", type=float, help="DDP's bucket size in MiB (DDP's own default)")
    made.add_argument("--find-unused-parameters", action="store_true", help="have DDP look for parameters without gradient")
    made.add_argument("--mark-buckets", action="store_true", help="mark each bucket as a range, by a communication hook")
    return made


# DDP compares a hook's annotations with its own: they must be objects, not texts
def marked_all_reduce(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """DDP's usual all-reduce of a bucket, inside a range that begins when the bucket is full and ends when it is issued."""
    with dtprof.annotate("bucket", bucket=bucket.index()):
        return allreduce_hook(group, bucket)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = parser().parse_args(argv)
    with world(args.seed) as me:
        model = GPT(args.vocabulary, args.layers, args.dim, args.heads, args.seq).to(me.device)
        plant(args.inject, model.blocks, me.rank)
        # an absent bucket_cap_mb is not the same as 25: it also makes the first bucket small
        bucket = {} if args.bucket_cap_mb is None else {"bucket_cap_mb": args.bucket_cap_mb}
        ddp = DistributedDataParallel(model, find_unused_parameters=args.find_unused_parameters, **bucket)
        if args.mark_buckets:
            ddp.register_comm_hook(dist.group.WORLD, marked_all_reduce)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-4, fused=True)
        data = SyntheticTokens(args.vocabulary, args.batch, args.seq, seed=args.seed, rank=me.rank)

        def step(k: int) -> Tensor:
            with dtprof.annotate("data"):
                tokens = data.batch(k).to(me.device, non_blocking=True)
            with dtprof.annotate("forward"):
                loss: Tensor = ddp(tokens)
            with dtprof.annotate("backward"):
                loss.backward()
            with dtprof.annotate("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            return loss

        train("ddp", args, me, step)


if __name__ == "__main__":
    main()
