"""Ranks: who is slow or late in which step, culprit against victim, one step side by side, the mesh."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from dtprof.analyse.results import StepAccount
from dtprof.analyse.stragglers import OWN_KEYS, StragglerResult
from dtprof.analyse.waiting import WaitingResult
from dtprof.numbers import NOT_KNOWN, Scale, change, counted, named, percent, time
from dtprof.report.budget import MANY, shown
from dtprof.report.charts.matrix import Cell, matrix_figure
from dtprof.report.charts.plain_bars import Bar, bars_figure
from dtprof.report.charts.timeline import lanes_words, timeline_figure
from dtprof_dashboards import selection, show
from dtprof_dashboards.view import Page, View

OWN, WAIT, STEP = "own time above the median rank", "exposed waiting", "whole step"
MOST_STEPS, MOST_NAMED, MOST_GROUPS = 120, 6, 8


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Ranks", view.meta)
    if not view.opened.rows:
        show.nothing(
            "No step to compare ranks in",
            "Ranks are compared step by step, and no step was captured here.",
            "Mark steps and capture some:\ndtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py",
        )
        return
    stragglers: StragglerResult = view.opened.result("stragglers")
    found = view.found("straggler.", "comm.waiting", "host.no_core")
    limit = (
        f"not judged: {stragglers.abstained}" if stragglers.abstained else f"{stragglers.steps} steps of every rank compared"
    )
    show.verdict_of(found, "no rank stands out", limit)
    if len(facts.run.ranks) > 1:
        _heat(view)
        _whom(view)
    _side_by_side(view)
    _mesh(view)


def _heat(view: View) -> None:
    key = selection.widget_key("measure")
    measure = st.segmented_control("Drawn", [OWN, WAIT, STEP], default=OWN, key=key) or OWN
    facts = view.facts
    accounts = {
        row.label: {s.step: s for a in facts.accounting.parts if a.part == row.part for s in a.steps}
        for row in shown(view.opened.rows)
    }
    steps = sorted({step for mine in accounts.values() for step in mine})[-MOST_STEPS:]
    values = {label: [_value(mine.get(step), measure) for step in steps] for label, mine in accounts.items()}
    if measure == OWN:
        values = _above_median(values)
    scale = Scale.of([v for row in values.values() for v in row])
    top = max((abs(v) for row in values.values() for v in row if v is not None), default=0.0)
    ranks = {row.label: row.rank for row in view.opened.rows}
    hue = "comm_wait_ns" if measure == WAIT else "compute_ns"
    rows = [
        (label, [_cell(label, step, value, top, scale, measure, ranks[label]) for step, value in zip(steps, row, strict=True)])
        for label, row in values.items()
    ]
    bold = {r.label for r in view.opened.rows if r.culprit}
    words = {
        OWN: "How much longer a rank needs, without its exposed communication, than the median rank in the same step",
        WAIT: "What a rank waits for others, outside its own work",
        STEP: "The whole step of each rank",
    }[measure]
    sub = f"{words}; {scale.unit}. Bold: named by a finding. A click shows the rank’s step on the timeline."
    if len(view.opened.rows) > MANY:
        sub += f" Drawn are {len(rows)} of {len(view.opened.rows)} ranks: shortest, median, longest, culprits."
    figure = matrix_figure(rows, [f"step {s}" if i == 0 else str(s) for i, s in enumerate(steps)], hue, show.FULL, words, bold)
    show.section("Rank by step", escape(sub), show.figure(figure))


def _value(step: StepAccount | None, measure: str) -> float | None:
    if step is None:
        return None
    if measure == STEP:
        return float(step.dur_ns)
    return float(step.accounting["comm_wait_ns"] if measure == WAIT else sum(step.accounting[k] for k in OWN_KEYS))


def _above_median(values: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    columns = list(zip(*values.values(), strict=True))
    middles = [float(np.median(known)) if (known := [v for v in column if v is not None]) else 0.0 for column in columns]
    return {
        label: [None if v is None else v - middle for v, middle in zip(row, middles, strict=True)]
        for label, row in values.items()
    }


def _cell(label: str, step: int, value: float | None, top: float, scale: Scale, measure: str, rank: int | None) -> Cell:
    if value is None:
        return Cell(None, "", f"{label} · step {step} was not captured")
    level = max(value, 0.0) / top if top else 0.0
    go = "" if rank is None else f"page=timeline&rank={rank}&step={step}"
    return Cell(max(level, 0.01), scale.text(value), f"{label} · step {step} · {measure} {time(value)}", go=go)


def _whom(view: View) -> None:
    waiting: WaitingResult = view.opened.result("waiting")
    if not waiting.by_culprit:
        show.nothing(
            "Who waits for whom is not known",
            "Waiting can be told from moving data only where every rank of a group is there and its operations are matched.",
        )
        return
    whole = sum(waiting.by_culprit.values()) or 1.0
    culprits = []
    for rank, ns in list(waiting.by_culprit.items())[:MANY]:
        mine = [o.id for o in waiting.operations[rank]]
        note = named("operation", mine) if len(mine) <= MOST_NAMED else counted(len(mine), "operation")
        culprits.append(Bar(f"rank {rank}", ns, f"{time(ns)} · {percent(ns / whole)}", f"last in {note}", bold=True))
    victims = sorted(waiting.by_victim.items(), key=lambda item: -item[1])[:MANY]
    by_victim = [Bar(f"rank {rank}", ns, time(ns)) for rank, ns in victims]
    paint = "var(--wait)"
    show.markup(
        '<section class="pair"><div><h2>Waited for</h2>'
        f'<p class="sub">Exposed waiting by the rank that arrived last; {time(whole)} per rank and step.</p>'
        f"{bars_figure(culprits, paint, show.HALF, 'Waiting by culprit')}</div><div><h2>Who waits</h2>"
        f'<p class="sub">What each rank waits per step.</p>{bars_figure(by_victim, paint, show.HALF, "Waiting by victim")}'
        "</div></section>"
    )


def _side_by_side(view: View) -> None:
    drawn = view.opened.side_by_side
    if drawn is None:
        return
    sub = f"Step {drawn.step} on one clock; {time(drawn.end - drawn.start)} in all. {lanes_words(drawn)}"
    show.section("Side by side in time", sub, show.figure(timeline_figure(drawn)))


def _mesh(view: View) -> None:
    manifest = view.facts.run.manifest
    hosts = {p.rank: p.host or "" for p in view.facts.run.parts if p.rank is not None}
    devices = {p.rank: p.device or "" for p in view.facts.run.parts if p.rank is not None}
    axes = list(manifest.mesh)
    budget = {r.rank: r.total for r in view.opened.rows if r.rank is not None}
    middle = float(np.median(list(budget.values()))) if budget else 0.0
    rows = []
    for rank in view.facts.run.ranks:
        at = manifest.coordinates.get(str(rank), {})
        longer = change(budget[rank] / middle - 1) if rank in budget and middle else ""
        step = f"{time(budget.get(rank))} {f'({longer})' if longer else ''}".strip()
        rows.append(
            [str(rank), *(str(at.get(axis, "")) for axis in axes), hosts[rank] or NOT_KNOWN, devices[rank] or NOT_KNOWN, step]
        )
    sub = (
        f"Mesh {' × '.join(f'{axis} {manifest.mesh[axis]}' for axis in axes)}."
        if axes
        else "The job recorded no mesh: ranks are one group."
    )
    groups = [f"{g.get('name', '')} ({named('rank', g['ranks'])})" for g in manifest.groups if g.get("ranks")]
    if groups:
        more = f" and {counted(len(groups) - MOST_GROUPS, 'other')}" if len(groups) > MOST_GROUPS else ""
        sub += f" Groups: {', '.join(groups[:MOST_GROUPS])}{more}."
    table = show.table(["rank", *axes, "host", "device", "step (to the median)"], rows[:64], {3 + len(axes)})
    show.section("Where the ranks are", escape(sub), table)


def _note(view: View) -> str:
    return "one rank" if len(view.facts.run.ranks) < 2 else ""


PAGE = Page("ranks", "Ranks", "Analyse", render, _note)
