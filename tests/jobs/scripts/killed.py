"""A loop that steps until it is killed; says each step on stdout after it is done.

usage: killed.py OUT
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtprof

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]))
with dtprof.profile(sys.argv[1], capture="3:6") as prof:
    for step in range(10**9):
        model(torch.randn(16, 64)).sum().backward()
        prof.step(tokens=step)
        print(step, flush=True)
