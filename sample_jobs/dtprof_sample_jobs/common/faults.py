"""Planted faults, so that a diagnosis can be checked against the truth: ``--inject KIND=WHERE:AMOUNT``, any number of times.

WHERE is a rank, a pipeline stage or ``all``; AMOUNT is a time (20ms, 500us, 1s), a number, a size in MiB or a rate (200mbit).
``KINDS`` says for each kind what it is and what its truth is: who is slow, where, by how much. Delays that emulate a slow
machine are operators (``dtprof_lab::slow_compute``), an equal share at every block; delays of the host are spent between
operators. Faults in the forward or backward pass act once per pass, so with N micro-batches N times per step.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.delay import LONGEST_NS, wait

_UNITS = {"us": 1e3, "ms": 1e6, "s": 1e9, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "": 1}
_FORMS = {
    "time": (r"us|ms|s", "TIME", "20ms"),
    "count": (r"", "N", "2"),
    "MiB": (r"", "MIB", "0.1"),
    "share": (r"", "SHARE", "0.5"),
    "rate": (r"kbit|mbit|gbit", "RATE", "200mbit"),
}
CHECKPOINT_EVERY = 5
LATEST_NS = 10_000_000_000
LAB = "DTPROF_LAB"
_HEAP, _SETTLING = 20_000, 2


@dataclass(frozen=True)
class Kind:
    """A kind of fault: ``where`` is rank, stage, expert or all; ``amount`` is one of time, count, MiB, share, rate, or None."""

    where: str
    amount: str | None
    truth: str

    def form(self, name: str) -> str:
        """How it is written: ``slow_rank=RANK:TIME``."""
        place = "all" if self.where == "all" else self.where.upper()
        return f"{name}={place}" + (f":{_FORMS[self.amount][1]}" if self.amount else "")

    def example(self, name: str) -> str:
        """One that could be typed: ``slow_rank=1:20ms``."""
        return f"{name}={'all' if self.where == 'all' else 1}" + (f":{_FORMS[self.amount][2]}" if self.amount else "")


KINDS = {
    "slow_rank": Kind("rank", "time", "the forward pass of RANK computes TIME longer; the others wait for it"),
    "slow_backward": Kind("rank", "time", "the backward pass of RANK computes TIME longer; the others wait for it"),
    "slow_data": Kind("rank", "time", "the data phase of RANK takes TIME longer"),
    "slow_host": Kind("rank", "time", "the forward pass of RANK takes TIME longer between operators: its host launches late"),
    "gc": Kind("rank", "time", "Python collects garbage for TIME, again and again, as the forward pass of RANK begins"),
    "barrier_every_step": Kind("all", None, "every step ends with one barrier of all ranks, which nothing needs"),
    "checkpoint_stall": Kind(
        "rank", "time", f"every {CHECKPOINT_EVERY}th step (4, 9, …) of RANK ends with a checkpoint of TIME"
    ),
    "late_collective": Kind(
        "rank", "time", "every step ends with an all-reduce of one number, which RANK enters TIME late; the others wait in it"
    ),
    "tiny_buckets": Kind("all", "MiB", "DDP's buckets have at most MIB: one all-reduce for each"),
    "find_unused": Kind(
        "all", None, "find_unused_parameters without need: one more all-reduce per step, of a number per parameter"
    ),
    "no_sync_forgotten": Kind("all", None, "with N micro-batches every one is synchronised: N times the all-reduces of a step"),
    "no_sync_backward_only": Kind(
        "all", None, "no_sync around backward alone has no effect: N times the all-reduces of a step with N micro-batches"
    ),
    "stage_imbalance": Kind("stage", "time", "each forward pass of pipeline stage STAGE computes TIME longer, per micro-batch"),
    "few_microbatches": Kind("all", "count", "the pipeline has N micro-batches, however many were asked for"),
    "kill": Kind(
        "rank", "count", "RANK is killed (SIGKILL) in step N, once: the steps since the last whole checkpoint are repeated"
    ),
    "checkpoint_gil": Kind(
        "rank", "time", "after each save a thread of RANK keeps Python's lock for TIME: its next step is TIME longer"
    ),
    "memory_creep": Kind("rank", "MiB", "RANK keeps MIB more in every step; it has no time truth"),
    "out_of_data": Kind("rank", "count", "RANK has N steps fewer, and joins the others' all-reduces (Join)"),
    "epoch_not_set": Kind(
        "all", None, "set_epoch is forgotten: every epoch of the corpus has the order of the first; it has no time truth"
    ),
    "clip_before_unscale": Kind(
        "all", None, "gradients are clipped while they are scaled: all but 1/scale of them is cut off; it has no time truth"
    ),
    "fp16_overflow": Kind(
        "all",
        "count",
        "every Nth step has an infinite gradient: the scaler skips the update and halves the scale",
    ),
    "router_skew": Kind(
        "expert", "share", "SHARE of the tokens of every layer choose EXPERT, the others do not, whatever the router says"
    ),
    "unbalanced_split": Kind(
        "all", None, "each of c ranks has one part of the sequence, not two: the last attends (2c - 1) / c times the mean"
    ),
    "tp_across_nodes": Kind(
        "all", None, "ranks of tensor parallelism lie as far apart as the mesh allows: their messages go between hosts"
    ),
    "slow_link": Kind("rank", "rate", "what RANK sends leaves at RATE; only in the lab"),
}
SCALED = ("clip_before_unscale", "fp16_overflow")
COMMON = (
    "slow_rank", "slow_backward", "slow_data", "slow_host", "gc", "barrier_every_step", "checkpoint_stall", "late_collective",
    "memory_creep", "epoch_not_set", "slow_link",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One planted fault; ``where`` is None for all, ``amount`` is in ns, bits/s, MiB or counted; ``text`` as written."""

    kind: str
    where: int | None
    amount: float
    text: str

    @property
    def ns(self) -> int:
        """The amount of a fault of time."""
        return round(self.amount)

    def __str__(self) -> str:
        return self.text


def fault(text: str, kinds: Sequence[str] = tuple(KINDS)) -> Fault:
    """Parse ``slow_rank=1:20ms``, one of ``kinds``; with ``functools.partial`` an argparse type."""
    name = text.partition("=")[0]
    if name not in kinds:
        why = "this job does not have it" if name in KINDS else "there is no such fault"
        raise argparse.ArgumentTypeError(f"{text!r}: {why}; faults here are {', '.join(kinds) or 'none'}")
    kind = KINDS[name]
    units = _FORMS[kind.amount][0] if kind.amount else ""
    place = "all" if kind.where == "all" else r"\d+"
    amount = rf":(?P<number>\d+(?:\.\d+)?)(?P<unit>{units})" if kind.amount else ""
    found = re.fullmatch(rf"{name}=(?P<place>{place}){amount}", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no fault; write {kind.form(name)}, as in {kind.example(name)}")
    value = float(found["number"]) * _UNITS[found["unit"]] if kind.amount else 0.0
    if kind.amount and value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} does nothing; give more than 0")
    if kind.amount == "share" and value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than all; give 1 at most")
    if kind.amount == "time" and value > LONGEST_NS:
        raise argparse.ArgumentTypeError(f"{text!r} is too long; an hour at most")
    if name == "late_collective" and value > LATEST_NS:
        raise argparse.ArgumentTypeError(f"{text!r} is too late; {LATEST_NS // 10**9}s at most, lest the others give up")
    return Fault(name, None if kind.where == "all" else int(found["place"]), value, text)


def check_faults(faults: Sequence[Fault], ranks: int, stages: int = 1) -> None:
    """InputError for a rank or a stage that the job does not have, and for a link outside the lab."""
    for planted in faults:
        kind = KINDS[planted.kind]
        limit = {"rank": ranks, "stage": stages}.get(kind.where)
        if limit is not None and planted.where is not None and planted.where >= limit:
            raise InputError(
                f"--inject {planted}: there is no {kind.where} {planted.where}", f"the job has {limit}, numbered from 0"
            )
        if planted.kind == "slow_link" and not os.environ.get(LAB):
            raise InputError(f"--inject {planted}: only the lab can shape a link", "start the job in the lab")


class Faults:
    """The faults of one rank, to be asked and to be planted."""

    def __init__(self, faults: Sequence[Fault], rank: int, stage: int = 0) -> None:
        here = {"rank": rank, "stage": stage}
        self._all = list(faults)
        self._mine = [f for f in faults if (where := KINDS[f.kind].where) not in here or here[where] == f.where]
        self._kept: list[Tensor] = []
        self._updates = 0

    def has(self, kind: str) -> bool:
        """Is there such a fault, on any rank?"""
        return any(f.kind == kind for f in self._all)

    def of(self, kind: str) -> list[Fault]:
        """The faults of a kind, wherever they act, in the order given."""
        return [f for f in self._all if f.kind == kind]

    def ns(self, kind: str) -> int:
        """Time of this rank's (or stage's) faults of a kind, ns."""
        return sum(f.ns for f in self._mine if f.kind == kind)

    def amount(self, kind: str) -> float | None:
        """Amount of the last fault of a kind that was given for here, or None."""
        return next((f.amount for f in reversed(self._mine) if f.kind == kind), None)

    def plant(self, blocks: Sequence[nn.Module] | nn.ModuleList) -> None:
        """Put slow_rank, slow_backward, slow_host, gc and stage_imbalance of this rank into its blocks, as hooks."""
        forward = self.ns("slow_rank") + self.ns("stage_imbalance")
        for block in blocks:
            if forward:
                block.register_forward_pre_hook(_before(_slow, forward // len(blocks)))
            if self.ns("slow_host"):
                block.register_forward_pre_hook(_before(_late, self.ns("slow_host") // len(blocks)))
            if self.ns("slow_backward"):
                block.register_forward_hook(_after(self.ns("slow_backward") // len(blocks)))
        if self.ns("gc"):
            blocks[0].register_forward_pre_hook(_before(_Collecting(), self.ns("gc")))

    def stalls(self, step: int) -> bool:
        """Does this step end with the checkpoint of a checkpoint_stall, on this rank or, for all wait, on another?"""
        return self.has("checkpoint_stall") and step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1

    def overflows(self) -> bool:
        """Does the gradient of this step overflow? To be asked once per step."""
        every = self.amount("fp16_overflow")
        self._updates += 1
        return every is not None and self._updates % round(every) == 0

    def in_data(self) -> None:
        """Called inside the data phase: slow_data."""
        if self.ns("slow_data"):
            wait(self.ns("slow_data"))

    def end_of_step(self, step: int, device: torch.device) -> None:
        """Called as the last thing in every step: late_collective, barrier_every_step, memory_creep, checkpoint_stall."""
        if self.has("late_collective"):
            wait(self.ns("late_collective"))
            dist.all_reduce(torch.zeros(1, device=device))
        if self.has("barrier_every_step"):
            dist.barrier()
        if creep := self.amount("memory_creep"):
            self._kept.append(torch.ones(round(creep * 2**18), device=device))
        if self.ns("checkpoint_stall") and self.stalls(step):
            with dtprof.annotate("checkpoint"):
                wait(self.ns("checkpoint_stall"))


def plant(faults: Sequence[Fault], blocks: nn.ModuleList, rank: int) -> None:
    """Plant the faults of this rank into the blocks of a model."""
    Faults(faults, rank).plant(blocks)


def _before(spend: Callable[[Tensor, int], None], ns: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(_block: nn.Module, inputs: tuple[Any, ...]) -> None:
        spend(inputs[0], ns)

    return hook


def _after(ns: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def in_backward(grad: Tensor) -> None:
        torch.ops.dtprof_lab.slow_compute(grad, ns)

    def hook(_block: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(in_backward)

    return hook


def _slow(x: Tensor, ns: int) -> None:
    torch.ops.dtprof_lab.slow_compute(x.detach(), ns)


def _late(_x: Tensor, ns: int) -> None:
    wait(ns)


class _Collecting:
    """Collects garbage until collecting has taken ``ns``, to within half a collection.

    What torch holds takes longer to look through than most faults are to take. So the first passes, in which it makes most of
    that, put it aside, and each collection looks through a heap of ours.
    """

    def __init__(self) -> None:
        self._passes = 0
        self._heap: list[list[int]] = []

    def __call__(self, _x: Tensor, ns: int) -> None:
        self._passes += 1
        if self._passes <= _SETTLING:
            self._heap.clear()
            gc.collect()
            gc.freeze()
            self._heap = [[n] for n in range(_HEAP)]
        spent, least = 0, ns
        while spent + least / 2 < ns:
            began = time.perf_counter_ns()
            gc.collect()
            last = time.perf_counter_ns() - began
            spent, least = spent + last, min(least, last)


def fault_option(kinds: Sequence[str]) -> Callable[[str], Fault]:
    """The argparse type of ``--inject`` for a job that has these kinds."""
    return functools.partial(fault, kinds=tuple(kinds))
