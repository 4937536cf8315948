"""Edits of a measured pipeline: predicted from its own passes, with the replay of the measured order as the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtprof.edits import Edit
from dtprof.model.outcome import MORE_STEPS, Outcome, withheld
from dtprof.model.pipeline.observe import SeenPipeline, observe
from dtprof.model.pipeline.predict import Plan, Result, changed_plan, measured_plan, simulate
from dtprof.model.pipeline.schedules import Action
from dtprof.model.simulate.as_run import assembled, note
from dtprof.ranges import format_range
from dtprof.run import Run
from dtprof.table import Table

MODEL = "pipeline schedule"
MOST_REPLAY_ERROR = 0.05
_WORDS = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}
KEYS = ("pipeline.schedule", "pipeline.microbatches", "pipeline.virtual_stages", "pipeline.balance")


def predict(run: Run, edits: Sequence[Edit]) -> Outcome:
    """The pipeline step of a CPU run under ``edits``."""
    unknown = [f"{e.key} is not part of the model of a pipeline" for e in edits if e.key not in KEYS]
    seen = observe(run)
    if unknown or isinstance(seen, str):
        return withheld(edits, unknown or [str(seen)], model=MODEL)
    base = simulate(seen, measured_plan(seen))
    errors = [abs(base.step_ns - step.end) / step.end for step in seen.steps.values()]
    error = float(np.median(errors))
    if error > MOST_REPLAY_ERROR:
        reason = f"the replay of the measured steps is {error:.1%} off (limit {MOST_REPLAY_ERROR:.0%}); {MORE_STEPS}"
        return withheld(edits, [reason], error, MODEL)
    values: dict[str, Any] = {e.key: e.value for e in edits}
    try:
        plan = changed_plan(
            seen, values.get("pipeline.schedule"), values.get("pipeline.microbatches"),
            values.get("pipeline.virtual_stages"), values.get("pipeline.balance") == "even",
        )  # fmt: skip
        found = simulate(seen, plan)
    except ValueError as problem:
        return withheld(edits, [str(problem)], error, MODEL)
    value = seen.typical_ns + found.step_ns - base.step_ns
    half = error * value + _scatter(seen) + _overhead(seen, plan)
    notes = [f"bubble {base.bubble:.1%} of the ranks' time measured, {found.bubble:.1%} predicted"]
    if (count := 1 + max(a.microbatch for a in plan.actions[0])) != seen.microbatches:
        notes.append(
            f"the batch stays as it is: {count} micro-batches instead of {seen.microbatches}, passes shorter in proportion"
        )
    if plan.stages != seen.stages:
        notes.append(f"each of {seen.stages} stages in {plan.stages // seen.stages} equal pieces, {plan.stages} in all")
    if ("I", 1) in plan.takes and ("I", 1) not in seen.takes:
        notes.append("half of a backward pass for the input, half for the weights: how it parts was not measured")
    return Outcome(
        edits=tuple(edits), model=MODEL, measured_ns=seen.typical_ns, predicted_ns=value, low_ns=value - half,
        high_ns=value + half, replay_error=error, unexplained=None, withheld=(), notes=tuple(notes),
        make_run=lambda: _as_run(run, seen, plan, found, edits),
    )  # fmt: skip


def _scatter(seen: SeenPipeline) -> float:
    """Half width of the 95% interval of the mean measured step, ns."""
    ends = [step.end for step in seen.steps.values()]
    return 1.96 * float(np.std(ends)) / float(len(ends) ** 0.5)


def _overhead(seen: SeenPipeline, plan: Plan) -> float:
    """What the passes that come or go cost beside their layers is known to a factor of two: that much, ns."""
    more = max(abs(len(actions) - len(seen.orders[rank])) for rank, actions in plan.actions.items())
    return more * (seen.between + max(seen.fixed.values(), default=0.0))


def _as_run(run: Run, seen: SeenPipeline, plan: Plan, found: Result, edits: Sequence[Edit]) -> Run:
    """One simulated step as a run: the passes of every rank, tagged, one after the other on its training thread."""
    parts = {p.rank: p for p in run.parts}
    held: dict[int, Mapping[str, Table]] = {}
    for place, rank in enumerate(seen.ranks):
        part = parts[rank].ordinal
        origin = int(run.table("steps", part)["host_ts"].min())
        rows = [row for action in plan.actions[place] for row in _rows(action, found, origin)]
        rows.sort(key=lambda row: (row["ts"], -row["dur"]))
        step: dict[str, Any] = {
            "step": 0,
            "host_ts": origin,
            "host_dur": round(found.step_ns),
            "complete": True,
            "captured": True,
        }
        step |= {"kind": "train", "marked": "marked"}
        lane = {"id": 0, "process": 0, "device": -1, "thread": 0, "name": "training thread", "role": "training"}
        held[part] = {
            "events": Table.from_rows("events", rows), "steps": Table.from_rows("steps", [step]),
            "lanes": Table.from_rows("lanes", [lane]), "quality": note(edits),
        }  # fmt: skip
    return assembled(run, held, edits)


def _rows(action: Action, found: Result, origin: int) -> list[dict[str, Any]]:
    start, end = found.spans[action]
    word = _WORDS[action.kind]
    name = format_range(word, {"stage": action.stage, "microbatch": action.microbatch})
    common = {
        "ts": origin + round(start), "dur": round(end - start), "lane": 0, "step": 0, "phase": word.partition(" ")[0],
        "stage": action.stage, "microbatch": action.microbatch,
    }  # fmt: skip
    return [{**common, "kind": "range", "name": name}, {**common, "kind": "cpu_op", "name": f"simulated: {word}"}]
