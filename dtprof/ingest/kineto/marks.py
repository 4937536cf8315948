"""Steps and phases of a Kineto file, from its ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto.spans import Codes, Rows, is_kind, kind_code
from dtprof.ingest.nesting import inside
from dtprof.ingest.phases import phase_of
from dtprof.intervals import Ints
from dtprof.schema import MISSING32, PHASES
from dtprof.table import Strings, Table

_STEP = re.compile(r"^ProfilerStep#(\d+)$")
# a step range shorter than this share of the median is the stub that a profiler leaves when the loop ends
_STUB_SHARE = 0.1


@dataclass(frozen=True)
class Steps:
    """Host steps in time order; ``rows`` are the events that mark them."""

    number: NDArray[np.int32]
    start: Ints
    end: Ints
    complete: NDArray[np.bool_]
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))

    def table(self) -> Table:
        """The steps table, host half."""
        if len(self.number) == 0:
            return Table.empty("steps")
        count = len(self.number)
        return Table.of(
            "steps",
            step=self.number,
            host_ts=self.start,
            host_dur=self.end - self.start,
            complete=self.complete,
            kind=["train"] * count,
            marked=["marked"] * count,
            captured=np.ones(count, bool),
        )


def steps(name: Strings, kind: Codes, lane_device: Rows, lane: Rows, ts: Ints, dur: Ints) -> Steps:
    """Host steps from ``ProfilerStep#N`` ranges (old files have them as operators); a stub left at the end is incomplete."""
    number = np.array([int(m.group(1)) if (m := _STEP.match(n)) else -1 for n in name.values] + [-1], np.int64)
    marks = number[name.codes]
    rows = np.flatnonzero((marks >= 0) & (lane_device[lane] < 0) & is_kind(kind, "range", "cpu_op"))
    durations = dur[rows]
    complete = np.ones(len(rows), bool)
    if len(rows) > 1:
        complete[-1] = bool(durations[-1] >= _STUB_SHARE * np.median(durations[:-1]))
    return Steps(marks[rows].astype(np.int32), ts[rows], ts[rows] + durations, complete, rows.astype(np.int32))


def step_tags(found: Steps, ts: Ints, kind: Codes, launch: Rows, device_event: NDArray[np.bool_]) -> Rows:
    """Step of every event: host events by their start, device events by their launch; MISSING32 where none."""
    out = np.full(len(ts), MISSING32, np.int32)
    if len(found.number) == 0:
        return out
    first, last = (np.searchsorted(ts, instants).tolist() for instants in (found.start, found.end))
    for number, lo, hi, following in zip(found.number.tolist(), first, last, [*first[1:], len(ts)], strict=True):
        out[lo : min(hi, following)] = number
    device = np.flatnonzero(device_event)
    call = launch[device]
    out[device] = np.where(call >= 0, out[np.maximum(call, 0)], MISSING32)
    return out


def phase_ranges(name: Strings, kind: Codes, host: NDArray[np.bool_]) -> dict[str, Rows]:
    """Rows of the outermost ranges of each phase, in time order."""
    codes = {p: i for i, p in enumerate(PHASES)}
    lut = np.array([codes.get(phase_of(n) or "", -1) for n in name.values] + [-1], np.int8)
    ranged = np.flatnonzero((kind == kind_code("range")) & host)
    ranged = ranged[lut[name.codes[ranged]] >= 0]
    of = lut[name.codes[ranged]]
    return {p: ranged[of == codes[p]].astype(np.int32) for p in PHASES if np.any(of == codes[p])}


def outermost(rows: Rows, ts: Ints, dur: Ints) -> Rows:
    """Those of ``rows`` (in time order) that do not start inside an earlier one."""
    if len(rows) == 0:
        return rows
    reach = np.maximum.accumulate(ts[rows] + dur[rows])
    keep = np.concatenate([[True], ts[rows][1:] >= reach[:-1]])
    top: Rows = rows[keep]
    return top


def phase_tags(ranges: dict[str, Rows], ts: Ints, dur: Ints, launch: Rows, device_event: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Phase of every event by time (all threads of the process), device events by their launch; -1 where none."""
    out = np.full(len(ts), -1, np.int8)
    if not ranges:
        return out
    when = ts.copy()
    launched = device_event & (launch >= 0)
    when[launched] = ts[launch[launched]]
    for phase, rows in ranges.items():
        top = outermost(rows, ts, dur)
        hit = inside(ts[top], ts[top] + dur[top], when) >= 0
        out[hit & (~device_event | launched) & (out < 0)] = PHASES.index(phase)
    return out
