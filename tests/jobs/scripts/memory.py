"""Two ranks with known memory: a DDP model under Adam, and an FSDP2 model; rank 1 keeps 256 KiB more in every step.

usage: memory.py OUT ddp|fsdp|detail
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtprof

STEPS, LEAK = 70, 64 << 10


def net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))


def train(out, model, *, steps, leak=False, capture="5:8", **options):
    optimizer, kept = torch.optim.Adam(model.parameters()), []
    with dtprof.profile(out, capture=capture, options=options):
        for _ in range(steps):
            with dtprof.annotate("forward"):
                loss = model(torch.randn(32, 128)).square().mean()
            with dtprof.annotate("backward"):
                loss.backward()
            with dtprof.annotate("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            if leak:
                kept.append(torch.ones(LEAK))
            dtprof.step()


def main():
    out, what = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if what == "ddp":
        # what the profiler gives back is used again before memory grows: so it comes after most of the steps that are read
        train(out, DistributedDataParallel(net()), steps=STEPS, leak=dist.get_rank() == 1, capture="30:33")
    elif what == "detail":
        detail = {"torch_profiler": {"profile_memory": True}, "memory": {"modules": True}}
        train(out, DistributedDataParallel(net(), gradient_as_bucket_view=True), steps=9, **detail)
    else:
        from torch.distributed.fsdp import fully_shard

        model = net()
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        train(out, model, steps=9)
    dist.destroy_process_group()


main()
