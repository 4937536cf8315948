"""Edits of a measured mixture of experts: even experts, or a capacity, by the step graph of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtprof.edits import Edit
from dtprof.model.gates import MOST_REPLAY_ERROR, PROBE_WITHIN_NS, Gates
from dtprof.model.graph.graph import CyclicError, NodeKind, StepGraph
from dtprof.model.moe.loads import Load, changed
from dtprof.model.moe.observe import Place, SeenMoe, observe
from dtprof.model.moe.predict import Slopes, changed_graph, slopes
from dtprof.model.on_device import checked, mean_step, record_of
from dtprof.model.outcome import MORE_STEPS, Outcome, withheld
from dtprof.model.simulate.as_run import simulated_run
from dtprof.model.simulate.engine import simulate
from dtprof.model.simulate.windows import Window, by_step, windows
from dtprof.numbers import percent, time
from dtprof.run import Run

MODEL = "experts in the step graph"
KEYS = ("moe.balance", "moe.capacity_factor")
# what nothing explains of the path stays as it is, and may come or go: above this share the interval would say nothing
MOST_UNEXPLAINED = 0.10
# tokens that hardly differ leave the slope open; what that leaves open of the step may be this share of it
MOST_OPEN = 0.05
# a change is known to this part of itself: ranks that compute as long as each other also disturb each other (docs/predict.md)
OPEN_CHANGE = 0.1


def has_experts(run: Run) -> bool:
    """Did the job record tokens of its experts?"""
    return any(run.table("metrics", p.ordinal).is_("metric", "moe_tokens").any() for p in run.parts)


def predict(run: Run, edits: Sequence[Edit]) -> Outcome:
    """The step of a CPU run under edits of its experts."""
    values: dict[str, Any] = {e.key: e.value for e in edits}
    if unknown := [f"{e.key} is not part of the model of experts" for e in edits if e.key not in KEYS]:
        return withheld(edits, unknown, model=MODEL)
    try:
        graph, gates = checked(run)
    except CyclicError:
        return withheld(edits, ["operations of this run wait for each other in a circle, as read"], model=MODEL)
    if not np.any(graph.kind == NodeKind.STEP):
        return withheld(edits, ["the model follows experts that compute on hosts, with captured steps"], model=MODEL)
    seen = observe(run, graph)
    found = slopes(seen) if not isinstance(seen, str) else seen
    reasons = _reasons(gates)
    if reasons or isinstance(found, str) or isinstance(seen, str):
        more = [found] if isinstance(found, str) else []
        return withheld(edits, [*more, *reasons], gates.replay_error, MODEL, record_of(gates))
    return _Made(run, graph, gates, seen, found, edits, values).outcome()


class _Made:
    """One prediction: the run, its graph and slopes, and the edits."""

    def __init__(
        self, run: Run, graph: StepGraph, gates: Gates, seen: SeenMoe, found: Slopes, edits: Sequence[Edit],
        values: dict[str, Any],
    ) -> None:  # fmt: skip
        self.run, self.graph, self.gates, self.seen, self.slopes = run, graph, gates, seen, found
        self.edits, self.even, self.capacity = edits, "moe.balance" in values, values.get("moe.capacity_factor")
        self.windows: list[Window] = [w for w in windows(run, graph) if w.step in seen.steps]

    def loads(self, *, by_chance: bool = False) -> dict[Place, Load]:
        """The loads of the measured steps under the edits."""
        return {
            place: changed(load, len(place[0]), even=self.even, capacity=self.capacity, by_chance=by_chance)
            for place, load in self.seen.loads.items()
        }

    def graph_with(self, loads: dict[Place, Load], end: str = "value") -> StepGraph:
        """The graph under other loads, with slopes at one end of their ranges."""
        return changed_graph(self.graph, self.seen, loads, *self.slopes.at(end))

    def outcome(self) -> Outcome:
        """The prediction, withheld where the run leaves open too much of it."""
        loads = self.loads()
        longest = [max(w.dur_ns for w in mine) for mine in by_step(self.windows).values()]
        measured, base = float(np.mean(longest)), mean_step(self.graph, self.windows)
        ends = [mean_step(self.graph_with(loads, end), self.windows) - base for end in ("low", "value", "high")]
        middle = ends[1] if self.slopes.determined else (min(ends) + max(ends)) / 2
        if self.capacity is not None and not self.even:
            ends.append(mean_step(self.graph_with(self.loads(by_chance=True)), self.windows) - base)
        error = self.gates.replay_error or 0.0
        if not self.slopes.determined and max(ends) - min(ends) > 2 * MOST_OPEN * measured:
            reason = (
                "the experts' time does not follow their tokens in this run, or those differ too little to tell how: between "
                f"{(measured + min(ends)) / 1e6:.1f} and {(measured + max(ends)) / 1e6:.1f} ms per step; steps or ranks with "
                "other numbers of tokens would tell"
            )
            return withheld(self.edits, [reason], error, MODEL, record_of(self.gates))
        half = (error + (self.gates.unexplained or 0.0)) * measured + OPEN_CHANGE * abs(middle)
        return Outcome(
            edits=tuple(self.edits), model=MODEL, measured_ns=measured, predicted_ns=measured + middle,
            low_ns=max(measured + min(ends) - half, 0.0), high_ns=measured + max(ends) + half, replay_error=error,
            unexplained=self.gates.unexplained, withheld=(), notes=tuple(self._notes(loads)), gates=record_of(self.gates),
            make_run=lambda: simulated_run(self.run, self.graph, simulate(self.graph_with(loads)), self.edits),
        )  # fmt: skip

    def _notes(self, loads: dict[Place, Load]) -> list[str]:
        told = ", ".join(f"{time(s.value)} after {word}" for word, s in self.slopes.compute.items())
        pairs = sum(s.pairs for s in self.slopes.compute.values())
        notes = [
            f"a token takes its rank {told}: from {pairs} passes of the run itself"
            if self.slopes.determined
            else "tokens differ too little to tell what one takes: between nothing and all of the time from dispatch to combine"
        ]
        busiest = f"{_busiest(self.seen.loads):.2f} measured, {_busiest(loads):.2f} predicted"
        notes.append(f"tokens of the busiest rank by the mean of the ranks: {busiest}")
        dropped, before = _dropped(loads), _dropped(self.seen.loads)
        if self.capacity is not None or dropped or before:
            text = f"{percent(dropped)} of the assignments are dropped ({percent(before)} measured)"
            if self.capacity is not None and not self.even:
                most = _dropped(self.loads(by_chance=True))
                text += f" if all ranks send an expert equally many tokens, {percent(most)} if by chance"
            notes.append(f"{text}: dropped ones pass the layer unchanged, which may cost quality")
        return notes


def _busiest(loads: dict[Place, Load]) -> float:
    """Tokens of the busiest rank by the mean of its group, mean over layers and steps."""
    ratios = [max(map(load.of, place[0])) * len(place[0]) / load.computed for place, load in loads.items() if load.computed]
    return float(np.mean(ratios)) if ratios else 1.0


def _dropped(loads: dict[Place, Load]) -> float:
    """Share of the assignments that are dropped."""
    return sum(sum(x.dropped.values()) for x in loads.values()) / max(sum(x.wanted for x in loads.values()), 1e-9)


def _reasons(gates: Gates) -> list[str]:
    """Why the graph cannot be believed."""
    if not gates.steps:
        return ["no step of the run can be replayed: capture at least one whole step"]
    error, unexplained = gates.replay_error or 0.0, gates.unexplained or 0.0
    out = []
    if error > MOST_REPLAY_ERROR:
        out.append(f"the replay of the measured steps is {error:.1%} off (limit {MOST_REPLAY_ERROR:.0%}); {MORE_STEPS}")
    if unexplained > MOST_UNEXPLAINED:
        out.append(f"{unexplained:.1%} of the critical path is unexplained (limit {MOST_UNEXPLAINED:.0%}); {MORE_STEPS}")
    if off := [p for p in gates.probes if p.off_ns > PROBE_WITHIN_NS]:
        out.append(f"a delay of rank {off[0].rank} moves its first operation by {off[0].moved_ns} ns, not {off[0].expected_ns}")
    return out
