"""Kernels: classes, names, what is bound by launching it, and how near to the limits of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape

from dtprof.advise.places import who
from dtprof.analyse.results import KernelResult, KernelRow
from dtprof.numbers import count, percent, time
from dtprof.report import svg
from dtprof.report.charts.plain_bars import Bar, bars_figure
from dtprof.report.html_tables import kernels_table
from dtprof_dashboards import show
from dtprof_dashboards.roofline import BOUND
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

MOST_ROOFS = 12
# communication kernels wait as well as move, which kernels alone do not tell
_PAINTS = {"communication": svg.fill("comm_unsplit_ns"), "copy": svg.fill("copy_exposed_ns")}


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Kernels", view.meta)
    if not facts.kernels.rows:
        show.nothing(
            "No device kernel in this run",
            "The run has no work on a device: a CPU job, a capture that holds none, or a trace without device events.",
            "On a machine with GPUs: \ndtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py\ndtprof doctor",
        )
        return
    found = facts.kernels
    whole = sum(found.classes.values()) or 1
    first, spent = next(iter(found.classes.items()))
    why = f"{count(sum(k.count for k in found.rows))} kernels of {count(len(found.rows))} names, {time(whole)} over all ranks"
    show.verdict_of(view.found("host.launch"), f"{percent(spent / whole)} of kernel time is {first}", why)
    show.tiles(_tiles(view))
    rank = view.choose_rank("all ranks")
    mine = found if rank is None else _of_rank(view, rank)
    if not mine.rows:
        show.nothing(f"Rank {rank} has no kernel", "Choose another one.")
        return
    total = sum(mine.classes.values()) or 1
    bars = [
        Bar(kind, ns, f"{time(ns)} · {percent(ns / total)}", paint=_PAINTS.get(kind, ""))
        for kind, ns in mine.classes.items()
        if ns
    ]
    who = "All ranks together" if rank is None else f"Rank {rank}"
    sub = f"{who}, whole capture, by time."
    sub += " Striped: communication kernels wait as well as move data." if "communication" in mine.classes else ""
    show.section("By kind", escape(sub), show.figure(bars_figure(bars, "var(--compute)", 760.0, "Kernel time by kind")))
    shown = kernels_table(replace(facts, kernels=mine))
    note = " Counts and medians are of all ranks." if rank is not None else ""
    show.section("By name", escape(f"{who}, by total time: the first ten, and the others in one row.{note}"), shown)
    _roofs(view)


def _roofs(view: View) -> None:
    """How near the kernels come to the roofs of the device, or what would tell."""
    found = view.opened.roofs
    if not found:
        show.nothing(
            "How near kernels come to the device’s limits is not known",
            "A roofline needs what a kernel computes and what it reads and writes. Traces have neither; counters of the device "
            "do, and none of its arithmetic and memory were recorded here.",
            "Nsight Systems reads them for a whole job, with `nsys profile --gpu-metrics-devices=all -t cuda,nvtx`; its export "
            "shows them here. Nsight Compute reads them for single kernels, with `ncu --set roofline`.\n"
            "dtprof dashboard job.sqlite",
        )
        return
    whole = sum(row.total_ns for row in found) or 1
    rows = [
        [row.name, time(row.total_ns), percent(row.total_ns / whole), count(row.readings), percent(row.arithmetic),
         percent(row.memory), row.bound]
        for row in found[:MOST_ROOFS]
    ]  # fmt: skip
    heads = ["kernel", "time", "share", "readings", "of peak arithmetic", "of peak memory", "bound by"]
    sub = (
        f"Mean of the device’s counters while the kernel ran alone, by time; bound by a roof from {percent(BOUND)} of it on. "
        "Arithmetic: tensor pipes or instruction issue, whichever is busier; memory: reads and writes."
    )
    show.section("Against the device’s limits", sub, show.table(heads, rows, {1, 2, 3, 4, 5}, "kernels"))


def _of_rank(view: View, rank: int) -> KernelResult:
    """The kernels of one rank: its own totals and shares."""
    parts = {p.ordinal for p in view.facts.run.parts if p.rank == rank}
    sums = [(k, sum(ns for part, ns in k.parts.items() if part in parts)) for k in view.facts.kernels.rows]
    whole = sum(ns for _, ns in sums) or 1
    rows: list[KernelRow] = [replace(k, total_ns=ns, share=ns / whole) for k, ns in sums if ns]
    classes: dict[str, int] = {}
    for row in rows:
        classes[row.kind] = classes.get(row.kind, 0) + row.total_ns
    rows.sort(key=lambda k: -k.total_ns)
    return replace(view.facts.kernels, rows=tuple(rows), classes=dict(sorted(classes.items(), key=lambda c: -c[1])))


def _tiles(view: View) -> list[Tile]:
    found = view.facts.kernels
    lost, without = found.kernels_without_launch, found.launches_without_kernel
    shares = view.facts.accounting.mean_shares()
    starved = shares.get("idle_host_ns", 0.0)
    return [
        Tile("Short kernels", percent(found.short_share), "under 10 us, shorter than a launch usually takes"),
        Tile("Launch-bound", percent(starved), "of the step the device is idle for want of a launch")
        if view.opened.rows
        else Tile("Launch-bound", None, "no step is marked"),
        Tile(
            "Without a launch",
            count(sum(lost.values())),
            f"kernels of {_who(view, lost)}" if lost else "every launch is there",
        ),
        Tile(
            "Without a kernel",
            count(sum(without.values())),
            f"graph launches of {_who(view, without)}" if without else "every launched graph has its kernels",
        ),
    ]


def _who(view: View, parts: Iterable[int]) -> str:
    """The processes of these parts in words."""
    ranks = ((part, view.facts.parts[part].rank) for part in parts)
    return who(sorted({-1 - part if rank is None else rank for part, rank in ranks}))


def _note(view: View) -> str:
    return "" if view.facts.kernels.rows else "no device"


PAGE = Page("kernels", "Kernels", "Analyse", render, _note)
