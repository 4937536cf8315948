"""A script that uses dtprof itself, after a few steps of its own.

usage: run_own.py OUT
"""

import sys

import torch

import dtprof

parameter = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.1)


def train():
    parameter.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(3):
    train()
with dtprof.profile(sys.argv[1], capture="1:2", collectors=["host"], knobs={"mine": 1}) as prof:
    for _ in range(4):
        train()
        train()
        prof.step()
train()
