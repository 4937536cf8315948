"""Operators that take a stated time: what emulated layers and planted faults are made of.

``dtprof_lab::slow_compute`` is a planted delay; ``dtprof_lab::forward``, ``backward_input`` and ``backward_weight`` are the
computation of an emulated layer. A trace shows each as an operator, as it would show real computation. On the CPU an operator
sleeps and then spins to the exact end (a sleep leaves the core to the other ranks); on a CUDA device it spins on the device.
"""

from __future__ import annotations

import ctypes
import time

import torch
from torch import Tensor

LONGEST_NS = 3_600_000_000_000
_SPIN_NS = 300_000
OPERATORS = ("slow_compute", "forward", "backward_input", "backward_weight")


def spend(x: Tensor, ns: int) -> None:
    """Take ``ns`` nanoseconds on the device of ``x``, whose values play no part."""
    if x.device.type == "cuda":
        torch.cuda._sleep(round(max(ns, 0) * _cycles_per_ns(x.device)))
    else:
        wait(ns)


def wait(ns: int) -> None:
    """Take ``ns`` nanoseconds of the calling thread: asleep at first, spinning at the end."""
    end = time.perf_counter_ns() + ns
    if ns > _SPIN_NS:
        time.sleep((ns - _SPIN_NS) / 1e9)
    while time.perf_counter_ns() < end:
        pass


def hold_gil(ns: int) -> None:
    """Take ``ns`` in a C call that keeps Python's lock: no other thread of the process runs Python meanwhile."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(ns // 1000))


def left(ns: int, began: int, device: torch.device) -> int:
    """What is left of ``ns`` since ``began`` on the host's clock; on a CUDA device, which has a time of its own, all."""
    return ns if device.type == "cuda" else ns - (time.perf_counter_ns() - began)


for _name in OPERATORS:
    torch.library.define(f"dtprof_lab::{_name}", "(Tensor x, int ns) -> ()")
    torch.library.impl(f"dtprof_lab::{_name}", "default", spend)

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
