"""Planted faults, so that a diagnosis can be checked against the truth.

``slow_rank=RANK:TIME`` (20ms, 500us, 1s) emulates a slow machine: the forward pass of that rank takes that much longer in
every step. The time is spent in a real operator, ``dtprof_lab::slow_compute``, an equal share before every block, so that
a trace shows it as computation and not as idle time. On the CPU the operator sleeps and then spins to the exact end (a
sleep leaves the core to the other ranks, as a slow machine would); on a CUDA device it spins on the device.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SPIN_NS = 300_000


@dataclass(frozen=True)
class Fault:
    """One planted fault: ``kind`` is slow_rank; ``text`` is what the user wrote."""

    kind: str
    rank: int
    ns: int
    text: str

    def __str__(self) -> str:
        return self.text


def fault(text: str) -> Fault:
    """Parse ``slow_rank=1:20ms``; an argparse type."""
    found = re.fullmatch(r"(slow_rank)=(\d+):(\d+(?:\.\d+)?)(us|ms|s)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no fault; write slow_rank=RANK:TIME, as in slow_rank=1:20ms")
    kind, rank, number, unit = found.groups()
    return Fault(kind, int(rank), round(float(number) * _UNITS[unit]), text)


torch.library.define("dtprof_lab::slow_compute", "(Tensor x, int ns) -> ()")


@torch.library.impl("dtprof_lab::slow_compute", "default")
def slow_compute(x: Tensor, ns: int) -> None:
    """Take ``ns`` nanoseconds on the device of ``x``, whose values play no part."""
    if x.device.type == "cuda":
        torch.cuda._sleep(round(ns * _cycles_per_ns(x.device)))
        return
    end = time.perf_counter_ns() + ns
    if ns > _SPIN_NS:
        time.sleep((ns - _SPIN_NS) / 1e9)
    while time.perf_counter_ns() < end:
        pass


_clock: dict[torch.device, float] = {}


def _cycles_per_ns(device: torch.device) -> float:
    """Device clock in cycles per ns, measured once."""
    if device not in _clock:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)
        begin.record()
        torch.cuda._sleep(50_000_000)
        end.record()
        end.synchronize()
        _clock[device] = 50_000_000 / (begin.elapsed_time(end) * 1e6)
    return _clock[device]


def plant(faults: Sequence[Fault], blocks: nn.ModuleList, rank: int) -> None:
    """Plant the faults of this rank into the blocks of a model."""
    for planted in faults:
        if planted.kind == "slow_rank" and planted.rank == rank:
            share = planted.ns // len(blocks)

            def delay(_block: nn.Module, inputs: tuple[Any, ...], share: int = share) -> None:
                torch.ops.dtprof_lab.slow_compute(inputs[0].detach(), share)

            for block in blocks:
                block.register_forward_pre_hook(delay)
