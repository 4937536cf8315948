"""What-if: edits as controls, the predicted step beside the measured one, how far to trust it, and what was measured after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from shlex import join, quote
from typing import Any

import streamlit as st

from dtprof.advise.verify import VerdictRow
from dtprof.analyse.results import ACCOUNTING
from dtprof.edits import KEYS
from dtprof.errors import DtprofError
from dtprof.model.gates import MOST_REPLAY_ERROR, MOST_UNEXPLAINED
from dtprof.model.moe import whatif as moe
from dtprof.model.outcome import Outcome
from dtprof.numbers import change, counted, interval, percent, seconds, time
from dtprof.report.budget import mean
from dtprof.report.charts.predicted import Beside, Point, beside_figure, range_figure
from dtprof_dashboards import show
from dtprof_dashboards.controls import boxes, values_of
from dtprof_dashboards.opened import predicted, simulated_parts
from dtprof_dashboards.record import edit_words, held_words, measured_after, record
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

WIDTH = 760.0


def render(view: View) -> None:
    """Draw the page."""
    show.title("What-if", view.meta)
    if view.facts.run.format == "simulated":
        show.nothing("This run is a prediction itself", "What-if starts from a measured run.")
        return
    left, right = st.columns([1, 3], gap="large")
    with left, st.container(key="edits"):
        show.markup("<h2>Change</h2>")
        edits = boxes(view.opened.offers, view.facts.run)
    with right:
        if not edits:
            _start(view)
            return
        try:
            outcome = predicted(view.path, view.stamp, edits, view.opened.replayed[0])
        except DtprofError as problem:
            show.failed("No prediction", problem)
            return
        _outcome(view, outcome)
        _range(view, edits, outcome)
        _prove(view, edits)


def _start(view: View) -> None:
    """Before anything is chosen: how far each model of the run can be trusted, and what was proposed and proved."""
    show.markup('<p class="big">Choose a change at the left</p>')
    if view.opened.replayed[1]:
        show.markup(f'<p class="meta">{escape(show.sentences([view.opened.replayed[1]]))}</p>')
    if not view.opened.rows:
        show.markup('<p class="meta">No step was captured, so there is nothing to change.</p>')
    for offer in view.opened.offers:
        outcome = predicted(view.path, view.stamp, (str(offer.asked),), view.opened.replayed[0])
        keys = ", ".join(offer.keys) if len(view.opened.offers) > 1 else "the changes at the left"
        told = f"predicts {keys}" if _trusted(outcome) else f"predicts nothing of {keys}: {'; '.join(outcome.withheld)}"
        show.markup(f'<p class="meta model"><b>{escape(outcome.model)}</b> {escape(told)}</p>')
        show.tiles(_trust(view, outcome))
    if view.opened.rows:
        row = mean(view.opened.rows)
        figure = beside_figure([Beside("measured now", "mean of ranks", row.total, row.parts)], WIDTH)
        show.section("The step as it is", "", show.figure(figure))
    advised = [f for f in view.facts.findings if f.edit]
    if advised:
        rows = [[f.title, edit_words(f.edit or {})] for f in advised]
        show.section("What the findings propose", "", show.table(["finding", "edit"], rows))
    if view.facts.verdicts:
        record(view.facts.verdicts)
    offered = {key for offer in view.opened.offers for key in offer.keys}
    others = ", ".join(key for key in KEYS if key not in offered)
    show.section("What no model of this run follows", f"{escape(others)}. <code>dtprof whatif</code> says why of each.", "")


def _trusted(outcome: Outcome) -> bool:
    """Does the model stand by itself, whatever is said of the edit that was asked for?"""
    return outcome.predicted_ns is not None or (outcome.replay_error is not None and not outcome.withheld)


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
    after = measured_after(view.facts.verdicts, outcome.edits)
    rows = [_measured(view, outcome), *_simulated(view, outcome, low, high)]
    rows += [_after(after, outcome)] if after is not None else []
    notes = filter(None, [view.opened.replayed[1], *outcome.notes])
    sub = f"Mean of the ranks; dashed: simulated. {show.sentences(notes)} {_proved(after)}"
    show.section("Predicted beside measured", escape(sub), show.figure(beside_figure(rows, WIDTH)))


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
    note = ", ".join(str(e) for e in outcome.edits)[:28]
    return [Beside("predicted", note, total, parts, (low, high), simulated=True)]


def _after(row: VerdictRow, outcome: Outcome) -> Beside:
    """What verify measured with the edits: its share of saving, of the step that the prediction starts from."""
    now = outcome.measured_ns or 0.0
    total, *ends = (_with(row, now, share) for share in ("share", "share_high", "share_low"))
    bounds = (ends[0], ends[1]) if all(map(math.isfinite, ends)) else None
    return Beside("measured after", f"verify, {counted(row.measured, 'pair')}", total, None, bounds)


def _with(row: VerdictRow, now: float, share: str) -> float:
    return now * (1 - float(getattr(row.achieved, share)))


def _proved(row: VerdictRow | None) -> str:
    if row is None:
        return ""
    held = {True: "the prediction held", False: "the prediction did not hold", None: "no prediction stood behind it"}
    steps = f"{seconds(row.baseline_s)} to {seconds(row.candidate_s)}"
    return f"Measured after, by dtprof verify: {steps}; drawn as that share of this step; {held[row.prediction_held]}."


def _trust(view: View, outcome: Outcome) -> list[Tile]:
    gates = outcome.gates or {}
    error = outcome.replay_error
    rest = gates.get("unexplained_fraction") if outcome.unexplained is None else outcome.unexplained
    found = [row.prediction_held for row in view.facts.verdicts if row.prediction_held is not None]
    tiles = [
        Tile("Replay error", percent(error), _judged(error, MOST_REPLAY_ERROR))
        if error is not None
        else Tile("Replay error", None, "nothing could be replayed"),
        *_next_step(gates.get("next_step") or []),
        Tile(
            "Unexplained",
            percent(rest),
            _judged(rest, moe.MOST_UNEXPLAINED if outcome.model == moe.MODEL else MOST_UNEXPLAINED),
        )
        if rest is not None
        else Tile("Unexplained", None, "this model has no critical path to explain"),
        Tile("This tool’s record", f"{sum(found)} of {len(found)}", "predictions held here")
        if found
        else Tile("This tool’s record", None, "nothing of this run was verified yet"),
    ]
    after = measured_after(view.facts.verdicts, outcome.edits)
    if after is not None and after.achieved is not None:
        tiles.append(Tile("Measured after", change(-after.achieved.share), f"{held_words(after)}; {after.outcome}"))
    return tiles


def _next_step(found: Sequence[dict[str, Any]]) -> list[Tile]:
    """How far the simulated step is from the following measured one, and what a copy of the step would be off."""
    if not found:
        return []
    error, naive = (sorted(abs(row[key]) for row in found)[len(found) // 2] for key in ("error", "naive"))
    return [Tile("Next step", percent(error), f"off; “as the last one” is {percent(naive)} off")]


def _judged(value: float, limit: float) -> str:
    return f"{'✓' if value <= limit else '!'} limit {percent(limit)}"


def _range(view: View, edits: tuple[str, ...], outcome: Outcome) -> None:
    """All values of the first edit that has several, the others held."""
    key, _, value = edits[0].partition("=")
    values = values_of(key, view.facts.run)
    if len(values) < 3 or key in ("ideal.rank", "pipeline.schedule") or outcome.predicted_ns is None or not outcome.measured_ns:
        return
    if view.facts.accounting.on_device:
        return
    if value not in values:
        values = tuple(sorted({*values, value}, key=float))
    points: list[Point] = []
    chosen = None
    for other in values:
        found = predicted(view.path, view.stamp, (f"{key}={other}", *edits[1:]), view.opened.replayed[0])
        if found.predicted_ns is not None and found.low_ns is not None and found.high_ns is not None:
            chosen = len(points) if other == value else chosen
            after = measured_after(view.facts.verdicts, found.edits)
            achieved = None if after is None else _with(after, outcome.measured_ns, "share")
            points.append(Point(other, found.predicted_ns, found.low_ns, found.high_ns, achieved))
    if len(points) < 2:
        return
    best = min(points, key=lambda p: p.predicted)
    alike = [p.words for p in points if best.low <= p.predicted <= best.high and p is not best]
    sub = f"Shortest at {best.words}" + (f"; {', '.join(alike)} lie inside its interval." if alike else ".")
    sub += " Open circle: measured after." if any(p.measured is not None for p in points) else ""
    drawing = range_figure(points, chosen, outcome.measured_ns, WIDTH, key)
    show.section("The whole range", escape(sub), show.figure(drawing))


def _prove(view: View, edits: tuple[str, ...]) -> None:
    command = _again(view.facts.run.manifest.command) or "torchrun --nproc_per_node=2 train.py"
    if all(KEYS[e.partition("=")[0]].applied == "construction" for e in edits):
        sets = " ".join(f"--set {quote(edit)}" for edit in edits)
        note, line = "", f"dtprof verify {quote(str(view.path))} {sets} -- {command}"
    else:
        note = "A launcher cannot make all of these changes: make them in the job, and compare it with what it was."
        line = f"dtprof gate --baseline-cmd {quote(command)} --candidate-cmd CHANGED"
    show.section("Prove it", escape(note), f'<span class="cmd">{escape(line)}</span>')


def _again(recorded: Sequence[str]) -> str:
    """The recorded command, to run once more: not into the same folder."""
    words = [str(word) for word in recorded]
    kept = [word for before, word in zip(["", *words], words, strict=False) if "--out" not in (before, word)]
    return join(kept)


PAGE = Page("whatif", "What-if", "Act", render)
