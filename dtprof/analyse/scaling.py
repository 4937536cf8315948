"""Scaling: the same job at several sizes, how much of the added ranks' work arrives, and which category ate the rest.

A sample costs rank-time: the step, times the ranks, over the samples of the step. Efficiency is what a sample costs at the
smallest size over what it costs at another one. It is the usual one of both kinds: with as many samples per rank (weak scaling,
Gustafson 1988) T(1) / T(n), with as many per step (strong scaling, Amdahl 1967) T(1) / (n T(n)). Every category of the
accounting has its own cost of a sample, and the differences add up to the loss exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from dtprof.analyse.host_steps import usable
from dtprof.analyse.results import ACCOUNTING, AccountingResult, settled
from dtprof.analyse.training import data_ranks
from dtprof.errors import InputError
from dtprof.protocols import Lens
from dtprof.schema import MISSING

Kind = Literal["weak", "strong", "mixed"]
# sizes count as equal within this share
_EQUAL = 0.01


@dataclass(frozen=True)
class Size:
    """One run: ``ranks``, ``step_ns`` (mean of the settled steps and ranks), ``work`` per step of all ranks in ``unit``;
    ``accounting``: ns per step, mean over the ranks; ``untraced_ns``: the same steps without a tracer, where there were any."""

    path: str
    ranks: int
    step_ns: float
    work: float
    unit: str
    accounting: dict[str, float]
    untraced_ns: float | None
    rate: float | None

    def cost(self, ns: float) -> float:
        """Rank-time per unit of work, ns."""
        return ns * self.ranks / self.work


@dataclass(frozen=True)
class Row:
    """One size against the smallest. ``lost``: category -> share of this size's rank-time that it takes more per unit of work
    (negative: less); they sum to 1 - ``efficiency``. ``speedup``: work per second over that of the smallest."""

    size: Size
    efficiency: float
    speedup: float
    lost: dict[str, float]

    @property
    def eater(self) -> str | None:
        """The category that ate most, where any did."""
        key = max(self.lost, key=lambda k: self.lost[k])
        return key if self.lost[key] > 0 else None


@dataclass(frozen=True)
class Scaling:
    """All sizes, the smallest first; ``notes``: what makes them hard to compare."""

    kind: Kind
    unit: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def scaling(studies: Sequence[Lens]) -> Scaling:
    """Compare at least two sizes; InputError where a run has no steps, or two have one size."""
    sizes = sorted((size_of(study) for study in studies), key=lambda s: s.ranks)
    if len(sizes) < 2:
        raise InputError("one run has nothing to compare with", "give the same job at two sizes or more")
    for before, after in pairwise(sizes):
        if before.ranks == after.ranks:
            raise InputError(
                f"{before.path} and {after.path} both have {after.ranks} ranks", "dtprof diff compares runs of one size"
            )
    units = {s.unit for s in sizes}
    if len(units) > 1:
        sizes = [replace(s, work=float(s.ranks), unit="ranks") for s in sizes]
    first = sizes[0]
    kind = _kind(sizes)
    rows = tuple(_row(size, first) for size in sizes)
    return Scaling(kind, first.unit, rows, tuple(_notes(sizes, len(units) > 1, kind, studies)))


def size_of(study: Lens) -> Size:
    """One run: its step from the accounting, its work from what the job said of its steps."""
    accounting: AccountingResult = study.result("accounting")
    run = study.run
    steps = [settled(p.steps) for p in accounting.parts if p.steps]
    ranks = run.world_size or len(run.ranks)
    if not steps or not ranks:
        raise InputError(f"{run.path}: has no steps to compare", "capture with steps marked, on all ranks")
    mean = {k: float(np.mean([np.mean([s.accounting[k] for s in of]) for of in steps])) for k in ACCOUNTING}
    step = sum(mean.values())
    plain = [float(np.mean(list(of.values()))) for p in run.parts if (of := usable(run, p.ordinal))]
    work, unit = _work(study, ranks)
    rate = run.manifest.knobs.get("lr")
    return Size(
        run.path, ranks, step, work, unit, mean, float(np.mean(plain)) if plain else None,
        float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
    )  # fmt: skip


def _work(study: Lens, ranks: int) -> tuple[float, str]:
    """Samples, else tokens, of a step on all ranks; else one unit for each rank."""
    run, shares = study.run, data_ranks(study.run)
    for unit in ("samples", "tokens"):
        told = []
        for part in run.parts:
            table = run.table("steps", part.ordinal)
            values = table[unit][table.is_("kind", "train")]
            told += values[values != MISSING].tolist()
        if told and shares:
            return float(np.median(told)) * shares, unit
    return float(ranks), "ranks"


def _kind(sizes: Sequence[Size]) -> Kind:
    per_rank = [s.work / s.ranks for s in sizes]
    whole = [s.work for s in sizes]
    if max(per_rank) <= (1 + _EQUAL) * min(per_rank):
        return "weak"
    return "strong" if max(whole) <= (1 + _EQUAL) * min(whole) else "mixed"


def _row(size: Size, first: Size) -> Row:
    cost = size.cost(size.step_ns)
    lost = {k: (size.cost(size.accounting[k]) - first.cost(first.accounting[k])) / cost for k in ACCOUNTING}
    speedup = (size.work / size.step_ns) / (first.work / first.step_ns)
    return Row(size, first.cost(first.step_ns) / cost, speedup, lost)


def _notes(sizes: Sequence[Size], untold: bool, kind: Kind, studies: Sequence[Lens]) -> list[str]:
    notes = []
    if untold or sizes[0].unit == "ranks":
        notes.append("the jobs do not say how many samples a step has (dtprof.step(samples=…)): taken as equal on every rank")
    devices = {p.device for study in studies for p in study.run.parts if p.device}
    if len(devices) > 1:
        notes.append(f"the runs have different devices: {', '.join(sorted(devices))}")
    missing = [s.run.path for s in studies if s.run.world_size and len(s.run.ranks) < s.run.world_size]
    if missing:
        notes.append(f"ranks are missing in {', '.join(missing)}: means are over those present")
    far = [s.path for s in sizes if s.untraced_ns and abs(s.step_ns / s.untraced_ns - 1) > 0.10]
    if far:
        notes.append(f"traced steps are over 10% off the untraced ones in {', '.join(far)}: the tracer is in these numbers")
    rates = {s.rate for s in sizes}
    grows = max(s.work for s in sizes) >= 2 * min(s.work for s in sizes)
    if kind != "strong" and grows and len(rates) == 1 and None not in rates and sizes[0].unit != "ranks":
        notes.append(
            f"the batch grows {max(s.work for s in sizes) / min(s.work for s in sizes):.3g} times and the learning rate stays "
            f"{rates.pop():g}: see training.lr_scaling"
        )
    return notes
