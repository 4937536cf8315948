"""A simulated graph as a run: the same rows as the measured run, at other times, so that every analysis draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dtprof.edits import Edit, as_mapping
from dtprof.ingest.match import match
from dtprof.ingest.store import IngestStore
from dtprof.intervals import Ints
from dtprof.model.graph.graph import NodeKind, StepGraph
from dtprof.model.simulate.engine import Times
from dtprof.run import Part, Run, quality_rows
from dtprof.schema import MISSING, MISSING32
from dtprof.table import Table

_EVENT_COLUMNS = {
    "events": ("parent", "launch"),
    "comm": ("event", "record"),
    "kernel_args": ("event",),
    "deps": ("src", "dst"),
}
_SAME = ("lanes", "groups", "kernel_args", "comm", "deps")


def simulated_run(run: Run, graph: StepGraph, times: Times, edits: Sequence[Edit]) -> Run:
    """The run that ``times`` of its graph describe.

    Rows that are nodes lie where the simulation puts them. Host rows between two nodes of their thread (operators, ranges) move
    with them, in proportion; steps move with their training thread. Counters and memory are not simulated, and left out.
    """
    held: dict[int, Mapping[str, Table]] = {p.ordinal: _part(run, graph, times, p) for p in run.parts}
    return assembled(run, held, edits)


def assembled(run: Run, held: dict[int, Mapping[str, Table]], edits: Sequence[Edit]) -> Run:
    """A simulated run of the same job from tables by part; its operations are matched anew."""
    manifest = msgspec.convert(msgspec.to_builtins(run.manifest), type(run.manifest))
    manifest.run_id = f"{run.manifest.run_id}-simulated"
    manifest.own_cost = None
    manifest.knobs = {**manifest.knobs, "simulated": True, "edits": as_mapping(edits)}
    manifest.parts = [p for p in manifest.parts if p.ordinal in held]
    store = IngestStore(held, {})
    made = Run(manifest, store, run.path, "simulated")
    for part in made.parts:
        part.extra = {k: v for k, v in part.extra.items() if k == "collectors"}
    store.derive = lambda: match(made)
    return made


def note(edits: Sequence[Edit]) -> Table:
    """The quality row that says what the run is."""
    changed = ", ".join(map(str, edits)) or "nothing changed"
    return quality_rows([("simulation", f"a simulated run: {changed}", 1, "nothing of it was measured")])


def _part(run: Run, graph: StepGraph, times: Times, part: Part) -> Mapping[str, Table]:
    events = run.table("events", part.ordinal)
    nodes = np.flatnonzero(graph.part == part.ordinal)
    start, end = np.asarray(events["ts"]).copy(), np.asarray(events["ts"] + events["dur"]).copy()
    maps = _Maps(events, graph, times, nodes, part.clock_offset_ns)
    start, end = maps.moved(start), maps.moved(end)
    _place(graph, times, nodes, part.clock_offset_ns, start, end)
    order = np.argsort(start, kind="stable")
    moved = events.with_columns(ts=start, dur=np.maximum(end - start, 0)).take(order)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    tables = {"events": _renumbered(moved, "events", place)}
    for name in _SAME:
        tables[name] = _renumbered(run.table(name, part.ordinal), name, place)
    tables["steps"] = _steps(run, part.ordinal, maps)
    return tables


def _place(graph: StepGraph, times: Times, nodes: NDArray[np.int64], offset: int, start: Ints, end: Ints) -> None:
    """Rows that are nodes: a blocking call from its entry to its return, an arrival to the end of the meeting."""
    meeting = dict(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    for node, kind, row in zip(nodes.tolist(), graph.kind[nodes].tolist(), graph.row[nodes].tolist(), strict=True):
        if row < 0:
            continue
        if kind == NodeKind.RETURN:
            end[row] = times.end[node] - offset
            continue
        start[row] = times.start[node] - offset
        end[row] = (times.end[meeting[node]] if kind == NodeKind.ARRIVAL else times.end[node]) - offset


class _Maps:
    """From measured to simulated time, lane by lane: through the starts and ends of the lane's nodes."""

    def __init__(self, events: Table, graph: StepGraph, times: Times, nodes: NDArray[np.int64], offset: int) -> None:
        self.lanes: NDArray[Any] = events["lane"]
        self._by_lane: dict[int, tuple[Ints, Ints]] = {}
        for lane in np.unique(graph.lane[nodes]).tolist():
            mine = nodes[graph.lane[nodes] == lane]
            before = np.concatenate([graph.start[mine], graph.end[mine]]) - offset
            after = np.concatenate([times.start[mine], times.end[mine]]) - offset
            order = np.lexsort((after, before))
            self._by_lane[lane] = before[order], np.maximum.accumulate(after[order])
        self.main = max(self._by_lane, key=lambda lane: len(self._by_lane[lane][0]), default=-1)

    def moved(self, instants: Ints) -> Ints:
        """Instants of all events, each by its own lane; lanes without nodes go with the busiest one."""
        out = instants.copy()
        for lane in np.unique(self.lanes).tolist():
            mine = self.lanes == lane
            out[mine] = self.along(lane, instants[mine])
        return out

    def along(self, lane: int, instants: Ints) -> Ints:
        """Instants of one lane; before its first node and after its last one they keep their distance."""
        before, after = self._by_lane.get(lane, self._by_lane.get(self.main, (np.empty(0, np.int64),) * 2))
        if len(before) == 0:
            return instants
        at = np.searchsorted(before, instants, "right")
        lo, hi = np.maximum(at - 1, 0), np.minimum(at, len(before) - 1)
        width = np.maximum(before[hi] - before[lo], 1)
        between = after[lo] + ((instants - before[lo]) * (after[hi] - after[lo]) / width).astype(np.int64)
        early, late = at == 0, at == len(before)
        outside = np.where(early, instants - before[0] + after[0], instants - before[-1] + after[-1])
        return np.asarray(np.where(early | late, outside, between))


def _steps(run: Run, part: int, maps: _Maps) -> Table:
    steps, lanes = run.table("steps", part), run.table("lanes", part)
    training = np.flatnonzero(lanes.is_("role", "training"))
    lane = int(lanes["id"][training[0]]) if len(training) else maps.main
    start = maps.along(lane, np.asarray(steps["host_ts"]))
    end = maps.along(lane, np.asarray(steps["host_ts"] + steps["host_dur"]))
    nothing = np.full(len(steps), MISSING)
    return steps.with_columns(host_ts=start, host_dur=np.maximum(end - start, 0), device_ts=nothing, device_dur=nothing)


def _renumbered(table: Table, name: str, place: NDArray[np.int64]) -> Table:
    """The columns of a table that name events, after the events have changed their order."""
    changed = {}
    for column in _EVENT_COLUMNS.get(name, ()):
        if column in table.stored:
            old = np.asarray(table[column])
            known = (old >= 0) & (old < len(place))
            new = place[np.where(known, old, 0)] if len(place) else old
            changed[column] = np.where(known, new, MISSING32).astype(np.int32)
    return table.with_columns(**changed) if changed else table
