"""A plain DDP loop with a fault of a kind that the reference jobs do not plant.

usage: faulty.py OUT FAULT     FAULT: slow_backward, heavy_first_layer, heavy_first_layer_flag, uneven_inputs, none
"""

import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import dtprof

OUT, FAULT = sys.argv[1:3]
STEPS, CAPTURE = 16, (4, 14)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
width = 1024 if FAULT.startswith("heavy") else 256
layers: list[nn.Module] = []
if FAULT.startswith("heavy"):
    layers += [nn.Linear(4096, 1024), nn.ReLU()]
for _ in range(6):
    layers += [nn.Linear(width, width), nn.ReLU()]
model = nn.Sequential(*layers)
ddp = DistributedDataParallel(model, find_unused_parameters=FAULT.endswith("_flag"), bucket_cap_mb=4)
if FAULT == "slow_backward" and rank == 1:
    model[8].register_full_backward_hook(lambda *_: time.sleep(0.05))
optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
steps = (6 if rank else 3) if FAULT == "uneven_inputs" else STEPS
capture = (1, 6) if FAULT == "uneven_inputs" else CAPTURE
joined = Join([ddp]) if FAULT == "uneven_inputs" else contextlib.nullcontext()
with dtprof.profile(OUT, capture=capture) as prof, joined:
    for _ in range(steps):
        x = torch.randn(64, layers[0].in_features)
        with dtprof.annotate("forward"):
            loss = ddp(x).square().mean()
        with dtprof.annotate("backward"):
            loss.backward()
        with dtprof.annotate("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        prof.step(loss=loss)
dist.destroy_process_group()
