"""The critical path of a step, walked back over measured times: what every millisecond of it waits for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.covers import PartView
from dtprof.intervals import Ints
from dtprof.model.graph.graph import FILLS, YIELDS, EdgeKind, NodeKind, StepGraph
from dtprof.model.simulate.engine import Times, residuals
from dtprof.model.simulate.windows import Window
from dtprof.run import Run

# what time on the path is spent with; "entry" lies before the first recorded call of the rank that the path leads to
SHARES = (
    "compute", "communication", "copy", "call", "host_covered", "host_opaque", "launch", "stream_gap", "handoff", "return",
    "crowding", "entry", "unexplained",
)  # fmt: skip


@dataclass(frozen=True)
class Segment:
    """A stretch of the path: node, what the time is spent with (one of SHARES), and ns, inside the window."""

    node: int
    share: str
    ns: int


@dataclass(frozen=True)
class Path:
    """The path of one window, last segment first; the segments sum to ``dur_ns``."""

    window: Window
    segments: tuple[Segment, ...]

    @property
    def dur_ns(self) -> int:
        """Length of the window."""
        return sum(s.ns for s in self.segments)

    def shares(self) -> dict[str, int]:
        """ns by share."""
        out = dict.fromkeys(SHARES, 0)
        for segment in self.segments:
            out[segment.share] += segment.ns
        return out


class Walker:
    """Walks paths of one graph under one set of times (the measured ones by default)."""

    def __init__(self, graph: StepGraph, op_share: list[str], times: Times | None = None) -> None:
        self.graph = graph
        self.start: Ints = graph.start if times is None else times.start
        self.end: Ints = graph.end if times is None else times.end
        self.op_share = op_share
        self.late, self.binding = residuals(graph, times)
        self._fillers = self._filling()

    def _filling(self) -> dict[int, tuple[Ints, Ints, NDArray[np.int32]]]:
        out = {}
        for part in np.unique(self.graph.part).tolist():
            mine = np.flatnonzero((self.graph.part == part) & (self.graph.crowd & FILLS > 0))
            mine = mine[np.argsort(self.start[mine], kind="stable")]
            out[part] = (self.start[mine], self.end[mine], self.graph.lane[mine])
        return out

    def walk(self, window: Window) -> Path:
        """The path that ends where the window ends."""
        segments: list[Segment] = []
        self._add(segments, window, window.last, self.op_share[window.last], self._last_start(window), window.end)
        node = window.last
        while self.start[node] > window.start and self.binding[node] >= 0:
            node = self._step(segments, window, node)
        if (left := int(min(self.start[node], window.end)) - window.start) > 0:
            segments.append(Segment(node, "entry", left))
        return Path(window, tuple(segments))

    def _last_start(self, window: Window) -> int:
        return int(self.start[window.last]) if window.to_end else window.end

    def _step(self, segments: list[Segment], window: Window, node: int) -> int:
        """Attribute the time between a node's start and the start of the one that it waited for; return that one."""
        graph, edge = self.graph, int(self.binding[node])
        before, begins = int(graph.src[edge]), int(self.start[node])
        left = int(self.start[before] if graph.from_start[edge] else self.end[before])
        late = max(int(self.late[node]), 0)
        crowded = self._crowded(node, begins - late, begins) if late else 0
        for share, length in (("crowding", crowded), ("unexplained", late - crowded)):
            self._add(segments, window, node, share, begins - length, begins)
            begins -= length
        for share, length in self._of_edge(edge, max(begins - left, 0)):
            self._add(segments, window, node, share, begins - length, begins)
            begins -= length
        if not graph.from_start[edge]:
            self._add(segments, window, before, self.op_share[before], int(self.start[before]), min(begins, left))
        return before

    def _of_edge(self, edge: int, length: int) -> list[tuple[str, int]]:
        why = int(self.graph.why[edge])
        if why in (EdgeKind.THREAD, EdgeKind.HANDOFF):
            covered = min(int(self.graph.covered[edge]), length)
            rest = "handoff" if why == EdgeKind.HANDOFF else "host_opaque"
            return [("host_covered", covered), (rest, length - covered)]
        named = {EdgeKind.LAUNCH: "launch", EdgeKind.STREAM: "stream_gap", EdgeKind.BLOCK: "return", EdgeKind.QUEUE: "return"}
        return [(named.get(EdgeKind(why), "stream_gap"), length)]

    def _crowded(self, node: int, lo: int, hi: int) -> int:
        """How much of [lo, hi) a kernel that may have to yield spends beside kernels of other streams that fill the device."""
        if not self.graph.crowd[node] & YIELDS:
            return 0
        starts, ends, lanes = self._fillers[int(self.graph.part[node])]
        until = int(np.searchsorted(starts, lo, "right"))
        near = slice(max(0, until - 64), until)
        running = (lanes[near] != self.graph.lane[node]) & (ends[near] > lo)
        return int(min(ends[near][running].max(), hi) - lo) if running.any() else 0

    def _add(self, segments: list[Segment], window: Window, node: int, share: str, lo: int, hi: int) -> None:
        length = min(hi, window.end) - max(lo, window.start)
        if length > 0:
            segments.append(Segment(node, share, length))


def op_shares(graph: StepGraph, comm: dict[int, set[int]], copies: dict[int, set[int]]) -> list[str]:
    """Share of every node's own duration; ``comm`` and ``copies``: part -> event rows that communicate or copy."""
    out = []
    for kind, part, row in zip(graph.kind.tolist(), graph.part.tolist(), graph.row.tolist(), strict=True):
        if kind in (NodeKind.MEET, NodeKind.ARRIVAL) or (kind == NodeKind.OP and row in comm.get(part, ())):
            out.append("communication")
        elif kind == NodeKind.OP:
            out.append("copy" if row in copies.get(part, ()) else "compute")
        else:
            out.append("call")
    return out


def walker(run: Run, graph: StepGraph) -> Walker:
    """A walker over the measured times of a run's graph."""
    comm: dict[int, set[int]] = {}
    copies: dict[int, set[int]] = {}
    for part in run.parts:
        view = PartView(run, part.ordinal)
        comm[part.ordinal] = set(view.comm_rows.tolist())
        copies[part.ordinal] = set(np.flatnonzero(view.events.is_("kind", "memcpy", "memset")).tolist())
    return Walker(graph, op_shares(graph, comm, copies))


def mean_shares(paths: list[Path]) -> dict[str, float]:
    """Shares of the summed length of some paths."""
    sums: dict[str, float] = defaultdict(float)
    for path in paths:
        for share, length in path.shares().items():
            sums[share] += length
    whole = sum(sums.values())
    return {share: sums[share] / whole if whole else 0.0 for share in SHARES}
