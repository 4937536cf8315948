"""HTA: Holistic Trace Analysis as a second opinion, beside our own numbers; asked in a process of its own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import streamlit as st

from dtprof.analyse.results import PartAccount
from dtprof.errors import InputError
from dtprof.launch import hta
from dtprof.numbers import NOT_KNOWN, count, percent
from dtprof_dashboards import selection, show
from dtprof_dashboards.opened import Watermark
from dtprof_dashboards.view import Page, View

PATIENCE_S = 300
HABITS = (
    "HTA leaves out the last ProfilerStep, keeps only device operations whose launch is in the file, rounds to whole "
    "microseconds, and knows communication by the names of NCCL kernels alone; where numbers differ, that is why."
)


def render(view: View) -> None:
    """Draw the page."""
    show.title("HTA", view.meta)
    if find_spec("hta") is None:
        show.nothing(
            "Holistic Trace Analysis is not installed",
            "It is a second opinion on traces with device work.",
            hta.INSTALL,
        )
        return
    files = hta.traces(view.facts.run)
    if not files or not view.facts.accounting.on_device:
        show.nothing(
            "Nothing that HTA can read",
            "It needs torch.profiler traces with device work, one per rank.",
            "On GPUs:\ndtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py",
        )
        return
    show.verdict("a second opinion on the same traces", HABITS)
    if not st.button(f"Ask HTA about {len(files)} traces", key=selection.widget_key("ask")) and not _asked(view):
        show.markup('<p class="meta">It reads the traces itself; for large ones that takes minutes.</p>')
        return
    st.session_state["hta_asked"] = view.entry.name
    found = ask(tuple(sorted(files.items())), view.stamp)
    if isinstance(found, str):
        show.nothing("HTA could not read these traces", found)
        return
    _breakdown(view, found)


def _asked(view: View) -> bool:
    return st.session_state.get("hta_asked") == view.entry.name


@st.cache_resource(max_entries=8, show_spinner="HTA reads the traces …")
def ask(files: tuple[tuple[int, str], ...], stamp: Watermark) -> dict[str, list[dict[str, Any]]] | str:
    """What HTA says, or why it says nothing."""
    try:
        told = hta.ask(dict(files), "breakdowns", PATIENCE_S)
    except InputError as error:
        return str(error)
    refused = next((one["error"] for one in told.values() if "error" in one), None)
    return refused or {name: one["rows"] for name, one in told.items()}


def _breakdown(view: View, found: dict[str, list[dict[str, Any]]]) -> None:
    overlap = {row["rank"]: row for row in found["overlap"]}
    ours = {a.rank: a for a in view.facts.accounting.parts}
    rows = []
    for row in found["breakdown"]:
        mine = ours.get(row["rank"])
        rows.append(
            [
                f"rank {row['rank']}",
                *(_pair(row.get(f"{key}(us)"), value) for key, value in _ours(mine)),
                _percent(overlap.get(row["rank"], {}).get("comp_comm_overlap_pctg")),
                _overlap(mine),
            ]
        )
    heads = ["us, HTA | dtprof", "idle", "compute", "other than compute", "span", "overlap, HTA", "overlap, dtprof"]
    sub = "Device time of the whole file by rank: as HTA counts it, and as dtprof does."
    show.section("Breakdown", sub, show.table(heads, rows, range(1, 7)))


def _ours(account: PartAccount | None) -> list[tuple[str, int | None]]:
    device = account.device if account else None
    values = (None,) * 4 if device is None else (
        device.idle_ns, device.compute_ns, device.busy_ns - device.compute_ns, device.span_ns,
    )  # fmt: skip
    return list(zip(("idle_time", "compute_time", "non_compute_time", "kernel_time"), values, strict=True))


def _pair(theirs: float | None, ours: int | None) -> str:
    first = NOT_KNOWN if theirs is None else count(round(theirs))
    return f"{first} | {NOT_KNOWN if ours is None else count(round(ours / 1000))}"


def _percent(value: float | None) -> str:
    return NOT_KNOWN if value is None else percent(value / 100)


def _overlap(account: PartAccount | None) -> str:
    if account is None or not account.device.comm_ns:
        return NOT_KNOWN
    return percent(account.device.comm_overlapped_by_compute_ns / account.device.comm_ns)


def _note(view: View) -> str:
    return "not installed" if find_spec("hta") is None else "" if view.facts.accounting.on_device else "no device"


PAGE = Page("hta", "HTA", "Act", render, _note)
