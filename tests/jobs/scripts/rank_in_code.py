"""Nothing in the environment says which rank this is: the code does, after profile() has begun.

usage: rank_in_code.py OUT PORT RANK SIZE
"""

import sys

import torch
import torch.distributed as dist

import dtprof

out, port, rank, size = sys.argv[1], *map(int, sys.argv[2:])
with dtprof.profile(out, capture=None) as prof:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
        prof.step()
    dist.barrier()
dist.destroy_process_group()
