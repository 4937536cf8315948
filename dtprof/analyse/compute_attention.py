"""Attention that is written out: product, softmax, product, with the scores of all pairs going through memory in between.

``study.result("attention")`` is an ``AttentionResult``. It is found by the operators on the host: ``bmm``, ``_softmax``,
``bmm`` in a row, in the backward pass ``_softmax_backward_data`` between two products. What runs between the two products is
what a fused kernel (Dao et al. 2022, FlashAttention) does on the fly, without writing the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, settled
from dtprof.intervals import Cover
from dtprof.protocols import Lens

_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data")
# more operators between two products than scaling, mask, softmax and dropout take are something else
_MOST_BETWEEN = 60


@dataclass(frozen=True)
class AttentionResult:
    """``between_ns``: computing between the two products, per step, mean of the parts; ``layers``: how often forward per step;
    ``rows``: part -> softmax operators. All zero where no attention is written out, or no operator was recorded."""

    between_ns: float = 0.0
    layers: float = 0.0
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)


def analyse(study: Lens) -> AttentionResult:
    """Written-out attention in the settled steps of every part."""
    accounting: AccountingResult = study.result("accounting")
    parts = [p for p in accounting.parts if p.steps and not p.unreliable]
    spent, layers, rows = 0.0, 0.0, dict[int, tuple[int, ...]]()
    for account in parts:
        view, steps = PartView(study.run, account.part), settled(account.steps)
        found, between, forward = _places(view, {s.step for s in steps})
        if not len(found):
            continue
        cover = _computing(view, between)
        windows = [(s.ts, s.ts + s.dur_ns) for s in steps]
        inside = sum(intervals.total(intervals.clip(cover, lo, hi)) for lo, hi in windows)
        spent += inside / len(steps) / len(parts)
        layers += forward / len(steps) / len(parts)
        rows[account.part] = tuple(found.tolist())
    return AttentionResult(spent, layers, rows)


def _places(view: PartView, steps: set[int]) -> tuple[NDArray[np.int64], Cover, int]:
    """Softmax operators between two products, the host time between those, and how many are of the forward pass."""
    events, names = view.events, view.events.values("name")
    product = np.array([n in _PRODUCTS for n in names] + [False], bool)[events["name"]]
    softmax = np.array([n in _SOFTMAX for n in names] + [False], bool)[events["name"]]
    operator = events.is_("kind", "cpu_op")
    rows = np.flatnonzero((product | softmax) & operator & np.isin(events["step"], list(steps)))
    rows = rows[np.argsort(events["lane"][rows], kind="stable")]
    if len(rows) < 3:
        return rows[:0], intervals.empty(), 0
    lane = events["lane"][rows]
    middle = 1 + np.flatnonzero(
        softmax[rows][1:-1] & product[rows][:-2] & product[rows][2:] & (lane[:-2] == lane[1:-1]) & (lane[2:] == lane[1:-1])
    )
    before, after = rows[middle - 1], rows[middle + 1]
    number = np.cumsum(operator)
    near = number[after] - number[before] <= _MOST_BETWEEN
    found = rows[middle][near]
    forward = np.array([n == _SOFTMAX[0] for n in names] + [False], bool)[events["name"][found]]
    return found, intervals.union(view.end[before[near]], events["ts"][after[near]]), int(forward.sum())


def _computing(view: PartView, between: Cover) -> Cover:
    """Computing of that host time: kernels that were launched in it, or operators that ran in it."""
    if not view.on_device:
        return intervals.intersect(view.host_compute, between)
    launch = view.events["launch"][view.device_rows]
    at = view.events["ts"][np.maximum(launch, 0)]
    place = np.searchsorted(between[0], at, "right") - 1
    inside = (launch >= 0) & (place >= 0) & (at < between[1][np.maximum(place, 0)])
    return view.cover(view.device_rows[inside & view.events.is_("kind", "kernel")[view.device_rows]])
