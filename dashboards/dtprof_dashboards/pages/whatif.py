"""What-if: edits as controls, the predicted step beside the measured one, and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from shlex import join, quote
from typing import Any

import streamlit as st

from dtprof.analyse.results import ACCOUNTING
from dtprof.edits import KEYS
from dtprof.errors import DtprofError
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.model.outcome import Outcome
from dtprof.numbers import change, interval, percent, time
from dtprof.report.budget import mean
from dtprof.report.charts.predicted import Beside, Point, beside_figure, range_figure
from dtprof_dashboards import selection, show
from dtprof_dashboards.opened import predicted, simulated_parts
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

UNCHANGED = "as it is"
LIMIT = 0.05


@dataclass(frozen=True)
class Control:
    """One edit: its key and the values that are offered."""

    key: str
    values: tuple[str, ...]


DDP = (
    Control("ddp.bucket_cap_mb", ("0.5", "1", "2", "5", "10", "25", "50", "100")),
    Control("comm.dtype", ("bf16", "fp16")),
    Control("ddp.accumulation", ("2", "4", "8")),
    Control("net.bandwidth_scale", ("0.25", "0.5", "2", "4", "10")),
    Control("net.latency_scale", ("0.1", "0.5", "2", "4")),
)
PIPELINE = (
    Control("pipeline.schedule", ("1f1b", "gpipe", "interleaved", "zero-bubble")),
    Control("pipeline.microbatches", ("2", "4", "8", "16", "32")),
    Control("pipeline.balance", ("even",)),
)
FSDP = (
    Control("fsdp.prefetch", ("0", "1", "2", "3")),
    Control("fsdp.reshard_after_forward", ("true", "false")),
    Control("fsdp.wrap", ("1", "2", "3", "4")),
    Control("net.bandwidth_scale", ("0.25", "0.5", "2", "4", "10")),
    Control("net.latency_scale", ("0.1", "0.5", "2", "4")),
)
DEVICE = (
    Control("net.bandwidth_scale", ("0.5", "2", "4")),
    Control("ideal.communication", ("true",)),
    Control("compute.matmul_scale", ("0.5", "2", "4")),
    Control("compute.attention_scale", ("0.5", "2", "4")),
    Control("compute.elementwise_scale", ("0.5", "2", "4")),
)


def render(view: View) -> None:
    """Draw the page."""
    show.title("What-if", view.meta)
    if view.facts.run.format == "simulated":
        show.nothing("This run is a prediction itself", "What-if starts from a measured run.")
        return
    left, right = st.columns([1, 3], gap="large")
    with left:
        show.markup("<h2>Change</h2>")
        edits = _controls(view)
    with right:
        if not edits:
            _start(view)
            return
        try:
            outcome = predicted(view.path, view.stamp, edits, view.facts.run)
        except DtprofError as problem:
            show.nothing("No prediction", f"{problem.message}.", problem.hint)
            return
        _outcome(view, outcome)
        _range(view, edits, outcome)
        _prove(view, edits)


def _controls(view: View) -> tuple[str, ...]:
    """A box for each edit that the model of this run may follow; the edits that are chosen."""
    if isinstance(view.opened.pipeline, str):
        controls: tuple[Control, ...] = DEVICE if view.facts.accounting.on_device else DDP
        if has_fsdp(view.facts.run):
            controls = (*FSDP[:3], *DEVICE) if view.facts.accounting.on_device else FSDP
        ranks = tuple(map(str, view.facts.run.ranks))
        controls += (Control("ideal.rank", ranks),) if len(ranks) > 1 else ()
    else:
        controls = PIPELINE
    chosen = []
    for control in controls:
        key = KEYS[control.key]
        box = selection.widget_key(control.key)
        value = st.selectbox(control.key, [UNCHANGED, *control.values], key=box, help=f"{key.what}: {key.expects}")
        if value != UNCHANGED:
            chosen.append(f"{control.key}={value}")
    st.button("Reset", on_click=_reset, args=([selection.widget_key(c.key) for c in controls],))
    return tuple(chosen)


def _reset(boxes: list[str]) -> None:
    for box in boxes:
        st.session_state[box] = UNCHANGED


def _start(view: View) -> None:
    told = "Its step is predicted with an interval, the error of replaying the measured steps, and the share left unexplained."
    show.markup(f'<p class="big">Choose a change at the left</p><p class="meta">{told}</p>')
    advised = [f for f in view.facts.findings if f.edit]
    if advised:
        rows = [[f.title, ", ".join(f"{k}={v}" for k, v in (f.edit or {}).items())] for f in advised]
        show.section("What the findings propose", "", show.table(["finding", "edit"], rows))
    show.section("", "", _budget_alone(view))


def _budget_alone(view: View) -> str:
    if not view.opened.rows:
        return "<p>No step was captured, so there is nothing to change.</p>"
    row = mean(view.opened.rows)
    return show.figure(beside_figure([Beside("measured now", "mean of ranks", row.total, row.parts)], 760.0))


def _outcome(view: View, outcome: Outcome) -> None:
    if outcome.predicted_ns is None or not outcome.measured_ns:
        show.markup('<p class="big">No prediction</p>')
        show.tiles(_trust(view, outcome))
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in outcome.withheld)
        show.section("Withheld, because", "", f"<ul>{reasons}</ul>")
        return
    share = outcome.predicted_ns / outcome.measured_ns - 1
    low, high = outcome.low_ns or 0.0, outcome.high_ns or 0.0
    told = low <= outcome.measured_ns <= high
    css = "muted" if told else "better" if share < 0 else "worse"
    saved = outcome.measured_ns - outcome.predicted_ns
    word = f"saves {time(saved)} per step" if saved >= 0 else f"costs {time(-saved)} per step"
    within = "; the interval holds the measured step: no change can be told from none" if told else ""
    steps = f"{time(outcome.measured_ns)} → {time(outcome.predicted_ns)}"
    show.markup(
        f'<p class="big">{steps} <span class="{css}">{change(share)}</span></p>'
        f'<p class="meta">predicted {interval(low, high)} · {word}{within}</p>'
    )
    show.tiles(_trust(view, outcome))
    rows = [_measured(view, outcome), *_simulated(view, outcome, low, high)]
    sub = f"Mean of the ranks; dashed: simulated. {show.sentences(outcome.notes)}"
    show.section("Predicted beside measured", escape(sub), show.figure(beside_figure(rows, 760.0)))


def _measured(view: View, outcome: Outcome) -> Beside:
    """The measured bar: the captured budget in proportion to the step that the prediction starts from."""
    total = outcome.measured_ns or 0.0
    if not view.opened.rows:
        return Beside("measured now", "", total, None)
    row = mean(view.opened.rows)
    scale = total / row.total if row.total else 0.0
    note = "" if abs(scale - 1) < 0.005 else "split as captured"
    return Beside("measured now", note, total, {k: v * scale for k, v in row.parts.items()})


def _simulated(view: View, outcome: Outcome, low: float, high: float) -> list[Beside]:
    total = outcome.predicted_ns or 0.0
    parts = simulated_parts(view.path, view.stamp, tuple(map(str, outcome.edits)), outcome)
    if parts is not None:
        whole = sum(parts.values()) or 1.0
        parts = {k: parts[k] * total / whole for k in ACCOUNTING}
    return [Beside("predicted", ", ".join(str(e) for e in outcome.edits)[:28], total, parts, (low, high))]


def _trust(view: View, outcome: Outcome) -> list[Tile]:
    error, rest = outcome.replay_error, outcome.unexplained
    record = [row.prediction_held for row in view.facts.verdicts if row.prediction_held is not None]
    return [
        Tile("Replay error", percent(error), _judged(error))
        if error is not None
        else Tile("Replay error", None, "nothing was replayed"),
        Tile("Unexplained", percent(rest), _judged(rest))
        if rest is not None
        else Tile("Unexplained", None, "this model has no critical path to explain"),
        Tile("Model", outcome.model, "of this run"),
        Tile("This tool’s record", f"{sum(record)} of {len(record)}", "predictions held here")
        if record
        else Tile("This tool’s record", None, "nothing of this run was verified yet"),
    ]


def _judged(value: float) -> str:
    return f"{'✓' if value <= LIMIT else '!'} limit {percent(LIMIT)}"


def _range(view: View, edits: tuple[str, ...], outcome: Outcome) -> None:
    """All values of the first edit that has several, the others held."""
    key, _, value = edits[0].partition("=")
    controls = {c.key: c for c in (*DDP, *FSDP, *PIPELINE, *DEVICE)}
    control = controls.get(key)
    if control is None or len(control.values) < 3 or outcome.predicted_ns is None or not outcome.measured_ns:
        return
    if key == "pipeline.schedule" or view.facts.accounting.on_device:
        return
    points: list[Point] = []
    chosen = None
    for other in control.values:
        found = predicted(view.path, view.stamp, (f"{key}={other}", *edits[1:]), view.facts.run)
        if found.predicted_ns is not None and found.low_ns is not None and found.high_ns is not None:
            chosen = len(points) if other == value else chosen
            points.append(Point(other, found.predicted_ns, found.low_ns, found.high_ns))
    if len(points) < 2:
        return
    best = min(points, key=lambda p: p.predicted)
    alike = [p.words for p in points if best.low <= p.predicted <= best.high and p is not best]
    sub = f"Shortest at {best.words}" + (f"; {', '.join(alike)} lie inside its interval." if alike else ".")
    drawing = range_figure(points, chosen, outcome.measured_ns, 760.0, key)
    show.section("The whole range", escape(sub), show.figure(drawing))


def _prove(view: View, edits: tuple[str, ...]) -> None:
    recorded: list[Any] = view.facts.run.manifest.command
    command = join(map(str, recorded)) if recorded else "torchrun --nproc_per_node=2 train.py"
    sets = " ".join(f"--set {quote(edit)}" for edit in edits)
    line = f"dtprof verify {quote(str(view.path))} {sets} -- {command}"
    applied = [e for e in edits if KEYS[e.partition("=")[0]].applied == "construction"]
    note = (
        ""
        if len(applied) == len(edits)
        else "A launcher cannot make all of these changes: make them in the script, and verify."
    )
    show.section("Prove it", escape(note), f'<span class="cmd">{escape(line)}</span>')


PAGE = Page("whatif", "What-if", "Act", render)
