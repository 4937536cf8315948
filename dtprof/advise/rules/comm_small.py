"""The rule about small messages: operations that are latency rather than bytes, many of them where few would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtprof import intervals
from dtprof.advise.compiled import owns_backward
from dtprof.advise.places import ddp_models, severity_of, step_ns
from dtprof.advise.predicted import in_words
from dtprof.advise.rules.buckets import best_cap, worth_it
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import CommResult, Operation
from dtprof.findings import Evidence, Finding
from dtprof.model.cost.allowed import allowed
from dtprof.model.cost.fit import Cost, costs_of
from dtprof.model.outcome import Outcome
from dtprof.numbers import counted, percent, size, time
from dtprof.protocols import Lens
from dtprof.run import Run

# so many latency-bound operations in a step are worth a look
LEAST_COUNT = 8
_LEAST_SHARE = 0.05
# an operation is bound by latency where that is at least this share of its time
_LATENCY = 0.5
# operations follow at once where no more than this part of their latency lies between: others wait for computing
_AT_ONCE = 0.5
# an operation of this size is bandwidth alone
_LARGE = 1 << 30


@dataclass(frozen=True)
class Small:
    """Latency-bound operations of one group, in so many ``runs``: what DDP fuses, or what follows at once.

    ``alpha_ns`` and its range; ``fused_ns``: saved per step where each run is one operation; ``exposed_ns``: what of them no
    computing hides, mean over ranks and steps; ``buckets``: these are the all-reduces of DDP's buckets.
    """

    op: str
    group: str
    operations: tuple[Operation, ...]
    steps: int
    runs: int
    alpha_ns: float
    alpha_range: tuple[float, float]
    fused_ns: float
    exposed_ns: float
    source: str
    buckets: bool

    @property
    def per_step(self) -> float:
        """Operations per step."""
        return len(self.operations) / self.steps

    @property
    def cost_ns(self) -> float:
        """What a step loses: no more than is exposed."""
        return min(self.fused_ns, self.exposed_ns)


def small_of(study: Lens) -> list[Small]:
    """The latency-bound operations of all groups whose latency is known and whose bytes are."""
    comm: CommResult = study.result("comm")
    costs = costs_of(comm.operations)
    mine: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for o in comm.operations:
        if o.step is not None and o.bytes and o.bytes_known == "exact" and o.n and not o.one_sided and o.transfer_ns:
            mine[o.op, o.group].append(o)
    found = []
    for key, operations in mine.items():
        latency = _latency(study.run, key, operations, costs.get(key))
        if latency is not None:
            made = _of_group(study, key, operations, *latency)
            if made is not None:
                found.append(made)
    return found


def _latency(
    run: Run, key: tuple[str, str], operations: Sequence[Operation], cost: Cost | None
) -> tuple[float, tuple[float, float], float, str] | None:
    """(alpha, its range, bytes at which half of the time is alpha, source); None where nothing tells."""
    if cost is not None and cost.alpha_ns > 0 and np.isfinite(cost.gb_s):
        return cost.alpha_ns, cost.alpha_range, cost.half_size, cost.table.source
    first = operations[0]
    may = allowed(run, key[0], first.n or 0, first.dur_ns.keys())
    if isinstance(may, str):
        return None
    low, high = may.range_ns(1)
    per_byte = may.range_ns(_LARGE)[1] / _LARGE
    return (low + high) / 2, (low, high), low / per_byte, may.source


def _of_group(
    study: Lens,
    key: tuple[str, str],
    operations: Sequence[Operation],
    alpha: float,
    alpha_range: tuple[float, float],
    half: float,
    source: str,
) -> Small | None:
    limit = half * (1 - _LATENCY) / _LATENCY
    by_step: dict[int, list[Operation]] = defaultdict(list)
    for o in operations:
        by_step[o.step or 0].append(o)
    small: list[Operation] = []
    runs = 0
    buckets = _are_buckets(study.run, key[0], operations)
    for mine in by_step.values():
        mine.sort(key=lambda o: o.first_start_ns)
        little = [o for o in mine if (o.bytes or 0) <= limit]
        small += little
        apart = sum(b.first_start_ns - a.end_ns > _AT_ONCE * alpha for a, b in pairwise(little))
        runs += bool(little) + (0 if buckets else apart)
    steps = len(by_step)
    if not small or len(small) < LEAST_COUNT * steps:
        return None
    fused = (len(small) - runs) * alpha / steps
    exposed = _exposed(study.run, small) / steps
    return Small(*key, tuple(small), steps, runs, alpha, alpha_range, fused, exposed, source, buckets)


def _exposed(run: Run, operations: Sequence[Operation]) -> float:
    """ns of these operations that no computing hides, mean over the ranks."""
    rows: dict[int, list[int]] = defaultdict(list)
    for o in operations:
        for part, event in o.events.items():
            rows[part].append(event)
    out = []
    for part, events in rows.items():
        view = PartView(run, part)
        cover = view.cover(np.array(events, np.int64))
        work = intervals.join(view.device_compute, view.device_copy) if view.on_device else view.host_compute
        out.append(intervals.total(intervals.subtract(cover, work)))
    return float(np.mean(out)) if out else 0.0


class SmallMessages:
    """Many operations that are latency rather than bytes."""

    id = "comm.small_messages"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Silent where the latency is not known, computing hides it, or the model says that larger buckets lose."""
        whole = step_ns(study.result("accounting"))
        for small in small_of(study):
            if small.cost_ns < _LEAST_SHARE * whole:
                continue
            if not small.buckets:
                yield self._finding(small, whole, None)
                continue
            if owns_backward(study.run):
                continue
            best = best_cap(study.run)
            if best is None:
                yield self._finding(small, whole, None)
            elif worth_it(best[1]) and best[0] * (1 << 20) > 2 * float(np.median([o.bytes or 0 for o in small.operations])):
                yield self._finding(small, whole, best)

    def _finding(self, small: Small, whole: float, best: tuple[float, Outcome] | None) -> Finding:
        per_step, cost = round(small.per_step), small.cost_ns
        word = small.op.replace("_", "-")
        sizes = [o.bytes or 0 for o in small.operations]
        low, high = small.alpha_range
        rows: dict[int, list[int]] = defaultdict(list)
        for o in small.operations:
            for part, event in o.events.items():
                rows[part].append(event)
        remedy = "fuse them: flatten what is sent together into one tensor, or a coalescing manager"
        if best is not None:
            remedy = f"fewer, larger buckets: bucket_cap_mb={best[0]:g}. Predicted: {in_words(best[1])}"
        evidence = (
            Evidence(
                f"{counted(per_step, word)} per step of {size(min(sizes))} to {size(max(sizes))}, in "
                f"{counted(round(small.runs / small.steps), 'run')} without a pause; {time(small.exposed_ns)} of it exposed "
                "per step.",
                {part: tuple(events) for part, events in rows.items()},
            ),
            Evidence(
                f"Each pays {time(small.alpha_ns)} before its first byte ({time(low)} to {time(high)}; {small.source}): one "
                f"operation for each run would save {time(small.fused_ns)} per step at most, where nothing between them needs "
                "their results."
            ),
        )
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{counted(per_step, word)} per step are latency rather than bytes: {percent(cost / whole)} of the step",
            ranks=tuple(sorted(small.operations[0].dur_ns)),
            steps=tuple(sorted({o.step for o in small.operations if o.step is not None})),
            seconds_per_step=cost / 1e9,
            evidence=evidence,
            why=f"{counted(per_step, word)} per step are so small that at least half is latency ({time(small.alpha_ns)} each)",
            next=remedy,
            apply=remedy,
            verify="measure again: fewer operations per step, and less exposed communication",
            share=cost / whole,
            bound=True,
            edit={"ddp.bucket_cap_mb": best[0]} if best is not None else None,
            prediction=best[1].saving() if best is not None else None,
        )


def _are_buckets(run: Run, op: str, operations: Sequence[Operation]) -> bool:
    """Are most of these the all-reduces of DDP's buckets?"""
    if op != "all_reduce" or not ddp_models(run):
        return False
    held = {int(b) for part in ddp_models(run) for b in run.table("buckets", part)["bytes"].tolist()}
    return sum((o.bytes or 0) in held for o in operations) > len(operations) / 2
