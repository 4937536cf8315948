"""Compare: this run against another one; which part of the step moved, on which rank, in what."""

from __future__ import annotations

from html import escape

import streamlit as st

from dtprof.analyse.diff import Diff, diff
from dtprof.errors import DtprofError
from dtprof.numbers import MINUS, Scale, time
from dtprof.report.charts.moved import moved_figure
from dtprof.report.palette import PARTS
from dtprof_dashboards import selection, show
from dtprof_dashboards.listing import watermark
from dtprof_dashboards.opened import opened
from dtprof_dashboards.view import Page, View

MOST = 25


def render(view: View) -> None:
    """Draw the page."""
    show.title("Compare", view.meta)
    others = [e for e in view.entries if e.name != view.entry.name]
    if not others:
        show.nothing(
            "There is no other run here",
            "Compare needs a folder that holds several runs.",
            f"dtprof dashboard {view.path.parent}\nor, without a page:\ndtprof diff RUN_A {view.path}",
        )
        return
    names = [e.name for e in others]
    key = selection.widget_key("other")
    if st.session_state.get(key) not in names:
        held = selection.selected().get("other")
        st.session_state[key] = held if held in names else names[0]
    labels = {e.name: e.label for e in others}
    other = st.selectbox("A, the run to compare with (B is this one)", names, key=key, format_func=labels.__getitem__)
    selection.keep("other", other)
    entry = next(e for e in others if e.name == other)
    try:
        first = opened(entry, watermark(entry.path))
    except DtprofError as problem:
        show.failed(f"{other} cannot be opened", problem)
        return
    found = diff(first.study, view.opened.study)
    show.verdict(found.headline, "; ".join(found.cannot))
    if found.keys:
        _keys(found)
        _ranks(found)
    if found.moved:
        _moved(found)


def _keys(found: Diff) -> None:
    scale = Scale.of([found.a_step_ns, found.b_step_ns])
    rows = [[PARTS[k].label, scale.text(a), scale.text(b), _signed(b - a, scale)] for k, (a, b) in found.keys.items() if a or b]
    steps = found.a_step_ns or 0, found.b_step_ns or 0
    rows.append(["step", *map(scale.text, steps), _signed(steps[1] - steps[0], scale)])
    heads = [f"mean of the ranks, {scale.unit}", "A", "B", "B − A"]
    changed = any(a != b for a, b in found.keys.values())
    figure = show.figure(moved_figure(found.keys, 900.0)) if changed else ""
    show.section(
        "Which part of the step moved", "The changes sum to that of the step.", figure + show.table(heads, rows, {1, 2, 3})
    )


def _signed(ns: float, scale: Scale) -> str:
    return f"{'+' if ns > 0 else MINUS if ns < 0 else ''}{scale.text(abs(ns))}"


def _ranks(found: Diff) -> None:
    if len(found.ranks) < 2:
        return
    keys = [k for k, (a, b) in found.keys.items() if a or b]
    scale = Scale.of(v for row in found.ranks.values() for v in row.values())
    rows = [
        [f"rank {rank}", *(_signed(row[k], scale) for k in keys), _signed(sum(row.values()), scale)]
        for rank, row in sorted(found.ranks.items())[:64]
    ]
    heads = [f"B − A, {scale.unit}", *(PARTS[k].label for k in keys), "step"]
    show.section("On which rank", "", show.table(heads, rows, range(1, len(heads))))


def _moved(found: Diff) -> None:
    most = found.moved[:MOST]
    rows = [
        [m.facet, m.name, "mean" if m.rank is None else f"rank {m.rank}", time(m.a_ns), time(m.b_ns),
         f"{'+' if m.delta_ns > 0 else MINUS}{time(abs(m.delta_ns))}"]
        for m in most
    ]  # fmt: skip
    sub = f"The {len(most)} largest changes of {len(found.moved)}, per step."
    heads = ["what", "name", "where", "A", "B", "B − A"]
    show.section("What moved most", escape(sub), show.table(heads, rows, {3, 4, 5}, "kernels"))


def _note(view: View) -> str:
    return "" if len(view.entries) > 1 else "one run"


PAGE = Page("compare", "Compare", "Act", render, _note)
