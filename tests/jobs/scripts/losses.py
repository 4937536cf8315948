"""One process group, one small DDP loop, run again and again from the same seed under different disturbances.

usage: losses.py OUT [DISK]    writes OUT/losses.rankN.json: {scenario: [loss in hexadecimal, …]}
"""

import contextlib
import copy
import json
import logging
import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_collectors.ddp import DdpCollector
from dtprof_collectors.host import HostCollector
from dtprof_collectors.torch_profiler import TorchProfilerCollector

logging.basicConfig(level=logging.ERROR)
STEPS = 8


class Wrapped(DistributedDataParallel):
    """A subclass, as frameworks make them."""


class Raises:
    """A collector that raises at one of its hooks."""

    def __init__(self, hook):
        self.name, self.hook = f"raises_{hook}", hook

    def start(self, context):
        self._maybe("start")

    def on_step(self, step):
        self._maybe("on_step")

    def stop(self):
        self._maybe("stop")

    def tables(self, folder):
        return {}

    def _maybe(self, hook):
        if hook == self.hook:
            raise RuntimeError("planted")


def halve_and_sum(_state, bucket):
    """The job's own communication hook: sends half precision."""
    size = dist.get_world_size()
    half = bucket.buffer().half().div_(size)
    return dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0].float())


def train(session=None, *, hook=False, at_step=None):
    torch.manual_seed(7)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(96, 96), nn.Tanh())])
    ddp = Wrapped(model, bucket_cap_mb=0.05)
    if hook:
        ddp.register_comm_hook(None, halve_and_sum)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    with session or contextlib.nullcontext():
        for step in range(STEPS):
            with dtprof.annotate("forward"):
                loss = ddp(torch.randn(16, 96, generator=data)).square().mean()
            with dtprof.annotate("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            if at_step:
                at_step(step, model)
            dtprof.step(loss=loss)
    return losses


def measured(path, collectors=None):
    return dtprof.profile(path, capture="3:6", collectors=collectors)


def copies(step, model):
    """A job may copy and pickle its model at any time, also while our hooks are on its parameters."""
    copy.deepcopy(model)
    pickle.dumps(model.state_dict())


def filler(path):
    def fill(step, model):
        if step == 1:
            with contextlib.suppress(OSError), open(path / f"filler{dist.get_rank()}", "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)

    return fill


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {"plain": train(), "hook_plain": train(hook=True)}
    found["measured"] = train(measured(out / "measured"), at_step=copies)
    found["hook_measured"] = train(measured(out / "hook"), hook=True)
    for hook in ("start", "on_step", "stop"):
        ours = [Raises(hook), TorchProfilerCollector(), DdpCollector(), HostCollector()]
        found[f"raises_{hook}"] = train(measured(out / f"raises_{hook}", ours))
    found["read_only"] = train(measured("/proc/dtprof/run"))
    if len(sys.argv) > 2:
        disk = Path(sys.argv[2])
        found["full_disk"] = train(measured(disk / "run"), at_step=filler(disk))
    dist.destroy_process_group()
    (out / f"losses.rank{os.environ['RANK']}.json").write_text(json.dumps(found))


main()
