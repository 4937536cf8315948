"""Input: how it is loaded, and copies from memory that is not pinned.

``study.result("input")`` is an ``InputResult``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.host_steps import facts
from dtprof.analyse.results import AccountingResult, settled
from dtprof.protocols import Lens
from dtprof.run import Run

# how torch's DataLoader calls its iterators, in the ranges that it records itself
_IN_PROCESS, _BY_WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


@dataclass(frozen=True)
class Pageable:
    """Copies from pageable memory to a device. ``exposed_ns``: nothing computed meanwhile; all per step, mean of the parts."""

    exposed_ns: float
    copies: float
    bytes: float | None
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class InputResult:
    """``workers``: processes of the loaders, 0 where the training process loads, None where that is not known; ``pinned``:
    do the loaders pin memory; ``source`` says where that is known from; ``pageable``: None on a CPU job."""

    workers: int | None
    pinned: bool | None
    source: str
    pageable: Pageable | None


def analyse(study: Lens) -> InputResult:
    """Loaders from what the collector ``training`` noted, else from torch's own ranges."""
    workers, pinned, source = _noted(study.run)
    if workers is None:
        workers, source = _named(study.run)
    return InputResult(workers, pinned, source, _pageable(study))


def _noted(run: Run) -> tuple[int | None, bool | None, str]:
    loaders = [
        loader for part in run.parts for loader in facts(part, "training").get("loaders", ()) if isinstance(loader, dict)
    ]
    counts = {loader["num_workers"] for loader in loaders if isinstance(loader.get("num_workers"), int)}
    pins = {loader["pin_memory"] for loader in loaders if isinstance(loader.get("pin_memory"), bool)}
    # of several loaders, as for training and evaluation, nobody can tell which one is waited for
    workers = counts.pop() if len(counts) == 1 else None
    return workers, pins.pop() if len(pins) == 1 else None, "the loader's arguments" if workers is not None else ""


def _named(run: Run) -> tuple[int | None, str]:
    """0 where all loading was done by the training process, as the names of its ranges say; workers are not counted there."""
    names = {name for part in run.parts for name in run.table("events", part.ordinal).values("name")}
    alone = any(_IN_PROCESS in name for name in names)
    if alone and not any(_BY_WORKERS in name for name in names):
        return 0, f"the range {_IN_PROCESS}"
    return None, ""


def _pageable(study: Lens) -> Pageable | None:
    accounting: AccountingResult = study.result("accounting")
    parts = [p for p in accounting.parts if p.steps and p.steps[0].on_device]
    if not parts:
        return None
    exposed, copies, size, known = 0.0, 0.0, 0.0, True
    rows: dict[int, tuple[int, ...]] = {}
    for account in parts:
        view, steps = PartView(study.run, account.part), settled(account.steps)
        mine = _copies(view, {s.step for s in steps})
        alone = intervals.subtract(view.cover(mine), view.device_compute)
        inside = sum(intervals.total(intervals.clip(alone, s.ts, s.ts + s.dur_ns)) for s in steps)
        share = len(steps) * len(parts)
        exposed, copies = exposed + inside / share, copies + len(mine) / share
        moved = view.events["bytes"][mine]
        known = known and bool(np.all(moved >= 0))
        size += float(moved.sum()) / share
        rows[account.part] = tuple(mine.tolist())
    return Pageable(exposed, copies, size if known else None, rows)


def _copies(view: PartView, steps: set[int]) -> NDArray[np.int64]:
    names = view.events.values("name")
    pageable = np.array(["Pageable -> Device" in n for n in names] + [False], bool)
    rows = view.device_rows[view.events.is_("kind", "memcpy")[view.device_rows]]
    rows = rows[pageable[view.events["name"][rows]]]
    mine: NDArray[np.int64] = rows[np.isin(view.events["step"][rows], list(steps))]
    return mine
