"""Reads a JSON report from stdin and says what a GPU run exercised and what it did not; used by make gpu-check."""

from __future__ import annotations

import json
import sys


def lines(report):
    """One line per path, from what the report holds."""
    ranks = report["ranks"]
    ranks_with_steps = sum(any(step["clock"] == "device" for step in rank["steps"]) for rank in ranks)
    waits = [c for c in report["collectives"] if c["transfer_ns"] is not None]
    yield "recording of kernels", all(rank["device"]["compute_ns"] > 0 for rank in ranks)
    yield f"device steps on {len(ranks)} ranks", ranks_with_steps == len(ranks)
    yield "NCCL kernels recognised", any(rank["device"]["comm_kernels"] for rank in ranks)
    yield "collectives matched across ranks, wait and transfer", len(ranks) > 1 and bool(waits)
    yield "own cost", report["own_cost"] is not None


if __name__ == "__main__":
    for what, done in lines(json.load(sys.stdin)):
        print(f"{'exercised' if done else 'NOT exercised':>14}  {what}")
    print(" NOT exercised  several hosts, Nsight Systems, CUDA graphs, ROCm")
