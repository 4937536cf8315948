"""The component of the timeline: its scripts and style, and what it is told of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import streamlit as st

from dtprof.export.common import label
from dtprof.numbers import count
from dtprof.report.palette import tokens
from dtprof.run import Part
from dtprof.schema import MISSING
from dtprof_dashboards.timeline.lanes import PAINTS, Track
from dtprof_dashboards.timeline.opened import Timeline

_SCRIPTS = ("tiles.js", "paint.js", "details.js", "timeline.js")
_HTML = """<div class="tl"><span class="tl-probe" hidden></span>
<div class="tl-tools"><div class="tl-legend"></div><button class="tl-whole">Whole capture</button>
<button class="tl-perfetto" hidden>Open in Perfetto ↗</button></div>
<div class="tl-place"><canvas tabindex="0" role="application" aria-label="Timeline of every rank"></canvas>
<div class="tl-tip" hidden></div></div>
<p class="tl-error"></p>
<p class="tl-keys">Wheel or W S: zoom · drag or A D: move · shift and wheel or ↑ ↓: other ranks · click: what it is · click on a
name with ▾: its deeper rows</p>
<p class="tl-get"></p><div class="tl-detail"></div></div>"""
Window = tuple[int, int]


@cache
def _component() -> Any:
    """The component; registered once per process."""
    folder = files("dtprof_dashboards.timeline")
    script = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    css = folder.joinpath("timeline.css").read_text(encoding="utf-8")
    return st.components.v2.component("dtprof_timeline", html=_HTML, css=css, js=script, isolate_styles=False)


def show(data: dict[str, Any], changed: Callable[[], None], key: str) -> str | None:
    """Draw the timeline; the window that it shows, once it has been moved, as ``FROM:TO``."""
    found: str | None = _component()(data=data, key=key, on_window_change=changed).window
    return found


def layout(timeline: Timeline) -> dict[str, Any]:
    """What lies where: a group per process with its tracks and the starts of its steps, ns from the timeline's zero."""
    groups, paints = [], set()
    for part in timeline.run.parts:
        found = timeline.tracks(part.ordinal)
        if not found:
            continue
        for track in found:
            for row in track.rows:
                paints |= set(np.flatnonzero(np.bincount(row.paint)).tolist())
        groups.append(
            {
                "part": part.ordinal,
                "rank": part.rank,
                "name": label(part),
                "tracks": [{"name": _name(t, found), "about": _about(t), "rows": len(t.rows)} for t in found],
                "steps": _steps(timeline, part),
            }
        )
    return {
        "groups": groups,
        "span": [0, max(1, timeline.end())],
        "paints": [PAINTS[p] for p in sorted(paints)],
        "colours": sorted(tokens(False)),
    }


def _name(track: Track, others: list[Track]) -> str:
    """The role of a track, numbered where others have it too; its own name where it has no role."""
    if track.role == "other":
        return track.name
    alike = [t for t in others if t.role == track.role]
    return track.role if len(alike) == 1 else f"{track.role} {alike.index(track) + 1}"


def _about(track: Track) -> str:
    where = "device" if track.on_device else "host"
    slices = sum(int(row.counts.sum()) for row in track.rows)
    lost = f"; {count(track.left_out)} more overlap too deep to be drawn" if track.left_out else ""
    return f"{track.name} · {where} · {count(slices)} events in {count(len(track.rows))} rows{lost}"


def _steps(timeline: Timeline, part: Part) -> list[list[int]]:
    """Number and start of every step of a process."""
    table = timeline.run.table("steps", part.ordinal)
    told = table.take(table.known("host_ts") & table.known("step"))
    start = told["host_ts"] + (part.clock_offset_ns - timeline.zero)
    return [[int(s), int(t)] for s, t in zip(told["step"].tolist(), start.tolist(), strict=True)]


def step_window(timeline: Timeline, step: int) -> Window | None:
    """From the first start to the last end of a step over all processes, ns; None where nobody has it."""
    begins, ends = [], []
    for part in timeline.run.parts:
        table = timeline.run.table("steps", part.ordinal)
        rows = table.take((table["step"] == step) & table.known("host_ts"))
        offset = part.clock_offset_ns - timeline.zero
        for start, dur in (("host_ts", "host_dur"), ("device_ts", "device_dur")):
            known = (rows[start] != MISSING) & (rows[dur] != MISSING)
            if known.any():
                begins.append(int(rows[start][known].min()) + offset)
                ends.append(int((rows[start] + rows[dur])[known].max()) + offset)
    return (min(begins), max(ends)) if begins else None


def parse_window(text: str, end: int) -> Window | None:
    """``FROM:TO`` in ns; None where it is no span of time that meets 0 to ``end``."""
    first, colon, last = text.partition(":")
    if not colon or len(text) > 40 or not last.isdecimal() or not first.removeprefix("-").isdecimal():
        return None
    window = int(first), int(last)
    return window if window[0] < window[1] and window[1] > 0 and window[0] < end else None
