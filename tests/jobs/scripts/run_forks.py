"""Loads torch once and forks a rank for every line on stdin: "RANK RANKS RUN"; answers with its pid. Empty line: ends.

The ranks train for ever, alone (no process group): they are there to be killed.
"""

import json
import os
import sys

import torch

torch.set_num_threads(1)


def train():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


for line in sys.stdin:
    if not line.strip():
        break
    rank, ranks, run = line.split()
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ["DTPROF_LAUNCH"] = json.dumps({**json.loads(os.environ["DTPROF_LAUNCH"]), "out": run})
        train()
    print(pid, flush=True)
    os.waitpid(-1, os.WNOHANG)
