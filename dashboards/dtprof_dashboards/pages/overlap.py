"""Overlap: the buckets of a step under its backward pass, or its operations where no buckets are known."""

from __future__ import annotations

from html import escape

import streamlit as st

from dtprof.model.ddp.observe import Seen
from dtprof.numbers import Scale, count, percent, time
from dtprof.report.charts.overlap import Lane, Lanes, overlap_figure
from dtprof.report.operations import op_words
from dtprof.run import Part
from dtprof.schema import MISSING
from dtprof_dashboards import show
from dtprof_dashboards.view import Page, View

MOST_LANES = 40
_PASSES = ("forward", "backward")
_TURN = '<span class="w">waits</span> for other ranks, then <span class="t">moves data</span>'
_STRIPED = "; striped: the two are not told apart."


def render(view: View) -> None:
    """Draw the page."""
    show.title("Overlap", view.meta)
    if not view.opened.rows or not view.facts.comm.operations:
        show.nothing(
            "Nothing to overlap",
            "Communication is held against the work of captured steps; this run has none of it.",
            "dtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py",
        )
        return
    _said(view)
    left, right, _ = st.columns([1, 1, 4])
    with left:
        rank = view.choose_rank()
    with right:
        step = view.choose_step()
    found, title, sub = _lanes(view, rank, step)
    if found is None or not found.lanes:
        show.nothing(f"Nothing of step {step} on rank {rank}", "Choose another step or rank.")
        return
    if found.exposed_ns:
        sub += f" After the backward pass {time(found.exposed_ns)} of communication remain."
    show.section(title, sub, show.figure(overlap_figure(found, show.FULL)))
    _table(view)


def _lanes(view: View, rank: int | None, step: int | None) -> tuple[Lanes | None, str, str]:
    """What is drawn, its title, and markup of what it means: DDP's buckets, FSDP's units, or the operations as they are."""
    if found := _buckets(view, rank, step):
        sub = f"Tick: the bucket’s last gradient is ready; thin line: until it is handed over. Then it {_TURN}{_striped(found)}"
        return found, "Buckets under the backward pass", sub
    if found := _units(view, rank, step):
        sub = (
            "Each unit’s parameters are gathered before it works, its gradients reduced and scattered after its backward pass."
        )
        sub += ' <span class="t">Moving data</span>: from the last rank’s handing over to the end here.'
        return found, "Gathers and reductions under the step", sub
    found = _operations(view, rank, step)
    return found, "Operations under the step", f"{escape(_why(view))} Each {_TURN}{_striped(found)}"


def _striped(found: Lanes | None) -> str:
    return _STRIPED if found and any(lane.start is not None and lane.turn is None for lane in found.lanes) else "."


def _why(view: View) -> str:
    """Why operations are drawn, and neither buckets nor units."""
    ddp, fsdp = view.opened.ddp, view.opened.fsdp
    if not isinstance(view.opened.pipeline, str):
        return "The messages between stages and the other operations of the step."
    whole = "this step was not captured whole"
    reasons = f"No buckets: {ddp if isinstance(ddp, str) else whole}. No units: {fsdp if isinstance(fsdp, str) else whole}."
    return f"{reasons} Drawn are the operations of the step instead."


def _said(view: View) -> None:
    rows = view.opened.rows
    keys = ("comm_wait_ns", "comm_transfer_ns", "comm_unsplit_ns")
    exposed = sum(r.parts[k] for r in rows for k in keys) / len(rows)
    hidden = sum(r.hidden for r in rows) / len(rows)
    whole = exposed + hidden
    text = f"{percent(hidden / whole)} of communication is hidden under work" if whole else "No communication in the steps"
    why = f"{time(hidden)} hidden and {time(exposed)} exposed per step, mean of the ranks" if whole else ""
    found = view.found("ddp.", "comm.exposed")
    show.verdict(text, why, [f.next for f in found[:1] if f.next])


def _buckets(view: View, rank: int | None, step: int | None) -> Lanes | None:
    """Lanes of the DDP buckets of one step of one rank."""
    seen = view.opened.ddp
    if not isinstance(seen, Seen) or step not in seen.steps:
        return None
    mine = next((r for r in seen.steps[step] if r.rank == rank), None)
    if mine is None:
        return None
    part = next(p for p in view.facts.run.parts if p.rank == rank)
    zero = _begin(view, part, step)
    waits = _waits(view, part)
    lanes = []
    for number, members in enumerate(seen.buckets):
        times = (float(mine.ready[list(members)].max()), float(mine.launched[number]), float(mine.ended[number]))
        ready, start, end = (round(t - mine.begin) for t in times)
        wait = waits.get((start + zero, end - start))
        turn = None if wait is None else start + wait
        lanes.append(Lane(f"bucket {number}", int(seen.bytes[number]), ready, start, end, turn))
    backward = (round(mine.backward[0] - mine.begin), round(mine.backward[1] - mine.begin)) if mine.backward else None
    passes = _passes(view, part, step, zero)
    return Lanes(f"rank {rank}, step {step}", round(mine.end - mine.begin), backward, tuple(lanes), passes)


def _begin(view: View, part: Part, step: int) -> int:
    """When a process began a step, ns on the run's clock."""
    steps = view.facts.run.table("steps", part.ordinal)
    return int(steps["host_ts"][steps["step"] == step][0]) + part.clock_offset_ns


def _waits(view: View, part: Part) -> dict[tuple[int, int], int]:
    """(Start on the run’s clock, duration) of each share that a process has in an operation -> its waiting, ns, where known."""
    shares = view.facts.comm.participations
    mine = shares.take((shares["part"] == part.ordinal) & shares.known("wait"))
    columns = (mine[name].tolist() for name in ("start", "dur", "wait"))
    return {(start, dur): wait for start, dur, wait in zip(*columns, strict=True)}


def _units(view: View, rank: int | None, step: int | None) -> Lanes | None:
    """Lanes of the gathers and reductions of FSDP's units in one step of one rank."""
    seen = view.opened.fsdp
    if isinstance(seen, str) or step not in seen.steps or rank not in seen.ranks:
        return None
    found, mine = seen.steps[step], seen.ranks.index(rank)
    zero = found.begins[mine]
    lanes = []
    for taken in found.taken:
        unit = seen.units[taken.op.unit].name or "root" if taken.op.kind != "other" else ""
        name = f"{taken.op.kind} {unit}" if unit else op_words(taken.op.op)
        handed, ended = round(taken.handed - zero), round(taken.end - taken.early[mine] - zero)
        lanes.append(Lane(name, taken.op.bytes, None, handed, ended, handed))
    part = next(p for p in view.facts.run.parts if p.rank == rank)
    passes = _passes(view, part, step, _begin(view, part, step))
    return Lanes(f"rank {rank}, step {step}", round(found.ends[mine] - zero), _backward(passes), tuple(lanes), passes)


def _operations(view: View, rank: int | None, step: int | None) -> Lanes | None:
    """Lanes of the longest operations of one step of one rank."""
    facts = view.facts
    part = next((p for p in facts.run.parts if p.rank == rank), None)
    account = next(
        (s for a in facts.accounting.parts if part and a.part == part.ordinal for s in a.steps if s.step == step), None
    )
    if part is None or account is None:
        return None
    zero = account.ts + part.clock_offset_ns
    shares = facts.comm.participations
    rows = (shares["part"] == part.ordinal).nonzero()[0].tolist()
    names = {o.id: o for o in facts.comm.operations}
    lanes = []
    for i in rows:
        operation, start, dur = names.get(int(shares["collective"][i])), int(shares["start"][i]) - zero, int(shares["dur"][i])
        if operation is None or start + dur < 0 or start > account.dur_ns:
            continue
        wait = int(shares["wait"][i])
        turn = None if wait == MISSING else start + wait
        lanes.append(Lane(f"{operation.id} {op_words(operation.op)}", operation.bytes, None, start, start + dur, turn))
    longest = sorted(
        sorted(lanes, key=lambda lane: -((lane.end or 0) - (lane.start or 0)))[:MOST_LANES], key=lambda x: x.start or 0
    )
    if account.on_device:
        return Lanes(f"rank {rank}, step {step}", account.dur_ns, None, tuple(longest))
    passes = _passes(view, part, step, zero)
    return Lanes(f"rank {rank}, step {step}", account.dur_ns, _backward(passes), tuple(longest), passes)


Passes = tuple[tuple[str, int, int], ...]


def _passes(view: View, part: Part, step: int | None, zero: int) -> Passes:
    """The forward and backward passes of a step on the host: phase, begin and end, ns from ``zero`` on the run's clock."""
    shift = part.clock_offset_ns - zero
    mine = [p for p in view.facts.phases.times if p.part == part.ordinal and p.step == step and p.phase in _PASSES]
    return tuple(sorted(((p.phase, p.ts + shift, p.ts + shift + p.dur_ns) for p in mine), key=lambda p: p[1]))


def _backward(passes: Passes) -> tuple[int, int] | None:
    """From the begin of the first backward pass to the end of the last one."""
    mine = [(a, b) for phase, a, b in passes if phase == "backward"]
    return (min(a for a, _ in mine), max(b for _, b in mine)) if mine else None


def _table(view: View) -> None:
    rows = view.opened.rows[:64]
    keys = ("comm_wait_ns", "comm_transfer_ns", "comm_unsplit_ns")
    scale = Scale.of(r.total for r in rows)
    body = []
    for row in rows:
        exposed = sum(row.parts[k] for k in keys)
        whole = exposed + row.hidden
        share = percent(row.hidden / whole) if whole else "none"
        body.append([row.label, scale.text(exposed), scale.text(row.hidden), share])
    heads = ["", f"exposed, {scale.unit}", f"hidden, {scale.unit}", "hidden of all"]
    sub = f"Communication of {count(len(rows))} processes per step: outside their own work, and under it."
    show.section("Exposed and hidden", sub, show.table(heads, body, {1, 2, 3}))


def _note(view: View) -> str:
    return "" if view.facts.comm.operations and view.opened.rows else "none"


PAGE = Page("overlap", "Overlap", "Analyse", render, _note)
