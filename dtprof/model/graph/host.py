"""Host side of the step graph: calls in thread order with the thinking between them, and hand-offs between threads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtprof import intervals
from dtprof.intervals import Cover, Ints
from dtprof.model.graph.device import Placed
from dtprof.model.graph.graph import Builder, EdgeKind, NodeKind
from dtprof.model.graph.nodes import PartNodes, Rows

# a thread that waits for another one does next to nothing meanwhile
_IDLE_SHARE = 0.01


@dataclass(frozen=True)
class Stretch:
    """Calls of one thread between two stretches of other threads: ``first`` and ``last`` are call rows."""

    lane: int
    first: int
    last: int
    start: int
    end: int


def place(nodes: PartNodes, builder: Builder, placed: Placed, blocking: set[int]) -> None:
    """Nodes of all calls; a blocking one is an entry without duration and a return."""
    names = nodes.view.events["name"][nodes.calls].tolist()
    for row, lane, name in zip(nodes.calls.tolist(), nodes.lane[nodes.calls].tolist(), names, strict=True):
        start, end = int(nodes.ts[row]), int(nodes.end[row])
        if row in blocking:
            placed.enter[row] = builder.node(NodeKind.CALL, nodes.part, lane, row, start, 0, name)
            placed.leave[row] = builder.node(NodeKind.RETURN, nodes.part, lane, row, end, 0, name)
        else:
            node = builder.node(NodeKind.CALL, nodes.part, lane, row, start, end - start, name)
            placed.enter[row] = placed.leave[row] = node


def connect(nodes: PartNodes, builder: Builder, placed: Placed) -> int:
    """Thread order with its thinking, and hand-offs in its place where one thread waits for another; returns their number."""
    handoffs = _handoffs(nodes)
    taken = {after.first for _, after in handoffs}
    operators = {int(lane): nodes.operators(int(lane)) for lane in nodes.threads.tolist()}
    for lane in nodes.threads.tolist():
        rows = nodes.calls[nodes.lane[nodes.calls] == lane]
        lo, hi = nodes.end[rows[:-1]], nodes.ts[rows[1:]]
        covered = intervals.measure(operators[lane], lo, np.maximum(hi, lo))
        for a, b, think, under in zip(rows[:-1].tolist(), rows[1:].tolist(), (hi - lo).tolist(), covered.tolist(), strict=True):
            if b not in taken:
                builder.edge(placed.leave[a], placed.enter[b], think, EdgeKind.THREAD, covered=under)
    for before, after in handoffs:
        lag = after.start - before.end
        under = _under(operators, before, after)
        builder.edge(placed.leave[before.last], placed.enter[after.first], lag, EdgeKind.HANDOFF, certain=False, covered=under)
    return len(handoffs)


def _under(operators: dict[int, Cover], before: Stretch, after: Stretch) -> int:
    both = intervals.join(operators[before.lane], operators[after.lane])
    return intervals.total(intervals.clip(both, before.end, after.start))


def _handoffs(nodes: PartNodes) -> list[tuple[Stretch, Stretch]]:
    """Neighbouring stretches of different threads of which the second begins when the first has ended.

    The thread of the second one must have been idle meanwhile; both hold calls, which is what makes a stretch.
    """
    if len(nodes.threads) < 2:
        return []
    activity = {int(lane): nodes.activity(int(lane)) for lane in nodes.threads.tolist()}
    found = []
    for before, after in pairwise(_stretches(nodes)):
        if after.start < before.end:
            continue
        busy = intervals.total(intervals.clip(activity[after.lane], before.start, before.end))
        if busy <= _IDLE_SHARE * (before.end - before.start):
            found.append((before, after))
    return found


def _stretches(nodes: PartNodes) -> list[Stretch]:
    rows: Rows = nodes.calls
    lanes = nodes.lane[rows]
    borders = np.flatnonzero(np.diff(lanes)) + 1
    starts = np.concatenate([[0], borders])
    ends: Ints = np.concatenate([borders, [len(rows)]]) - 1
    return [
        Stretch(int(lanes[a]), int(rows[a]), int(rows[b]), int(nodes.ts[rows[a]]), int(nodes.end[rows[b]]))
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        if len(rows)
    ]
