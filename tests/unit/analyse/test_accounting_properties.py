"""Accounting of random device traces: exact against a bitmap, and blind to everything that must not matter."""

from __future__ import annotations

import copy
import random
from itertools import pairwise

import numpy as np
import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.analyse.results import ACCOUNTING
from tests.unit.kineto_maker import Trace

SPAN = 6_000
# 143, 397, 557: operations that start at one instant with launches of their own
SEEDS = [*range(40), 143, 397, 557]
NAMES = {
    "kernel": ("gemm", "relu"),
    "comm": ("ncclDevKernel_AllReduce_Sum_f32", "ncclKernel_AllGather"),
    "copy": ("Memcpy HtoD",),
}
BASE = 1_700_000_000_000_000_000


def random_trace(seed: int) -> Trace:
    """Up to four steps of random work on three streams that are each serial; all times below ``SPAN`` ns.

    Odd seeds know only multiples of 100 ns, so that much begins and ends at the same instants.
    """
    rng = random.Random(seed)
    grain = 100 if seed % 2 else 1

    def us(ns: int) -> float:
        return ns // grain * grain / 1000

    t = Trace(0, 1, base_ns=BASE)
    borders = sorted(rng.sample(range(0, SPAN // 2), rng.randint(2, 5)))
    for number, (a, b) in enumerate(pairwise(borders)):
        t.step(number, us(a), us(b))
        if rng.random() < 0.5:
            t.range(rng.choice(("data", "checkpoint")), us(a), us(a + (b - a) // 2))
    for stream, kinds in ((7, ("kernel", "comm")), (20, ("comm",)), (21, ("copy", "kernel"))):
        at = rng.randint(0, 400)
        for _ in range(rng.randint(0, 14)):
            start = at + rng.choice((0, 0, rng.randint(1, 300)))
            at = start + rng.randint(0, 250)
            kind = rng.choice(kinds)
            cat = "gpu_memcpy" if kind == "copy" else "kernel"
            called = rng.randint(0, start)
            launch = t.launch(us(called), us(called + rng.randint(1, 60))) if rng.random() < 0.9 else 999_999
            if at <= SPAN:
                t.kernel(rng.choice(NAMES[kind]), us(start), us(at), stream, launch, cat)
    for event in t.events:  # differences of floats are no nanoseconds
        event["dur"] = round(event["dur"], 3)
    return t


def accounts(path):
    (part,) = study_of(dtprof.open_run(path, cache=False)).result("accounting").parts
    return part


def bitmaps(t: Trace) -> dict[str, np.ndarray]:
    out = {key: np.zeros(SPAN + 1, bool) for key in ("compute", "comm", "copy")}
    for event in t.events:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            key = "copy" if event["cat"] == "gpu_memcpy" else "comm" if "nccl" in event["name"] else "compute"
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            out[key][start : start + length] = True
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_and_steps_equal_a_bitmap(tmp_path, seed):
    t = random_trace(seed)
    part = accounts(t.write(tmp_path / "t.json"))
    compute, comm, copies = (bitmaps(t)[k] for k in ("compute", "comm", "copy"))
    busy = compute | comm | copies
    device = part.device
    assert (device.compute_ns, device.comm_ns, device.copy_ns) == (compute.sum(), comm.sum(), copies.sum())
    assert device.busy_ns == busy.sum() and device.span_ns - device.busy_ns == device.idle_ns >= 0
    assert device.exposed_comm_ns == (comm & ~compute & ~copies).sum()
    assert device.comm_overlapped_by_compute_ns == (comm & compute).sum()
    for step in part.steps:
        lo = step.ts - BASE
        inside = slice(lo, lo + step.dur_ns)
        spent = step.accounting
        assert tuple(spent) == ACCOUNTING and min(spent.values()) >= 0 and sum(spent.values()) == step.dur_ns
        if not step.on_device:
            continue
        c, m, y = compute[inside], comm[inside], copies[inside]
        assert spent["compute_ns"] == c.sum() and spent["copy_exposed_ns"] == (y & ~c).sum()
        told = spent["comm_wait_ns"] + spent["comm_transfer_ns"] + spent["comm_unsplit_ns"]
        assert told == (m & ~c & ~y).sum() and step.comm_hidden_ns == (m & (c | y)).sum()
        assert step.copy_hidden_ns == (y & c).sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_else_matters(tmp_path, seed, monkeypatch):
    t = random_trace(seed)
    was = accounts(t.write(tmp_path / "t.json"))

    shuffled = copy.deepcopy(t)
    random.Random(seed).shuffle(shuffled.events)
    assert accounts(shuffled.write(tmp_path / "shuffled.json")) == was

    crowded = copy.deepcopy(t)
    for tid in (900, 901):
        for ts in range(0, 6, 2):
            crowded.op("aten::stranger", ts, ts + 1, tid=tid)
    if was.device.span_ns:
        assert accounts(crowded.write(tmp_path / "crowded.json")).steps == was.steps

    late = copy.deepcopy(t)
    late.header["baseTimeNanoseconds"] += 3_000_000_000_000_000
    moved = accounts(late.write(tmp_path / "late.json"))
    assert [(s.step, s.dur_ns, s.accounting) for s in moved.steps] == [(s.step, s.dur_ns, s.accounting) for s in was.steps]
    assert moved.device == was.device

    monkeypatch.setenv("DTPROF_NO_C", "1")
    assert accounts(t.write(tmp_path / "t.json")) == was
