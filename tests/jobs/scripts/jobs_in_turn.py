"""One rank: several runs of sample jobs, one after the other, in one process.

    jobs_in_turn.py PLAN.json

The plan is a list of {"name", "module", "words"}; a run's losses (hexadecimal) and gradients go beside it, to
NAME.losses.rankR and NAME.grads.rankR. The gradients are those that every optimizer step found, as a list of flat tensors.
"""

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

seen = []


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def look(optimizer, _args, _kwargs):
    gradients = [whole(p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    seen.append(torch.cat([g.detach().flatten().float() for g in gradients]).clone())


plan = Path(sys.argv[1])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# one store for all runs, with a prefix for each: a port per run could be taken by the connections of the runs before it
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
init_process_group = dist.init_process_group
register_optimizer_step_pre_hook(look)
for job in json.loads(plan.read_text()):
    seen.clear()
    own = dist.PrefixStore(job["name"], store)
    dist.init_process_group = partial(init_process_group, store=own, rank=rank, world_size=size)
    beside = plan.parent / job["name"]
    import_module(job["module"]).main([*job["words"], "--losses", f"{beside}.losses"])
    torch.save(seen, f"{beside}.grads.rank{rank}")
# the store lives in rank 0, which must outlive the others
store.set(f"done{rank}", "")
if rank == 0:
    store.wait([f"done{r}" for r in range(size)])
