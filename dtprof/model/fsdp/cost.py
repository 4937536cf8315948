"""What the operations of a step cost: as they were measured in the run, and by a line for sizes that were not.

A line t = latency + wire bytes / bandwidth over all classes of operations (the Hockney model: R. Hockney, "The communication
challenge for MPP", 1994); wire bytes are the size by nccl-tests' convention times its bus factor (doc/PERFORMANCE.md), so that
gathers and reductions lie on one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dtprof.catalogue.collectives import busbw_factor
from dtprof.model.cost import CostTable
from dtprof.model.fsdp.observe import FsdpStep, SeenFsdp, Taken
from dtprof.model.fsdp.program import Op
from dtprof.model.fsdp.running import WORKERS, Moving

Key = tuple[str, str, int]


@dataclass(frozen=True)
class Network:
    """Measured ns by class of operation, in each step and over all; a line for other sizes, ns and ns per wire byte.

    ``early``: by step, kind, unit and turn of an operation, how long before its end it was over for each rank.
    ``spread``: how far a step's operations typically are from those of all, a ratio.
    ``share``: how many times longer one of two takes, None for what the line says (what is bandwidth doubles);
    ``tables``: calibrated times by operation, which take the line's place for other sizes.
    """

    n: int
    steps: dict[int, dict[Key, float]]
    every: dict[Key, float]
    early: dict[int, dict[tuple[str, int, int], tuple[float, ...]]]
    latency: float
    per_byte: float
    known: bool
    source: str
    spread: float
    share: float | None = None
    tables: dict[str, CostTable] | None = None
    bandwidth_scale: float = 1.0
    latency_scale: float = 1.0
    free: bool = False
    workers: int = WORKERS

    def moving(self, step: int, ops: Sequence[Op]) -> Moving:
        """Costs of the operations of a step."""
        alone = [self.alone(step, op) for op in ops]
        seen: dict[tuple[str, int], int] = defaultdict(int)
        early = []
        for op, ns in zip(ops, alone, strict=True):
            place = op.kind, op.unit, seen[op.kind, op.unit]
            seen[op.kind, op.unit] += 1
            mine = self.early[step].get(place, ())
            early.append([min(e, ns) for e in mine] if mine else [0.0] * self.n)
        return Moving(alone, [self.slowdown(op) for op in ops], early, self.workers)

    def alone(self, step: int, op: Op) -> float:
        """ns of an operation with nothing beside it."""
        if self.free:
            return 0.0
        near = self._nearest(op)
        measured = self.steps[step].get(near, self.every[near])
        taken = measured * self._scale(op, near[2])
        line = self._line(op.op, op.bytes)
        changed = self.latency * self.latency_scale + (line - self.latency) / self.bandwidth_scale
        return taken * changed / line if line else taken

    def slowdown(self, op: Op) -> float:
        """How many times longer it takes beside another one."""
        if self.share is not None:
            return self.share
        if self.tables and op.op in self.tables and len(self.tables[op.op].shared):
            return self.tables[op.op].slowdown(op.bytes)
        line = self._line(op.op, op.bytes)
        return 1 + (line - self.latency) / line if line else 1.0

    def sizes_known(self, ops: Sequence[Op]) -> bool:
        """Is the cost of every operation measured, or can it be told from other sizes?"""
        return self.known or all(_key(op) in self.every or (self.tables and op.op in self.tables) for op in ops)

    def variants(self) -> list[Network]:
        """At the ends of what is not known: the scatter of the operations; two side by side cost nothing, or as much as one
        after the other; and how much of an operation is latency: half or one and a half of what the line says where one kind
        of operation was seen at two sizes, else nothing or twice as much.
        """
        kinds = [key[:2] for key in self.every]
        around = (0.5, 1.5) if len(set(kinds)) < len(kinds) else (0.0, 2.0)
        most = 0.9 * min(self.every.values())
        told = self.known and not self.tables
        flat = [self._with_latency(min(self.latency * part, most)) for part in around] if told else []
        return [self._stretched(1 + self.spread), self._stretched(1 - self.spread), replace(self, share=1.0),
                replace(self, share=2.0), *flat]  # fmt: skip

    def _stretched(self, factor: float) -> Network:
        steps = {number: {key: ns * factor for key, ns in found.items()} for number, found in self.steps.items()}
        return replace(self, steps=steps, every={key: ns * factor for key, ns in self.every.items()})

    def _with_latency(self, latency: float) -> Network:
        slopes = [(ns - latency) / wire for (_, op, size), ns in self.every.items() if (wire := _wire(op, size, self.n))]
        return replace(self, latency=latency, per_byte=max(float(np.median(slopes)), 0.0))

    def _nearest(self, op: Op) -> Key:
        """The measured class that is closest in size: of the same kind, or else of any."""
        like = [key for key in self.every if key[:2] == (op.kind, op.op)] or list(self.every)
        return min(like, key=lambda key: abs(key[2] - op.bytes))

    def _scale(self, op: Op, near: int) -> float:
        if op.bytes == near:
            return 1.0
        if self.tables and op.op in self.tables:
            return self.tables[op.op].alone(op.bytes) / self.tables[op.op].alone(near)
        line = self._line(op.op, near)
        return self._line(op.op, op.bytes) / line if line else 1.0

    def _line(self, op: str, size: int) -> float:
        return self.latency + self.per_byte * _wire(op, size, self.n)


def network_of(seen: SeenFsdp, tables: dict[str, CostTable] | None = None) -> Network:
    """The costs of a run's operations. What two in flight do to each other is taken out by what the line says of it."""
    n = len(seen.ranks)
    first = _network(seen, n, lambda _: 1.0)
    for _ in range(3):
        first = _network(seen, n, first.slowdown)
    if tables:
        return replace(first, tables=tables, source=next(iter(tables.values())).source)
    return first


def _network(seen: SeenFsdp, n: int, slowdown: Callable[[Op], float]) -> Network:
    steps: dict[int, dict[Key, float]] = {}
    for number, step in seen.steps.items():
        found: dict[Key, list[float]] = defaultdict(list)
        for taken, (alone, beside) in zip(step.taken, spans(step, seen.workers), strict=True):
            found[_key(taken.op)].append(alone + beside / slowdown(taken.op))
        steps[number] = {key: float(np.mean(values)) for key, values in found.items()}
    keys = sorted({key for found in steps.values() for key in found})
    early = {number: _early(step.taken) for number, step in seen.steps.items()}
    every = {key: float(np.median([found[key] for found in steps.values() if key in found])) for key in keys}
    latency, per_byte, known = _line(every, n)
    spread = float(
        np.median([abs(found[key] / every[key] - 1) for found in steps.values() for key in found if every[key]] or [0])
    )
    operations = sum(len(step.taken) for step in seen.steps.values())
    return Network(n, steps, every, early, latency, per_byte, known, f"{operations} operations of the run itself", spread,
                   workers=seen.workers)  # fmt: skip


def _early(taken: Sequence[Taken]) -> dict[tuple[str, int, int], tuple[float, ...]]:
    turns: dict[tuple[str, int], int] = defaultdict(int)
    out: dict[tuple[str, int, int], tuple[float, ...]] = {}
    for one in taken:
        kind, unit = one.op.kind, one.op.unit
        out[kind, unit, turns[kind, unit]] = one.early
        turns[kind, unit] += 1
    return out


def _line(every: dict[Key, float], n: int) -> tuple[float, float, bool]:
    """(latency, ns per wire byte, told by two sizes or more); one size alone is taken for bandwidth."""
    sizes = np.array([_wire(op, size, n) for _, op, size in every])
    times = np.array(list(every.values()))
    moved = sizes > 0
    sizes, times = sizes[moved], times[moved]
    if len(sizes) == 0:
        return 0.0, 0.0, False
    if len(np.unique(sizes)) < 2:
        return 0.0, float(np.median(times / sizes)), False
    weight = 1 / np.maximum(times, 1.0)
    design = np.stack([np.ones_like(sizes), sizes], axis=1) * weight[:, None]
    (latency, per_byte), *_ = np.linalg.lstsq(design, times * weight, rcond=None)
    if per_byte <= 0:
        return float(np.median(times)), 0.0, True
    return (float(latency), float(per_byte), True) if latency > 0 else (0.0, float(np.median(times / sizes)), True)


def spans(step: FsdpStep, workers: int = WORKERS) -> list[tuple[float, float]]:
    """(ns alone, ns beside another one) of every operation of a step, from the instant at which it could begin."""
    begins = _begins(step.taken, workers)
    ends = [t.end for t in step.taken]
    out = []
    for k, begin in enumerate(begins):
        around = [(max(begin, begins[j]), min(ends[k], ends[j])) for j in range(len(begins)) if j != k]
        beside = min(sum(hi - lo for lo, hi in around if hi > lo), max(ends[k] - begin, 0.0))
        out.append((max(ends[k] - begin, 0.0) - beside, beside))
    return out


def _begins(taken: Sequence[Taken], workers: int) -> list[float]:
    """When each operation could begin: all ranks had handed it over, and a worker was free."""
    out: list[float] = []
    for k, one in enumerate(taken):
        flying = sorted(t.end for t in taken[:k] if t.end > one.handed)
        out.append(one.handed if len(flying) < workers else flying[-workers])
    return out


def _key(op: Op) -> Key:
    return op.kind, op.op, op.bytes


def _wire(op: str, size: int, n: int) -> float:
    return size * (busbw_factor(op, n) or 0.0)
