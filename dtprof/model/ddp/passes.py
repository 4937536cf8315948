"""The forward and backward passes of DDP inside one step: which of them reduced gradients, and what that exposed.

DDP decides in the forward pass whether the backward pass after it reduces (torch/nn/parallel/distributed.py, _pre_forward and
no_sync), so a pass reaches from one call of its forward method to the next, or to the optimizer. torch's own ranges mark
both (``DistributedDataParallel.forward``, ``Optimizer.step#…``), in any trace.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.run import Part, Run
from dtprof.schema import MISSING
from dtprof.table import Table

FORWARD = "DistributedDataParallel.forward"
_OPTIMIZER = "Optimizer.step#"
# torch::distributed::reducer::mul_out fills, torch.distributed.ddp.reducer::copy_bucket_to_grad empties
_COPIES = "reducer::"
# a pass reduces where it moves so much of what the pass that moves most does: SyncBatchNorm and a metric move less
_REDUCES = 0.5


@dataclass(frozen=True)
class Pass:
    """One pass of one rank: ``begin``, ``end`` and ``launched`` (its first reduction, ``end`` without one) in ns of the part's
    clock; ``bytes`` and ``rows`` of events of its all-reduces; ``exposed`` ns of those that no computing hides, ``hidden`` ns
    of the rest; ``copies`` ns in which DDP fills buckets and empties them on the host.
    """

    begin: int
    end: int
    launched: int
    bytes: int
    exposed: int
    hidden: int
    copies: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class StepPasses:
    """The passes of one captured training step of one part, in order.

    ``one_update``: an optimizer is called after the last pass and none between two of them.
    """

    part: int
    rank: int | None
    step: int
    passes: tuple[Pass, ...]
    one_update: bool

    @cached_property
    def reducing(self) -> tuple[bool, ...]:
        """Which passes reduce the gradients."""
        most = max((p.bytes for p in self.passes), default=0)
        return tuple(most > 0 and p.bytes >= _REDUCES * most for p in self.passes)


def passes_of(run: Run) -> list[StepPasses]:
    """Passes of all captured training steps; parts without DDP's ranges have none."""
    return [found for part in run.parts for found in _of_part(run, part)]


def _of_part(run: Run, part: Part) -> list[StepPasses]:
    events = run.table("events", part.ordinal)
    named = np.array([name == FORWARD for name in events.values("name")] + [False], bool)
    updates = np.array([name.startswith(_OPTIMIZER) for name in events.values("name")] + [False], bool)
    view = PartView(run, part.ordinal)
    host = view.lane_device < 0
    forwards = np.flatnonzero(named[events["name"]] & host)
    if len(forwards) == 0:
        return []
    forwards = _outermost(events, forwards)
    optimizers = np.flatnonzero(updates[events["name"]] & host)
    issued, sizes, rows = _reductions(run, part, events, forwards)
    compute = intervals.join(view.device_compute, view.device_copy) if view.on_device else view.host_compute
    copying = np.array([_COPIES in name for name in events.values("name")] + [False], bool)
    copies = view.cover(np.flatnonzero(copying[events["name"]] & host))
    out = []
    for step, end in _train_steps(run, part):
        begins = events["ts"][forwards[events["step"][forwards] == step]]
        mine = events["ts"][optimizers[events["step"][optimizers] == step]]
        if len(begins) == 0:
            continue
        last = int(mine[mine > begins[-1]].min(initial=end))
        borders = [*begins.tolist(), last]
        inside = [np.flatnonzero((issued >= lo) & (issued < hi)) for lo, hi in pairwise(borders)]
        found = tuple(
            Pass(
                lo, hi, int(issued[which].min(initial=hi)), int(sizes[which].sum()), *_shown(events, rows[which], compute),
                intervals.total(intervals.clip(copies, lo, hi)), tuple(rows[which].tolist()),
            )
            for (lo, hi), which in zip(pairwise(borders), inside, strict=True)
        )  # fmt: skip
        one_update = last < end and not np.any((mine > begins[0]) & (mine < begins[-1]))
        out.append(StepPasses(part.ordinal, part.rank, step, found, one_update))
    return out


def _train_steps(run: Run, part: Part) -> list[tuple[int, int]]:
    """Captured training steps and their ends."""
    steps = run.table("steps", part.ordinal)
    kinds = steps.text("kind")
    columns = zip(
        steps["step"].tolist(), steps["host_ts"].tolist(), steps["host_dur"].tolist(), steps["captured"].tolist(), strict=True
    )
    return [
        (step, ts + dur)
        for row, (step, ts, dur, captured) in enumerate(columns)
        if captured and ts != MISSING and dur != MISSING and kinds[row] in (None, "train")
    ]


def _outermost(events: Table, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that lie in no earlier one: DDP inside DDP is one pass."""
    reach, keep = -1, []
    for row in rows.tolist():
        ts = int(events["ts"][row])
        if ts >= reach:
            keep.append(row)
            reach = ts + int(events["dur"][row])
    return np.array(keep, np.int64)


def _reductions(
    run: Run, part: Part, events: Table, forwards: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(issued, bytes, event row) of the all-reduces of groups that reduce nothing inside a forward pass, as tensor parallelism
    does.
    """
    comm = run.table("comm", part.ordinal)
    which = np.flatnonzero(comm.is_("op", "all_reduce") & (comm["bytes_in"] > 0) & (comm["event"] >= 0))
    rows, records = comm["event"][which].astype(np.int64), comm["record"][which]
    issued = np.where(records >= 0, events["ts"][np.maximum(records, 0)], events["ts"][rows])
    begins = events["ts"][forwards]
    ends = begins + events["dur"][forwards]
    at = np.searchsorted(begins, issued, "right") - 1
    inside = (at >= 0) & (issued < ends[np.maximum(at, 0)])
    groups = comm["group"][which]
    keep = ~np.isin(groups, groups[inside])
    return issued[keep].astype(np.int64), comm["bytes_in"][which][keep], rows[keep]


def _shown(events: Table, rows: NDArray[np.int64], compute: intervals.Cover) -> tuple[int, int]:
    """(ns of these events outside the computing, inside it)."""
    cover = intervals.union(events["ts"][rows], events["ts"][rows] + events["dur"][rows])
    exposed = intervals.total(intervals.subtract(cover, compute))
    return exposed, intervals.total(cover) - exposed


def by_step(found: list[StepPasses]) -> dict[int, list[StepPasses]]:
    """Steps in which all parts have the same number of passes, each with its parts."""
    out: dict[int, list[StepPasses]] = defaultdict(list)
    for one in found:
        out[one.step].append(one)
    parts = {one.part for one in found}
    return {
        step: mine
        for step, mine in sorted(out.items())
        if {m.part for m in mine} == parts and len({len(m.passes) for m in mine}) == 1
    }
