"""Device side of the step graph: launches, streams, and the constants that a trace itself shows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dtprof.intervals import Ints
from dtprof.model.graph.graph import Builder, EdgeKind, NodeKind
from dtprof.model.graph.nodes import PartNodes, Rows

# where a trace never shows an idle stream, a launch is taken to need this long (the low end of what traces show)
DEFAULT_LATENCY_NS = 5_000
# a longer pause between two operations that were both ready has another cause than the device's own turnaround
LONGEST_GAP_NS = 20_000
_KINDS = ("kernel", "memcpy", "memset", "comm")


@dataclass(frozen=True)
class Constants:
    """Medians of one part, in ns: from a launch call to its operation on an idle stream, and between two ready operations."""

    latency: dict[int, int]
    gap: dict[tuple[int, int], int]

    def launch(self, kind: int) -> int:
        """From the start of a launch call to the start of an operation of this kind."""
        return self.latency.get(kind, DEFAULT_LATENCY_NS)

    def between(self, before: int, after: int) -> int:
        """Between the end of an operation and the start of the next one on its stream."""
        return self.gap.get((before, after), 0)


@dataclass
class Placed:
    """Where the events of one part are in the graph.

    ``enter`` and ``leave``: call row -> node that begins and node that ends it (the same one unless the call blocks).
    ``begin`` and ``done``: operation row -> node that starts it and node whose end is its end (a meet for matched ones).
    """

    enter: dict[int, int] = field(default_factory=dict)
    leave: dict[int, int] = field(default_factory=dict)
    begin: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)


def op_kinds(nodes: PartNodes) -> Ints:
    """Kind of every event as an index: kernel 0, copy 1, memset 2, communication 3; -1 for others."""
    events = nodes.view.events
    out = np.full(len(nodes.ts), -1, np.int64)
    for number, kind in enumerate(_KINDS):
        out[events.is_("kind", kind)] = number
    return out


def streams(nodes: PartNodes) -> dict[int, Rows]:
    """Operations of every stream, by start."""
    lanes = nodes.lane[nodes.ops]
    return {int(lane): nodes.ops[lanes == lane] for lane in np.unique(lanes).tolist()}


def constants(nodes: PartNodes) -> Constants:
    """Medians over the part's own operations."""
    kinds = op_kinds(nodes)
    latency: dict[int, list[int]] = defaultdict(list)
    gap: dict[tuple[int, int], list[int]] = defaultdict(list)
    last_kernel_end = _ends_before(nodes, kinds)
    for rows in streams(nodes).values():
        previous = np.concatenate([[-1], rows[:-1]])
        for row, before in zip(rows.tolist(), previous.tolist(), strict=True):
            call = int(nodes.launch[row])
            if call < 0:
                continue
            start, called, kind = int(nodes.ts[row]), int(nodes.ts[call]), int(kinds[row])
            free = before < 0 or int(nodes.end[before]) <= called
            if free and (kind != 3 or last_kernel_end[row] <= called):
                latency[kind].append(start - called)
            elif before >= 0 and int(nodes.end[call]) + DEFAULT_LATENCY_NS <= int(nodes.end[before]):
                gap[int(kinds[before]), kind].append(min(max(start - int(nodes.end[before]), 0), LONGEST_GAP_NS))
    return Constants(
        {kind: int(np.median(found)) for kind, found in latency.items()},
        {pair: int(np.median(found)) for pair, found in gap.items()},
    )


def _ends_before(nodes: PartNodes, kinds: Ints) -> dict[int, int]:
    """For every communication kernel the end of the last other kernel launched before it (its first wait); -1: none."""
    out: dict[int, int] = {}
    kernels = nodes.ops[(kinds[nodes.ops] == 0) & (nodes.launch[nodes.ops] >= 0)]
    called = nodes.ts[nodes.launch[kernels]]
    order = np.argsort(called, kind="stable")
    kernels, called = kernels[order], called[order]
    for row in nodes.ops[kinds[nodes.ops] == 3].tolist():
        call = int(nodes.launch[row])
        at = int(np.searchsorted(called, nodes.ts[call], "left")) - 1 if call >= 0 else -1
        out[row] = int(nodes.end[kernels[at]]) if at >= 0 else -1
    return out


def place(nodes: PartNodes, builder: Builder, placed: Placed, meets: dict[int, int]) -> None:
    """Nodes of all device operations; ``meets``: operation row -> node of the matched operation that it takes part in."""
    for row, lane in zip(nodes.ops.tolist(), nodes.lane[nodes.ops].tolist(), strict=True):
        start, dur = int(nodes.ts[row]), int(nodes.end[row] - nodes.ts[row])
        if row in meets:
            arrival = builder.node(NodeKind.ARRIVAL, nodes.part, lane, row, start, 0)
            builder.edge(arrival, meets[row], 0, EdgeKind.MEET)
            placed.begin[row], placed.done[row] = arrival, meets[row]
        else:
            placed.begin[row] = placed.done[row] = builder.node(NodeKind.OP, nodes.part, lane, row, start, dur)


def connect(nodes: PartNodes, builder: Builder, placed: Placed, known: Constants) -> None:
    """Launch edges, from the start of the call, and stream edges."""
    kinds = op_kinds(nodes)
    for rows in streams(nodes).values():
        before = behind = -1
        for row in rows.tolist():
            kind = int(kinds[row])
            call = nodes.outer.get(int(nodes.launch[row]), -1) if nodes.launch[row] >= 0 else -1
            if call >= 0:
                builder.edge(placed.enter[call], placed.begin[row], known.launch(kind), EdgeKind.LAUNCH, from_start=True)
            ahead = behind if before >= 0 and _beside(nodes, before, row) else before
            if ahead >= 0:
                gap = known.between(int(kinds[ahead]), kind)
                builder.edge(placed.done[ahead], placed.begin[row], gap, EdgeKind.STREAM)
            before, behind = row, ahead


def _beside(nodes: PartNodes, before: int, row: int) -> bool:
    """Do two neighbours of a stream run side by side, as branches of one graph launch do?"""
    return bool(nodes.launch[row] == nodes.launch[before] >= 0 and nodes.ts[row] < nodes.end[before])
