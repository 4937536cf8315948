"""The step graph of a run with other loads of its experts.

What a rank does between dispatch and combine changes by the slope of that time over its tokens; an all-to-all by the slope of
its time over the most bytes that a rank sends or receives. Both slopes are the run's own. All else stays as it was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dtprof.model.graph.graph import StepGraph
from dtprof.model.moe.fit import Slope, slope_of
from dtprof.model.moe.loads import Load
from dtprof.model.moe.observe import Place, SeenMoe, Transfer


@dataclass(frozen=True)
class Slopes:
    """ns per token by direction (name of the all-to-all before the pass), and ns per byte of an all-to-all, where it grows."""

    compute: dict[str, Slope]
    bytes: Slope | None

    def at(self, end: str) -> tuple[dict[str, float], float]:
        """(ns per token by direction, ns per byte) at ``end``: value, low or high."""
        return {word: getattr(s, end) for word, s in self.compute.items()}, getattr(self.bytes, end) if self.bytes else 0.0

    @property
    def determined(self) -> bool:
        """Are those of all directions told by the run?"""
        return all(s.determined for s in self.compute.values())


def slopes(seen: SeenMoe) -> Slopes | str:
    """The slopes of a run, a step's passes of one direction through a layer together; or why there are none."""
    sums: dict[tuple[str, int, Place], float] = defaultdict(float)
    for s in seen.sections:
        sums[s.word, s.part, s.place] += s.ns
    found = {}
    for word in dict.fromkeys(s.word for s in seen.sections):
        pairs = [(seen.loads[place].of(part), ns) for (w, part, place), ns in sums.items() if w == word]
        slope = slope_of(*zip(*pairs, strict=True))
        if slope is None:
            return "no expert of the run computed a token"
        found[word] = slope
    moved = [(t.largest, t.ns) for t in seen.transfers] + list(seen.counts)
    return Slopes(found, slope_of(*zip(*moved, strict=True)) if moved else None)


def changed_graph(
    graph: StepGraph, seen: SeenMoe, loads: Mapping[Place, Load], per_token: Mapping[str, float], per_byte: float
) -> StepGraph:
    """The graph under new ``loads``, with ns per token and per byte."""
    dur, lag = graph.dur.astype(float), graph.lag.astype(float)
    whole: dict[tuple[str, int, Place], float] = defaultdict(float)
    for s in seen.sections:
        whole[s.word, s.part, s.place] += s.ns
    for s in seen.sections:
        before = whole[s.word, s.part, s.place]
        if before <= 0:
            continue
        more = per_token[s.word] * (loads[s.place].of(s.part) - seen.loads[s.place].of(s.part))
        share = max(1 + more / before, 0.0)
        lag[list(s.edges)] *= share
        dur[list(s.nodes)] *= share
    for t in seen.transfers:
        more = per_byte * (_largest(t, seen.loads[t.place], loads[t.place]) - t.largest)
        dur[t.meet] = max(dur[t.meet] + more, 0.0)
    return graph.with_times(dur=np.rint(dur).astype(np.int64), lag=np.rint(lag).astype(np.int64))


def _largest(transfer: Transfer, before: Load, after: Load) -> float:
    """The most bytes that a rank sends or receives under another load: at the experts by their tokens, elsewhere by what is
    kept of all.
    """
    at_experts, elsewhere = (transfer.received, transfer.sent) if transfer.to_experts else (transfer.sent, transfer.received)
    if not before.computed:
        return transfer.largest
    token = sum(at_experts.values()) / before.computed
    kept = after.computed / before.computed
    return max(max(token * after.of(part), kept * elsewhere[part]) for part in at_experts)
