"""Two ranks with a compiled model under DDP. Rank 0 meets new lengths in steps 4 and 6; both break their graph.

usage: compiled.py OUT
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtprof


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        with dtprof.annotate("second"):
            return self.second(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    ddp = DistributedDataParallel(torch.compile(Net(), backend="eager", dynamic=False))
    with dtprof.profile(Path(sys.argv[1]), capture="8:10") as prof:
        for step in range(11):
            length = {4: 24, 6: 32}.get(step, 16) if dist.get_rank() == 0 else 16
            ddp(torch.randn(length, 16)).square().mean().backward()
            ddp.zero_grad()
            if step == 5:
                torch._dynamo.callback.callback_handler.clear()  # as torch._dynamo.reset() does
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


main()
