"""StepGraph: nodes with durations, edges with lags, as arrays; rows of the events behind every node are remembered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints


class NodeKind(IntEnum):
    """What a node is."""

    CALL = 0  # a runtime call, or the entry into a blocking one
    RETURN = 1  # the return of a blocking call
    OP = 2  # a device operation
    ARRIVAL = 3  # one rank at a matched operation
    MEET = 4  # a matched operation, all ranks there
    STEP = 5  # a host step begins, or ends where none follows


class EdgeKind(IntEnum):
    """Why one node waits for another."""

    THREAD = 0  # next call of the thread
    HANDOFF = 1  # one thread waits for the work of another
    LAUNCH = 2  # a call starts a device operation
    STREAM = 3  # next operation of the stream
    EVENT = 4  # a stream waits for an event
    BLOCK = 5  # a call returns when device work has ended
    QUEUE = 6  # a launch waits for a place in the launch queue
    MEET = 7  # ranks come together


# how an operation shares its device with others: bits of ``StepGraph.crowd``
FILLS, YIELDS = 1, 2


class CyclicError(ValueError):
    """Operations that wait for each other: what was taken for one of them belongs to another."""


@dataclass(frozen=True)
class StepGraph:
    """The measured window of all parts as one graph.

    Node columns: ``kind`` (NodeKind), ``part``, ``lane``, ``row`` (row of the part's events; -1 for a meet), ``name`` (a
    number that equal names of a part share), ``start`` (measured, run clock, ns), ``dur`` (ns). Edge columns: ``src``,
    ``dst``, ``lag`` (ns), ``from_start`` (the lag counts from the start of ``src``, not from its end), ``why`` (EdgeKind),
    ``certain`` (recorded, not inferred), ``covered`` (part of the lag of a THREAD or HANDOFF edge that lies under an
    operator, ns). Edges are sorted by ``dst``; ``first`` holds the offset of each node's edges (length nodes + 1);
    ``order`` is a topological order. ``crowd`` says how kernels share a device: FILLS (leaves no room for another kernel),
    YIELDS (waits while one that fills runs), both added, or 0.
    """

    kind: NDArray[np.int8]
    part: NDArray[np.int32]
    lane: NDArray[np.int32]
    row: NDArray[np.int64]
    name: NDArray[np.int64]
    start: Ints
    dur: Ints
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    lag: Ints
    from_start: NDArray[np.bool_]
    why: NDArray[np.int8]
    certain: NDArray[np.bool_]
    covered: Ints
    first: NDArray[np.int64]
    order: NDArray[np.int64]
    crowd: NDArray[np.int8]
    notes: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def end(self) -> Ints:
        """Measured ends."""
        return np.asarray(self.start + self.dur)

    def without(self, *kinds: EdgeKind) -> StepGraph:
        """The same graph without the edges of these kinds."""
        return self.keep_edges(~np.isin(self.why, [int(k) for k in kinds]))

    def keep_edges(self, keep: NDArray[np.bool_]) -> StepGraph:
        """The same graph with only these edges."""
        counts = np.bincount(self.dst[keep], minlength=len(self))
        return replace(
            self, src=self.src[keep], dst=self.dst[keep], lag=self.lag[keep], from_start=self.from_start[keep],
            why=self.why[keep], certain=self.certain[keep], covered=self.covered[keep],
            first=np.concatenate([[0], np.cumsum(counts)]),
        )  # fmt: skip

    def only(self, keep: NDArray[np.bool_], edges: NDArray[np.bool_]) -> StepGraph:
        """The graph of some nodes, numbered anew in their order, and of some edges between them."""
        number = np.cumsum(keep) - 1
        counts = np.bincount(number[self.dst[edges]], minlength=int(keep.sum()))
        order = number[self.order[keep[self.order]]]
        return StepGraph(
            self.kind[keep], self.part[keep], self.lane[keep], self.row[keep], self.name[keep], self.start[keep],
            self.dur[keep],
            number[self.src[edges]], number[self.dst[edges]], self.lag[edges], self.from_start[edges], self.why[edges],
            self.certain[edges], self.covered[edges], np.concatenate([[0], np.cumsum(counts)]), order, self.crowd[keep],
        )  # fmt: skip

    def with_times(self, dur: Ints | None = None, lag: Ints | None = None) -> StepGraph:
        """The same graph with other durations or lags."""
        return replace(self, dur=self.dur if dur is None else dur, lag=self.lag if lag is None else lag)


class Builder:
    """Collects nodes and edges, then sorts, checks and freezes them."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, int, int, int, int, int]] = []
        self._edges: list[tuple[int, int, int, bool, int, bool, int]] = []
        self._crowd: dict[int, int] = {}
        self.notes: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, kind: NodeKind, part: int, lane: int, row: int, start: int, dur: int, name: int = -1) -> int:
        """Add a node and return its number."""
        self._nodes.append((int(kind), part, lane, row, start, dur, name))
        return len(self._nodes) - 1

    def crowd(self, node: int, how: int) -> None:
        """Say how a node shares its device: FILLS, YIELDS, or both."""
        self._crowd[node] = how

    def edge(
        self, src: int, dst: int, lag: int, why: EdgeKind, *, from_start: bool = False, certain: bool = True, covered: int = 0
    ) -> None:
        """Add an edge."""
        self._edges.append((src, dst, lag, from_start, int(why), certain, covered))

    def build(self) -> StepGraph:
        """The graph; ValueError names a node of a cycle where there is one."""
        nodes = np.array(self._nodes, np.int64).reshape(-1, 7)
        edges = np.array(self._edges, np.int64).reshape(-1, 7)
        edges = edges[np.argsort(edges[:, 1], kind="stable")]
        counts = np.bincount(edges[:, 1], minlength=len(nodes))
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        order = topological(len(nodes), edges[:, 0], edges[:, 1], nodes[:, 4])
        crowd = np.zeros(len(nodes), np.int8)
        crowd[list(self._crowd)] = list(self._crowd.values())
        columns = [nodes[:, i].copy() for i in range(7)]
        src, dst, lag, from_start, why, certain, covered = (edges[:, i].copy() for i in range(7))
        kind, part, lane, row, start, dur, name = columns
        return StepGraph(
            kind.astype(np.int8), part.astype(np.int32), lane.astype(np.int32), row, name, start, dur, src, dst, lag,
            from_start.astype(bool), why.astype(np.int8), certain.astype(bool), covered, first, order, crowd, self.notes,
        )  # fmt: skip


def topological(count: int, src: NDArray[np.int64], dst: NDArray[np.int64], start: Ints) -> NDArray[np.int64]:
    """A topological order of ``count`` nodes, by measured start where the edges leave a choice at once.

    ValueError where the edges close a cycle; it names one node of it.
    """
    order = np.argsort(start, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    if len(src) == 0 or bool(np.all(place[src] < place[dst])):
        return order
    out: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        out[a].append(b)
        missing[b] += 1
    ready = [n for n in order.tolist()[::-1] if missing[n] == 0]
    found: list[int] = []
    while ready:
        node = ready.pop()
        found.append(node)
        for after in out[node]:
            missing[after] -= 1
            if missing[after] == 0:
                ready.append(after)
    if len(found) < count:
        left = next(n for n in range(count) if missing[n] > 0)
        raise CyclicError(f"the step graph has a cycle through node {left}")
    return np.array(found, np.int64)
