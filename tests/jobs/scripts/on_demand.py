"""Two ranks that train until they are told to end; what is captured is decided from outside, or by an anomaly.

usage: on_demand.py OUT asked          until OUT/end exists
       on_demand.py OUT anomaly        SLOW_STEP of rank 1 takes five seconds
       on_demand.py OUT slow_export    rank 2 writes its trace to a slow file system, under a short collective timeout
"""

import datetime
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_collectors import torch_profiler

SLOW_STEP = 60


def step(ddp):
    with dtprof.annotate("forward"):
        loss = ddp(torch.randn(16, 96)).square().mean()
    with dtprof.annotate("backward"):
        loss.backward()
    ddp.zero_grad()
    time.sleep(0.005)


def asked(out, ddp):
    ends = torch.zeros(1)
    with dtprof.profile(out, capture="2:4") as prof:
        while not ends.item():
            step(ddp)
            ends.fill_((out / "end").exists())
            dist.all_reduce(ends)
            prof.step()


def anomaly(out, ddp):
    with dtprof.profile(out, capture=None, anomaly={"floor": 20, "steps": 2}) as prof:
        for k in range(1000):
            step(ddp)
            if k == SLOW_STEP and dist.get_rank() == 1:
                time.sleep(5)
            prof.step()
            told = prof._windows.told
            if told and told[0]["state"] == "done":
                break


def slow_export(out, ddp):
    """Each write to the part folder takes 6 s; a collective may take 4."""
    original = torch_profiler.compress

    def compress(raw, target):
        time.sleep(6)
        return original(raw, target)

    if dist.get_rank() == 2:
        torch_profiler.compress = compress
    with dtprof.profile(out, capture="3:5") as prof:
        for _ in range(12):
            step(ddp)
            prof.step()
    dist.barrier()


def main():
    out, scenario = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    seconds = 4 if scenario == "slow_export" else 120
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    torch.manual_seed(7)
    ddp = DistributedDataParallel(nn.Sequential(*[nn.Linear(96, 96) for _ in range(4)]))
    {"asked": asked, "anomaly": anomaly, "slow_export": slow_export}[scenario](out, ddp)
    if scenario != "slow_export":
        dist.barrier()
        dist.destroy_process_group()


main()
