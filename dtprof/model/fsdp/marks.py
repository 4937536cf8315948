"""FSDP2's own ranges in a trace: what was gathered, awaited, left and reduced, of which unit, and which operation it was."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.calls import calls_of
from dtprof.run import Part, Run

_NAME = re.compile(r"^FSDP::(?P<what>\w+?)(?: \((?P<unit>.*)\)| for (?P<target>.*))?$")
# ranges that say nothing of a unit
_APART = {"root_pre_forward", "root_post_backward_callback", "inputs_to_device", "cast_forward_inputs", "cast_forward_outputs"}


@dataclass(frozen=True)
class Sent:
    """One collective: its rows in ``comm`` and ``events``; when it was handed over, when the call that did so returned, and
    when it was over, on the part's clock; ``bytes`` is its larger side.
    """

    row: int
    handed: int
    returned: int
    end: int
    bytes: int
    op: str
    group: int
    event: int


@dataclass(frozen=True)
class Mark:
    """One range of FSDP2: ``what`` (pre_forward, all_gather, …), its unit, begin and end, and the collectives issued inside."""

    what: str
    unit: str
    begin: int
    end: int
    sent: tuple[Sent, ...] = ()


def has_fsdp(run: Run) -> bool:
    """Did any process record a range of FSDP2?"""
    return any(_is_ours(run, p).any() for p in run.parts)


def _is_ours(run: Run, part: Part) -> NDArray[np.bool_]:
    """Ranges of FSDP2 on the host: a tracer draws them again on the device's streams."""
    events, lanes = run.table("events", part.ordinal), run.table("lanes", part.ordinal)
    ours = np.array([name.startswith("FSDP::") for name in events.values("name")] + [False], bool)
    on_host = np.isin(events["lane"], lanes["id"][~lanes.known("stream")])
    return np.asarray(ours[events["name"]] & events.is_("kind", "range") & on_host)


def marks_of(run: Run, part: Part) -> tuple[dict[int, list[Mark]], dict[int, list[Sent]]]:
    """(ranges by step, in the order of their begin; collectives of each step that lie in none of them)."""
    events = run.table("events", part.ordinal)
    ours = _is_ours(run, part)
    names = events.text("name")
    inside, outside = _sent(run, part, ours)
    found: dict[int, list[Mark]] = defaultdict(list)
    for row in np.flatnonzero(ours).tolist():
        match = _NAME.match(names[row] or "")
        if match is None or match["what"] in _APART:
            continue
        begin = int(events["ts"][row])
        unit = match["unit"] or match["target"] or ""
        mark = Mark(match["what"], unit, begin, begin + int(events["dur"][row]), tuple(inside.get(row, ())))
        found[int(events["step"][row])].append(mark)
    return {step: sorted(marks, key=_outer_first) for step, marks in found.items()}, outside


def _outer_first(mark: Mark) -> tuple[int, bool, int, bool]:
    """By begin; what a unit is left by before what follows; what holds others before them, and a gather in what asked for it
    even where both last as long.
    """
    return mark.begin, mark.what not in ("post_forward", "post_backward_reshard"), -mark.end, mark.what.startswith("all_gather")


def _sent(run: Run, part: Part, ours: NDArray[np.bool_]) -> tuple[dict[int, list[Sent]], dict[int, list[Sent]]]:
    """Collectives by the innermost range of FSDP2 that issued them, and those of a step that none did."""
    events, comm = run.table("events", part.ordinal), run.table("comm", part.ordinal)
    ts, dur, parent, steps = (events[c] for c in ("ts", "dur", "parent", "step"))
    inside: dict[int, list[Sent]] = defaultdict(list)
    outside: dict[int, list[Sent]] = defaultdict(list)
    ops = comm.text("op")
    calls = calls_of(events, comm)
    launches = events["launch"].tolist()
    columns = [comm[c].tolist() for c in ("event", "bytes_in", "bytes_out", "group")]
    for row, (event, given, got, group) in enumerate(zip(*columns, strict=True)):
        by = calls.get(row, launches[event] if launches[event] >= 0 else event)
        end = int(ts[event] + dur[event])
        returned = int(ts[by] + dur[by]) if by != event else int(ts[event])
        one = Sent(row, int(ts[by]), min(returned, end), end, max(given, got, 0), str(ops[row]), group, event)
        at = int(parent[by])
        while at >= 0 and not ours[at]:
            at = int(parent[at])
        if at >= 0:
            inside[at].append(one)
        else:
            outside[int(steps[event])].append(one)
    return inside, outside
