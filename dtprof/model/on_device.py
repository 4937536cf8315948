"""Edits of the step graph of a run: durations and lags change, the graph is run again, gates say yes or no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.catalogue.kernels import kernel_class
from dtprof.edits import Edit
from dtprof.intervals import Ints
from dtprof.model.algorithm import by_algorithm
from dtprof.model.gates import Gates, check
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import CyclicError, EdgeKind, NodeKind, StepGraph
from dtprof.model.outcome import Outcome, withheld
from dtprof.model.simulate.as_run import simulated_run
from dtprof.model.simulate.engine import Times, simulate
from dtprof.model.simulate.windows import Window, by_step, given, windows
from dtprof.run import Run

MODEL = "step graph"
_SCALES = {"compute.matmul_scale": "gemm", "compute.attention_scale": "attention", "compute.elementwise_scale": "elementwise"}
# edits that change what the host does, which gate 3 may withhold
_CYCLIC = (
    "operations of this run wait for each other in a circle, as read: messages of several groups cannot be told apart; a run "
    "in which one group alone sends and receives, or one on NCCL, whose traces name the group, would tell"
)
_OF_HOST = {"ideal.loader", "ideal.rank"}


@dataclass(frozen=True)
class Changed:
    """A graph under edits, twice where an edit leaves a range: the least and the most that it may change."""

    low: StepGraph
    high: StepGraph


_checked: WeakKeyDictionary[Run, tuple[StepGraph, Gates]] = WeakKeyDictionary()


def checked(run: Run) -> tuple[StepGraph, Gates]:
    """The graph of a run and what its gates found, made once."""
    if run not in _checked:
        graph = build(run)
        _checked[run] = graph, check(run, graph)
    return _checked[run]


def knows(edits: Sequence[Edit]) -> bool:
    """Are all of these edits of the step graph?"""
    return all(e.key in _EDITS for e in edits)


def predict(run: Run, edits: Sequence[Edit]) -> Outcome:
    """The step of a run under ``edits``, by its step graph."""
    if unknown := [f"{e.key} is not part of the step graph's edits" for e in edits if e.key not in _EDITS]:
        return withheld(edits, unknown, model=MODEL)
    try:
        graph, gates = checked(run)
    except CyclicError:
        return withheld(edits, (_CYCLIC,), model=MODEL)
    record = record_of(gates)
    reasons = [*gates.reasons]
    if any(e.key in _OF_HOST for e in edits):
        reasons += gates.host_reasons
    if reasons:
        return withheld(edits, reasons, gates.replay_error, MODEL, record)
    found = windows(run, graph)
    ends: list[tuple[float, float]] = []
    notes: list[str] = []
    for rule in gates.credible_rules:
        mine = graph if rule == gates.credible_rules[0] else build(run, rule)
        changed = _apply(run, mine, edits, notes)
        if isinstance(changed, str):
            return withheld(edits, (changed,), gates.replay_error, MODEL, record)
        base = mean_step(mine, found)
        ends.append((mean_step(changed.low, found) - base, mean_step(changed.high, found) - base))
    measured = float(np.mean([max(w.dur_ns for w in ws) for ws in by_step(found).values()]))
    first = ends[0]
    value = measured + (first[0] + first[1]) / 2
    error = (gates.replay_error or 0.0) * measured
    low, high = (measured + pick(e for pair in ends for e in pair) for pick in (min, max))
    return Outcome(
        edits=tuple(edits), model=MODEL, measured_ns=measured, predicted_ns=value, low_ns=low - error, high_ns=high + error,
        replay_error=gates.replay_error, unexplained=gates.unexplained, withheld=(), notes=tuple(dict.fromkeys(notes)),
        gates=record, make_run=lambda: _as_run(run, graph, edits),
    )  # fmt: skip


def _as_run(run: Run, graph: StepGraph, edits: Sequence[Edit]) -> Run:
    changed = _apply(run, graph, edits, [])
    if isinstance(changed, str):
        raise ValueError(changed)
    return simulated_run(run, graph, simulate(changed.low), edits)


def mean_step(graph: StepGraph, found: list[Window]) -> float:
    """Mean over the steps of the longest simulated duration over the parts, ns."""
    lengths = []
    for mine in by_step(found).values():
        times: Times = simulate(graph, given(graph, mine), wanted=[w.last for w in mine])
        lengths.append(max(w.length(times) for w in mine))
    return float(np.mean(lengths))


def record_of(gates: Gates) -> dict[str, Any]:
    """What the gates measured, as the JSON of a prediction has it."""
    return {
        "replay_error": gates.replay_error,
        "unexplained_fraction": gates.unexplained,
        "opaque_fraction": gates.opaque,
        "absorbed_fraction": gates.absorbed,
        "refuted_edges": gates.refuted,
        "uncertain_edges": gates.uncertain,
        "edges": gates.edges,
        "next_step": [
            {"rank": s.rank, "step": s.step, "error": s.error_next, "naive": s.error_naive}
            for s in gates.steps
            if s.error_next is not None
        ],
        "probes": [{"rank": p.rank, "expected_ns": p.expected_ns, "moved_ns": p.moved_ns} for p in gates.probes],
        "variants": gates.variants,
    }


def _apply(run: Run, graph: StepGraph, edits: Sequence[Edit], notes: list[str]) -> Changed | str:
    changed = Changed(graph, graph)
    for edit in edits:
        sides = []
        for side, most in ((changed.low, False), (changed.high, True)):
            made = _EDITS[edit.key](run, side, edit, most, notes)
            if isinstance(made, str):
                return made
            sides.append(made)
        changed = Changed(*sides)
    return changed


def _comm(run: Run, graph: StepGraph) -> NDArray[np.bool_]:
    """Nodes whose duration is communication."""
    mask = graph.kind == NodeKind.MEET
    for part in run.parts:
        rows = np.isin(graph.row, PartView(run, part.ordinal).comm_rows)
        mask |= (graph.part == part.ordinal) & (graph.kind == NodeKind.OP) & rows
    return np.asarray(mask)


def _bandwidth(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    """Transfers of matched operations: at least nothing of them is bandwidth below the fastest one's time, at most all is."""
    lone = _comm(run, graph) & (graph.kind == NodeKind.OP)
    if lone.any():
        return (
            "the trace holds ranks whose peers are missing: how long their collectives move, and how long they wait, cannot be "
            "told apart; bring the traces of all ranks"
        )
    meets = graph.kind == NodeKind.MEET
    if not meets.any():
        return "the run has no matched communication: bring the traces of all ranks"
    scale = float(edit.value)  # type: ignore[arg-type]
    floor = 0 if most else int(graph.dur[meets].min())
    notes.append("of each transfer the part that is latency is not known: at least none, at most the shortest transfer")
    dur = graph.dur.copy()
    dur[meets] = floor + ((dur[meets] - floor) / scale).astype(np.int64)
    return graph.with_times(dur=dur)


def _no_communication(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    if not edit.value:
        return graph
    dur = graph.dur.copy()
    dur[_comm(run, graph)] = 0
    return graph.with_times(dur=dur)


def _kernels(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    """Kernels of one class run so many times as fast."""
    wanted, scale = _SCALES[edit.key], float(edit.value)  # type: ignore[arg-type]
    dur = graph.dur.copy()
    count = 0
    for part in run.parts:
        events = run.table("events", part.ordinal)
        of_class = np.array([kernel_class(n) == wanted for n in events.values("name")] + [False], bool)
        kernels = of_class[events["name"]] & events.is_("kind", "kernel")
        mine = np.flatnonzero((graph.part == part.ordinal) & (graph.kind == NodeKind.OP))
        mine = mine[kernels[graph.row[mine]]]
        dur[mine] = (dur[mine] / scale).astype(np.int64)
        count += len(mine)
    return graph.with_times(dur=dur) if count else f"the run has no {wanted} kernels"


def _no_input(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    """What threads think inside data ranges takes no time."""
    lag = graph.lag.copy()
    seen = False
    for part in run.parts:
        view = PartView(run, part.ordinal)
        starts, ends = view.phase_cover("data")
        if len(starts) == 0:
            continue
        seen = True
        edges = np.flatnonzero((graph.why == EdgeKind.THREAD) & (graph.part[graph.dst] == part.ordinal))
        lo: Ints = graph.end[graph.src[edges]]
        shift = part.clock_offset_ns
        inside = intervals.measure((starts + shift, ends + shift), lo, np.maximum(lo, lo + graph.lag[edges]))
        lag[edges] -= np.minimum(inside, lag[edges])
    return graph.with_times(lag=lag) if seen else "no range of the run marks data loading: put it into dtprof.annotate('data')"


def _ideal_rank(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    """A rank's own nodes and thinking take what the median of the other ranks takes, node by node along each lane."""
    parts = [p for p in run.parts if p.rank is not None]
    mine = next((p for p in parts if p.rank == edit.value), None)
    if mine is None:
        return f"rank {edit.value} is not in the run"
    if len(parts) < 2:
        return "one rank has no others to be like: bring the traces of all ranks"
    orders = {p.ordinal: _sequence(run, graph, p.ordinal) for p in parts}
    names = {ordinal: [name for _, name in order] for ordinal, order in orders.items()}
    like = [p.ordinal for p in parts if p is not mine and names[p.ordinal] == names[mine.ordinal]]
    if not like:
        return (
            f"no other rank does the same operations in the same order as rank {edit.value}: that takes a trace of another "
            "rank of its stage"
        )
    own = np.array([n for n, _ in orders[mine.ordinal]], np.int64)
    if not len(own):
        return f"rank {edit.value} has no operations of its own in the graph"
    others = np.array([[n for n, _ in orders[ordinal]] for ordinal in like])
    notes.append(f"rank {edit.value} takes the median time of {len(like)} ranks with the same operations")
    dur, lag = graph.dur.copy(), graph.lag.copy()
    dur[own] = np.median(graph.dur[others], axis=0).astype(np.int64)
    thinking = _thinking(graph)
    place = np.full(len(graph), -1)
    place[thinking >= 0] = thinking[thinking >= 0]
    edges, theirs = place[own], place[others]
    have = (edges >= 0) & (theirs >= 0).all(axis=0)
    lag[edges[have]] = np.median(graph.lag[theirs[:, have]], axis=0).astype(np.int64)
    return graph.with_times(dur=dur, lag=lag)


def _sequence(run: Run, graph: StepGraph, part: int) -> list[tuple[int, str]]:
    """A part's calls and operations by thread and stream role, in order, with their names."""
    names = run.table("events", part).text("name")
    rows = np.flatnonzero((graph.part == part) & (graph.row >= 0))
    if np.any(graph.kind == NodeKind.STEP):  # which of gloo's workers takes an operation is chance
        rows = rows[graph.kind[rows] == NodeKind.CALL]
    lanes = sorted(set(graph.lane[rows].tolist()), key=lambda lane: int(graph.start[rows[graph.lane[rows] == lane]].min()))
    out = []
    for lane in lanes:
        mine = rows[graph.lane[rows] == lane]
        mine = mine[np.argsort(graph.start[mine], kind="stable")]
        out += [(int(n), f"{graph.kind[n]} {names[int(graph.row[n])]}") for n in mine.tolist()]
    return out


def _thinking(graph: StepGraph) -> NDArray[np.int64]:
    """For every node the THREAD or HANDOFF edge that leads to it; -1."""
    out = np.full(len(graph), -1, np.int64)
    edges = np.flatnonzero(np.isin(graph.why, [int(EdgeKind.THREAD), int(EdgeKind.HANDOFF)]))
    out[graph.dst[edges]] = edges
    return out


_EDITS: dict[str, Callable[[Run, StepGraph, Edit, bool, list[str]], StepGraph | str]] = {
    "net.bandwidth_scale": _bandwidth,
    "comm.algorithm": by_algorithm,
    "ideal.communication": _no_communication,
    "ideal.loader": _no_input,
    "ideal.rank": _ideal_rank,
    **dict.fromkeys(_SCALES, _kernels),
}
