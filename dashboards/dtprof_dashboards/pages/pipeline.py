"""Pipeline: stage by micro-batch, what the bubble is and costs, another schedule beside it."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from dtprof.edits import Edit
from dtprof.model.outcome import Outcome
from dtprof.model.pipeline.observe import SeenPipeline
from dtprof.model.pipeline.predict import Plan, Result, changed_plan, measured_plan, simulate
from dtprof.numbers import change, interval, percent, time
from dtprof.report import svg
from dtprof.report.charts.pipeline import Box, Bubble, bubble_figure, grid_figure
from dtprof_dashboards import selection, show
from dtprof_dashboards.opened import predicted
from dtprof_dashboards.view import Page, View

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
MICROBATCHES = (2, 4, 8, 16, 32, 64)
AS_RUN = "as it was run"
# a difference between what is drawn and what is predicted below this share goes without a word
SHORT = 0.01


def render(view: View) -> None:
    """Draw the page."""
    show.title("Pipeline", view.meta)
    seen = view.opened.pipeline
    if isinstance(seen, str):
        show.nothing(
            "No pipeline in this run",
            f"{seen[:1].upper()}{seen[1:]}.",
            "Tag the passes with dtprof.annotate('forward', stage=…, microbatch=…), or try the sample:\n"
            "dtprof job pipeline --ranks 2",
        )
        return
    bubbles = _bubbles(seen)
    _said(view, seen, bubbles)
    step = view.choose_step()
    step = step if step in seen.steps else min(seen.steps)
    schedule, count = _controls(seen)
    plan, outcome = _what_if(view, seen, schedule, count)
    end = seen.steps[step].end
    top = max(end, plan[1].step_ns if plan else 0.0)
    names = _names(seen, measured_plan(seen))
    rows = [(name, _measured(seen, step, place)) for name, place in zip(names, sorted(seen.orders), strict=True)]
    left = 14 + max(svg.width_of(name) for name in [*(n for n, _ in rows), *(_names(seen, plan[0]) if plan else [])])
    sub = (
        f"Step {step}, {time(end)}. Numbers are micro-batches; faint blue is forward, full blue backward "
        '<span class="c">compute</span>; faint orange: the rank <span class="w">waits</span>.'
    )
    goes = [f"page=timeline&rank={seen.ranks[place]}&step={step}" for place in sorted(seen.orders)]
    figure = grid_figure(rows, end, top, show.FULL, left, simulated=False, goes=goes)
    show.section("Stage by micro-batch", sub, show.figure(figure))
    _bubble(bubbles)
    _beside(seen, plan, outcome, top, left)


def _names(seen: SeenPipeline, plan: Plan) -> list[str]:
    """Names of the ranks under a plan, by place."""
    stages = {place: sorted({a.stage for a in plan.actions[place]}) for place in sorted(plan.actions)}
    return [f"rank {seen.ranks[place]}, stage {', '.join(map(str, held))}" for place, held in stages.items()]


def _measured(seen: SeenPipeline, step: int, place: int) -> list[Box]:
    return [Box(p.action.kind, p.action.stage, p.action.microbatch, p.start, p.end) for p in seen.steps[step].passes[place]]


def _bubbles(seen: SeenPipeline) -> list[Bubble]:
    """Each rank's mean step: busy, the bubble that equal stages would have too, the rest of the bubble, outside."""
    try:
        even: Result | None = simulate(seen, changed_plan(seen, None, None, None, even=True))
    except ValueError:
        even = None
    rows = []
    for name, place in zip(_names(seen, measured_plan(seen)), sorted(seen.orders), strict=True):
        busy = float(np.mean([sum(p.end - p.start for p in s.passes[place]) for s in seen.steps.values()]))
        whole = float(np.mean([s.end for s in seen.steps.values()]))
        inside = max(whole - seen.head - seen.tail, busy)
        bubble = inside - busy
        structure = bubble if even is None else min(_idle(seen, even, place), bubble)
        rows.append(Bubble(name, busy, bubble - structure, structure, whole - inside))
    return rows


def _idle(seen: SeenPipeline, found: Result, place: int) -> float:
    stages = {a.stage for a in seen.orders[place]}
    busy = sum(end - start for action, (start, end) in found.spans.items() if action.stage in stages)
    return max(found.step_ns - seen.head - seen.tail - busy, 0.0)


def _said(view: View, seen: SeenPipeline, bubbles: list[Bubble]) -> None:
    found = view.found("pipeline.")
    if found:
        show.verdict_of(found, "")
        return
    whole = sum(b.total for b in bubbles) or 1.0
    bubble = sum(b.uneven + b.structure for b in bubbles)
    p, m = seen.stages, seen.microbatches
    ranks = len(seen.ranks)
    text = f"{percent(bubble / whole)} of the pipeline is waiting: its bubble"
    structure, uneven = (sum(v) / len(bubbles) for v in ([b.structure for b in bubbles], [b.uneven for b in bubbles]))
    ideal = percent((ranks - 1) / (m + ranks - 1))
    why = (
        f"{time(structure)} per step fill and drain {ranks} ranks with {m} micro-batches, {time(uneven)} because stages or "
        f"messages are slower than even ones (mean of the ranks). Equal stages under 1F1B or GPipe: (p−1)/(m+p−1), {ideal}."
    )
    even = predicted(view.path, view.stamp, ("pipeline.balance=even",), view.facts.run)
    following = [f"equal stages: {_words(even)}"] if even.predicted_ns is not None and p > 1 else []
    show.verdict(text, why, following)


def _words(found: Outcome) -> str:
    if found.predicted_ns is None or not found.measured_ns:
        return "no prediction: " + "; ".join(found.withheld)
    bounds = interval(found.low_ns or 0.0, found.high_ns or 0.0)
    share = change(found.predicted_ns / found.measured_ns - 1)
    record = f"{bounds}; replay error {percent(found.replay_error)}"
    return f"{time(found.predicted_ns)} instead of {time(found.measured_ns)}, {share} ({record})"


def _controls(seen: SeenPipeline) -> tuple[str, int]:
    left, right, _ = st.columns([1, 1, 3])
    with left:
        schedule = st.selectbox("What if: schedule", [AS_RUN, *SCHEDULES], index=3, key=selection.widget_key("schedule"))
    with right:
        counts = sorted({*MICROBATCHES, seen.microbatches})
        key = selection.widget_key("microbatches")
        count = st.selectbox("Micro-batches", counts, index=counts.index(seen.microbatches), key=key)
    return schedule, count


def _what_if(view: View, seen: SeenPipeline, schedule: str, count: int) -> tuple[tuple[Plan, Result] | None, Outcome | str]:
    edits = [] if schedule == AS_RUN else [Edit("pipeline.schedule", schedule)]
    edits += [] if count == seen.microbatches else [Edit("pipeline.microbatches", count)]
    if not edits:
        return None, "nothing is changed"
    outcome = predicted(view.path, view.stamp, tuple(map(str, edits)), view.facts.run)
    if outcome.withheld:
        return None, outcome
    plan = changed_plan(seen, None if schedule == AS_RUN else schedule, count, None)
    return (plan, simulate(seen, plan)), outcome


def _bubble(bubbles: list[Bubble]) -> None:
    sub = (
        "Mean step. Full orange: <span class='w'>waiting</span> because stages or messages are slower than even ones. "
        "Faint: filling and draining, which this schedule costs with even stages too."
    )
    show.section("What the bubble is", sub, show.figure(bubble_figure(bubbles, show.FULL)))


def _beside(seen: SeenPipeline, plan: tuple[Plan, Result] | None, outcome: Outcome | str, top: float, left: float) -> None:
    if plan is None or isinstance(outcome, str):
        reason = outcome if isinstance(outcome, str) else "; ".join(outcome.withheld)
        show.nothing("No prediction", f"{reason[:1].upper()}{reason[1:]}.")
        return
    shape, result = plan
    boxes = [[Box(a.kind, a.stage, a.microbatch, *result.spans[a]) for a in shape.actions[p]] for p in sorted(shape.actions)]
    rows = list(zip(_names(seen, shape), boxes, strict=True))
    changes = ", ".join(map(str, outcome.edits))
    short = (outcome.predicted_ns or 0.0) - result.step_ns
    sub = f"Same time axis; dashed: simulated, not measured. Predicted: {_words(outcome)}. {show.sentences(outcome.notes)}"
    if abs(short) > SHORT * result.step_ns:
        sub += f" The simulation of the measured order is {time(short)} short of its step; the prediction adds that."
    drawing = grid_figure(rows, result.step_ns, top, show.FULL, left, simulated=True)
    show.section(f"What if: {changes}", escape(sub), show.figure(drawing))


def _note(view: View) -> str:
    return "no stages" if isinstance(view.opened.pipeline, str) else ""


PAGE = Page("pipeline", "Pipeline", "Analyse", render, _note)
