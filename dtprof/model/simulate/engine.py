"""The engine: starts and ends of all nodes of a graph, under the measured or other durations.

Without kernels that crowd each other one pass in topological order does it; with them the nodes are taken by the time at
which they become ready, and a kernel that becomes ready while one that fills the device runs on another stream of the same
part waits for its end. That is a rule of the engine and never an edge: an edge from the measured overlap would keep a
wait that a change removes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.model.graph.graph import FILLS, YIELDS, StepGraph

_NEVER = -(1 << 62)


@dataclass(frozen=True)
class Times:
    """Simulated start and end of every node, run clock, ns."""

    start: Ints
    end: Ints


def simulate(
    graph: StepGraph,
    pinned: NDArray[np.bool_] | None = None,
    delay: Ints | None = None,
    *,
    crowding: bool = True,
    wanted: Sequence[int] | None = None,
) -> Times:
    """Every node starts when the last of what it waits for allows, plus its ``delay`` (ns; none by default).

    Nodes without a predecessor, and those that are ``pinned``, start when they were measured to. ``crowding=False``
    leaves out the rule for kernels that fill the device. Where only some nodes are ``wanted``, those that come after them and
    after all that began before them stay as measured, too: one step of many costs what it has, not what all have.
    """
    held = np.diff(graph.first) == 0
    if pinned is not None:
        held = held | pinned
    late = np.zeros(len(graph), np.int64) if delay is None else delay
    if wanted is not None:
        return _until(graph, held, late, wanted, crowding)
    return _run(graph, held, late, crowding)


def _until(graph: StepGraph, held: NDArray[np.bool_], late: Ints, wanted: Sequence[int], crowding: bool) -> Times:
    """Runs the nodes up to the wanted ones that are not held, with what they wait for."""
    place = np.empty(len(graph), np.int64)
    place[graph.order] = np.arange(len(graph))
    beside = graph.start <= graph.start[list(wanted)].max(initial=_NEVER)
    free = ~held & (place <= place[beside].max(initial=-1))
    start = graph.start + late
    if not free.any():
        return Times(start, start + graph.dur)
    edges = free[graph.dst]
    keep = free.copy()
    keep[graph.src[edges]] = True
    # kernels that may still fill the device where the first of them begins, which may be earlier than it was
    first, last = int(start[free].min()), int(start[free].max())
    keep |= held & (graph.crowd & FILLS > 0) & (start + graph.dur >= 2 * first - last) & (start <= last)
    found = _run(graph.only(keep, edges), ~free[keep], late[keep], crowding)
    start[keep] = found.start
    end = start + graph.dur
    return Times(start, end)


def _run(graph: StepGraph, held: NDArray[np.bool_], late: Ints, crowding: bool) -> Times:
    free = graph.crowd[~held]
    if crowding and bool(np.any(free & FILLS)):
        return _by_readiness(graph, held, late)
    return _in_order(graph, held, late)


def _in_order(graph: StepGraph, held: NDArray[np.bool_], late: Ints) -> Times:
    start, dur, delay = graph.start.tolist(), graph.dur.tolist(), late.tolist()
    end = [0] * len(graph)
    src, lag, first, from_start = graph.src.tolist(), graph.lag.tolist(), graph.first.tolist(), graph.from_start.tolist()
    fixed = held.tolist()
    for node in graph.order.tolist():
        if not fixed[node]:
            ready = _NEVER
            for edge in range(first[node], first[node + 1]):
                before = src[edge]
                at = (start[before] if from_start[edge] else end[before]) + lag[edge]
                if at > ready:
                    ready = at
            start[node] = ready
        start[node] += delay[node]
        end[node] = start[node] + dur[node]
    return Times(np.array(start, np.int64), np.array(end, np.int64))


def _by_readiness(graph: StepGraph, held: NDArray[np.bool_], late: Ints) -> Times:
    count = len(graph)
    start, dur, delay, crowd = graph.start.tolist(), graph.dur.tolist(), late.tolist(), graph.crowd.tolist()
    part, lane = graph.part.tolist(), graph.lane.tolist()
    after, first_after = _successors(graph)
    lag, from_start, dst = graph.lag.tolist(), graph.from_start.tolist(), graph.dst.tolist()
    missing = np.diff(graph.first)
    missing = np.where(held, 0, missing).tolist()
    fixed = held.tolist()
    ready = [start[n] if fixed[n] else _NEVER for n in range(count)]
    end = [0] * count
    filling: dict[int, list[tuple[int, int]]] = {}
    queue = [(ready[n], n) for n in range(count) if missing[n] == 0]
    heapq.heapify(queue)
    while queue:
        at, node = heapq.heappop(queue)
        at += delay[node]
        how = crowd[node]
        if how & YIELDS and not fixed[node]:
            at = max(at, _room(filling.get(part[node], ()), lane[node], at))
        start[node], end[node] = at, at + dur[node]
        if how & FILLS:
            running = filling.setdefault(part[node], [])
            running[:] = [entry for entry in running if entry[0] > at]
            running.append((end[node], lane[node]))
        for edge in after[first_after[node] : first_after[node + 1]]:
            follower = dst[edge]
            if fixed[follower]:
                continue
            begins = (start[node] if from_start[edge] else end[node]) + lag[edge]
            if begins > ready[follower]:
                ready[follower] = begins
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(queue, (ready[follower], follower))
    return Times(np.array(start, np.int64), np.array(end, np.int64))


def _room(running: list[tuple[int, int]] | tuple[()], lane: int, at: int) -> int:
    """When the kernels of other streams that fill the device at ``at`` have ended."""
    return max((end for end, other in running if other != lane and end > at), default=at)


def _successors(graph: StepGraph) -> tuple[list[int], list[int]]:
    """Edges by their source: edge numbers, and where each node's begin."""
    order = np.argsort(graph.src, kind="stable")
    counts = np.bincount(graph.src, minlength=len(graph))
    return order.tolist(), np.concatenate([[0], np.cumsum(counts)]).tolist()


def residuals(graph: StepGraph, times: Times | None = None) -> tuple[Ints, NDArray[np.int64]]:
    """How much later than its predecessors allow every node starts (ns; negative refutes an edge), and its binding edge.

    By the measured times, or by ``times``. Nodes without a predecessor have 0 and edge -1.
    """
    start, end = (graph.start, graph.end) if times is None else (times.start, times.end)
    allowed = np.where(graph.from_start, start[graph.src], end[graph.src]) + graph.lag
    by_time = np.lexsort((allowed, graph.dst))
    last = np.flatnonzero(np.append(np.diff(graph.dst[by_time]) != 0, True)) if len(by_time) else by_time
    binding = np.full(len(graph), -1, np.int64)
    binding[graph.dst[by_time[last]]] = by_time[last]
    late = np.where(binding >= 0, start - allowed[np.maximum(binding, 0)] if len(allowed) else 0, 0)
    return late, binding
