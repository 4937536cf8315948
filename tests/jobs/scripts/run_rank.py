"""One rank that finds its own number, as scripts under Slurm do; knows nothing of dtprof.

usage: run_rank.py RANKS [RANK]     without RANK: SLURM_PROCID where RANK is not set
"""

import os
import sys

import torch
import torch.distributed as dist

size = int(sys.argv[1])
rank = int(sys.argv[2]) if len(sys.argv) > 2 else int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
torch.set_num_threads(1)
parameter = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)
address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
for _ in range(3):
    (parameter * (rank + 1)).sum().backward()
    dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
