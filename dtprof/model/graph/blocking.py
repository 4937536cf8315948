"""Calls that block: they return when device work has ended, or when the launch queue has room."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from dtprof.model.graph.device import Placed
from dtprof.model.graph.graph import Builder, EdgeKind
from dtprof.model.graph.nodes import PartNodes

# where no call returned at once: what a call that need not wait costs
_OWN_NS = 3_000
# a queue depth is believed where it varies by less than this share of itself over the long launches
_DEPTH_SPREAD = 0.005
# fewer long launches than this show no queue
_ENOUGH = 20


def blocking_calls(nodes: PartNodes) -> set[int]:
    """Rows of the calls that wait for device work."""
    wanted = nodes.stream_syncs | nodes.device_syncs | nodes.event_syncs
    rows = set(nodes.calls[wanted[nodes.calls]].tolist())
    return rows | {
        nodes.outer[int(nodes.launch[row])] for row in nodes.copies_back.tolist() if int(nodes.launch[row]) in nodes.outer
    }


def connect(nodes: PartNodes, builder: Builder, placed: Placed) -> None:
    """Edges from the device work that a call waits for to its return."""
    sources = _sources(nodes)
    back = _return_ns(nodes, sources)
    for call, waited in sources.items():
        enter, leave = placed.enter[call], placed.leave[call]
        own = min(_OWN_NS, int(nodes.end[call] - nodes.ts[call]))
        builder.edge(enter, leave, own, EdgeKind.THREAD)
        for row in waited:
            builder.edge(placed.done[row], leave, back, EdgeKind.BLOCK, certain=not nodes.event_syncs[call])


def _sources(nodes: PartNodes) -> dict[int, list[int]]:
    """For every blocking call the operations that must have ended: the last one of each stream that it waits for."""
    sources: dict[int, list[int]] = {}
    for row in nodes.copies_back.tolist():
        call = nodes.outer.get(int(nodes.launch[row]))
        if call is not None:
            sources.setdefault(call, []).append(row)
    launched = nodes.ops[nodes.launch[nodes.ops] >= 0]
    called = nodes.ts[nodes.launch[launched]]
    order = np.argsort(called, kind="stable")
    launched, called = launched[order], called[order]
    threads, lanes = nodes.lane[nodes.launch[launched]], nodes.lane[launched]
    for call in nodes.calls.tolist():
        until = int(np.searchsorted(called, nodes.ts[call], "left"))
        if nodes.device_syncs[call]:
            sources[call] = _last_of_each_stream(nodes, int(nodes.end[call]), int(nodes.ts[call]))
        elif nodes.stream_syncs[call] or nodes.event_syncs[call]:
            mine = np.flatnonzero(threads[:until] == nodes.lane[call])
            if len(mine):
                on_stream = np.flatnonzero(lanes[:until] == lanes[mine[-1]])
                sources[call] = [int(launched[on_stream[-1]])]
            else:
                sources.setdefault(call, [])
    return sources


def _last_of_each_stream(nodes: PartNodes, returned: int, called: int) -> list[int]:
    """Last operation of every stream that was launched before a call, those launched before the trace included."""
    out = []
    for lane in np.unique(nodes.lane[nodes.ops]).tolist():
        rows = nodes.ops[nodes.lane[nodes.ops] == lane]
        launch = nodes.launch[rows]
        before = np.where(launch >= 0, nodes.ts[np.maximum(launch, 0)] < called, nodes.end[rows] <= returned)
        if before.any():
            out.append(int(rows[np.flatnonzero(before)[-1]]))
    return out


def _return_ns(nodes: PartNodes, sources: dict[int, list[int]]) -> int:
    """Median time from the end of the work to the return of a call that did wait for it."""
    lags = []
    for call, rows in sources.items():
        if rows:
            last = max(int(nodes.end[r]) for r in rows)
            if last > int(nodes.ts[call]) and int(nodes.end[call]) >= last:
                lags.append(int(nodes.end[call]) - last)
    return int(np.median(lags)) if lags else 0


def queue_depth(nodes: PartNodes) -> int | None:
    """Launches outstanding at which further ones block, where the long launch calls of the part agree on it; else None."""
    launched, outstanding, _ = _outstanding(nodes)
    if len(launched) < _ENOUGH:
        return None
    low, middle, high = np.percentile(outstanding, [25, 50, 75])
    return int(middle) if middle > 0 and high - low <= _DEPTH_SPREAD * middle else None


def connect_queue(nodes: PartNodes, builder: Builder, placed: Placed, depth: int) -> int:
    """Edges from the operation whose end makes room to the long launch calls; returns their number."""
    rows, _, order = _outstanding(nodes)
    ends = sorted((int(nodes.end[r]), int(r)) for r in order)
    count = 0
    for row in rows:
        call = nodes.outer[int(nodes.launch[row])]
        leave = placed.leave[call]
        at = bisect_left(ends, (int(nodes.end[call]), -1)) - 1
        if at >= 0 and placed.enter[call] != leave:
            builder.edge(placed.done[ends[at][1]], leave, 0, EdgeKind.QUEUE, certain=False)
            count += 1
    return count


def queued_calls(nodes: PartNodes) -> set[int]:
    """Rows of the launch calls that wait for a place in the queue, where a queue shows."""
    if queue_depth(nodes) is None:
        return set()
    rows, _, _ = _outstanding(nodes)
    return {nodes.outer[int(nodes.launch[row])] for row in rows}


def _outstanding(nodes: PartNodes) -> tuple[list[int], list[int], list[int]]:
    """Operations whose launch call was long, launches outstanding when it returned, and all launched operations."""
    rows = [int(r) for r in nodes.ops.tolist() if int(nodes.launch[r]) in nodes.outer]
    if not rows:
        return [], [], []
    calls = np.array([nodes.outer[int(nodes.launch[r])] for r in rows])
    dur = nodes.end[calls] - nodes.ts[calls]
    back = set(nodes.copies_back.tolist())
    long = [i for i in np.flatnonzero(dur > max(50_000, 3 * float(np.median(dur)))).tolist() if rows[i] not in back]
    called, ended = np.sort(nodes.ts[calls]), np.sort(nodes.end[np.array(rows)])
    counts = [
        int(np.searchsorted(called, nodes.ts[calls[i]], "right") - np.searchsorted(ended, nodes.end[calls[i]], "left"))
        for i in long
    ]
    return [rows[i] for i in long], counts, rows
