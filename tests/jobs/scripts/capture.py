"""Two ranks, one process group, several sessions: what the collectors record.

usage: capture.py OUT [SCENARIO …]
"""

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_collectors import torch_profiler


def build(**kwargs):
    torch.manual_seed(7)
    model = nn.Sequential(*[nn.Linear(96, 96) for _ in range(6)])
    return DistributedDataParallel(model, bucket_cap_mb=0.05, **kwargs)


def train(session, ddp, steps, at_step=None):
    with session:
        for step in range(steps):
            with dtprof.annotate("forward", microbatch=0):
                loss = ddp(torch.randn(16, 96)).square().mean()
            with dtprof.annotate("backward"):
                loss.backward()
            ddp.zero_grad()
            if at_step:
                at_step(step)
            dtprof.step()


def window(out):
    train(dtprof.profile(out, capture="3:6"), build(), 9)


def from_the_start(out):
    train(dtprof.profile(out, capture="0:2"), build(), 4)


def cut_short(out):
    train(dtprof.profile(out, capture="3:6"), build(), 5)


def slow_export(out):
    """Rank 1's file system answers only after the loop has gone on for three steps."""
    gone_on, original = threading.Event(), torch_profiler.compress

    def compress(raw, target):
        assert gone_on.wait(60), "the loop waits for the file"
        return original(raw, target)

    if dist.get_rank() == 1:
        torch_profiler.compress = compress
    train(dtprof.profile(out, capture="3:6"), build(), 9, lambda step: gone_on.set() if step == 8 else None)
    torch_profiler.compress = original


def slow_layer(out):
    """The backward pass of rank 1 stops for 50 ms before layer 3's own gradients."""
    ddp = build()
    if dist.get_rank() == 1:
        ddp.module[3].register_full_backward_pre_hook(lambda module, grad: time.sleep(0.05))
    train(dtprof.profile(out, capture="3:6"), ddp, 7)


def made_late(out):
    """The wrapper is made after profile() has begun, just before the window."""
    with dtprof.profile(out, capture="1:3"):
        ddp = build()
        for _ in range(4):
            ddp(torch.randn(16, 96)).square().mean().backward()
            ddp.zero_grad()
            dtprof.step()


def join(out):
    """Rank 0 has three batches, rank 1 six."""
    ddp = build()
    with dtprof.profile(out, capture="1:3"), Join([ddp]):
        for _ in range(3 if dist.get_rank() == 0 else 6):
            ddp(torch.randn(16, 96)).square().mean().backward()
            ddp.zero_grad()
            dtprof.step()


def unused(out):
    """One layer takes no part; the default bucket size."""
    torch.manual_seed(7)
    model = nn.ModuleDict({"first": nn.Linear(512, 512), "idle": nn.Linear(8, 8), "rest": nn.Linear(512, 16)})
    model.forward = lambda x: model["rest"](model["first"](x))
    ddp = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    with dtprof.profile(out, capture="2:4"):
        for _ in range(5):
            ddp(torch.randn(4, 512)).square().mean().backward()
            ddp.zero_grad()
            dtprof.step()


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for scenario in (window, from_the_start, cut_short, slow_export, slow_layer, made_late, join, unused):
        if scenario.__name__ in wanted or not wanted:
            scenario(out / scenario.__name__)
    dist.destroy_process_group()


main()
