"""Steps as windows of the graph: what is given when a step begins, and what marks its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.accounting import device_steps
from dtprof.analyse.covers import PartView
from dtprof.model.graph.graph import NodeKind, StepGraph
from dtprof.model.simulate.engine import Times
from dtprof.run import Run


@dataclass(frozen=True)
class Window:
    """One step of one part. ``first`` and ``last`` are nodes: the step lasts from the start of ``first`` to the start of
    ``last``, or to its end where ``to_end``.
    """

    part: int
    rank: int | None
    step: int
    start: int
    end: int
    first: int
    last: int
    to_end: bool

    @property
    def dur_ns(self) -> int:
        """Measured duration."""
        return self.end - self.start

    def length(self, times: Times) -> int:
        """Duration under simulated times, ns."""
        return int((times.end if self.to_end else times.start)[self.last] - times.start[self.first])


def windows(run: Run, graph: StepGraph) -> list[Window]:
    """The device steps of every part, by part and step; where a part has none, its whole capture as step -1.

    The host's steps where there is no device work.
    """
    if np.any(graph.kind == NodeKind.STEP):
        return _host_windows(run, graph)
    out = []
    for part in run.parts:
        nodes = np.flatnonzero((graph.part == part.ordinal) & np.isin(graph.kind, [NodeKind.OP, NodeKind.ARRIVAL]))
        if len(nodes) == 0:
            continue
        by_row = dict(zip(graph.row[nodes].tolist(), nodes.tolist(), strict=True))
        view = PartView(run, part.ordinal)
        found = device_steps(view)
        main = view.main_rows
        at = dict(zip((view.events["ts"][main]).tolist()[::-1], main.tolist()[::-1], strict=True))
        for border in found:
            first = by_row[at[border.start]]
            if border.complete:
                last, to_end = by_row[at[border.end]], False
            else:
                mine = view.device_rows[view.device_step == border.step]
                last, to_end = by_row[int(mine[np.argmax(view.end[mine])])], True
            shift = part.clock_offset_ns
            out.append(
                Window(part.ordinal, part.rank, border.step, border.start + shift, border.end + shift, first, last, to_end)
            )
        if not found:
            first = int(nodes[np.argmin(graph.start[nodes])])
            last = int(nodes[np.argmax(graph.end[nodes])])
            out.append(Window(part.ordinal, part.rank, -1, int(graph.start[first]), int(graph.end[last]), first, last, True))
    return out


def _host_windows(run: Run, graph: StepGraph) -> list[Window]:
    out = []
    for part in run.parts:
        borders = np.flatnonzero((graph.part == part.ordinal) & (graph.kind == NodeKind.STEP))
        borders = borders[np.argsort(graph.start[borders], kind="stable")]
        begins = graph.start[borders] - part.clock_offset_ns
        steps = run.table("steps", part.ordinal)
        number = dict(zip(steps["host_ts"].tolist(), steps["step"].tolist(), strict=True))
        for first, last, begin in zip(borders[:-1].tolist(), borders[1:].tolist(), begins[:-1].tolist(), strict=True):
            if begin in number:
                start, end = int(graph.start[first]), int(graph.start[last])
                out.append(Window(part.ordinal, part.rank, number[begin], start, end, first, last, False))
    return out


def given(graph: StepGraph, mine: list[Window]) -> NDArray[np.bool_]:
    """Nodes that are given when these windows, one step over the parts, begin: what started before, or with, their start."""
    borders = {w.part: w.start for w in mine}
    lowest = min(borders.values())
    border = np.array([borders.get(p, lowest) for p in range(int(graph.part.max()) + 1)] + [lowest], np.int64)
    return np.asarray(graph.start <= border[graph.part])


def by_step(found: list[Window]) -> dict[int, list[Window]]:
    """Windows of all parts, step by step."""
    out: dict[int, list[Window]] = {}
    for window in found:
        out.setdefault(window.step, []).append(window)
    return out
