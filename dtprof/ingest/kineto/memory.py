"""Levels of memory over time, from the [memory] instants of a Kineto file (torch.profiler with ``profile_memory=True``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto.events import Events, base_ns
from dtprof.ingest.kineto.marks import outermost
from dtprof.ingest.kineto.raw import RawTrace
from dtprof.ingest.kineto.spans import Rows, kind_code
from dtprof.ingest.nesting import inside
from dtprof.intervals import Ints
from dtprof.ranges import parse_range
from dtprof.schema import MEMORY_CATEGORIES, MISSING, MISSING32, PHASES
from dtprof.table import Strings, Table


def levels(raw: RawTrace, events: Events, phases: dict[str, Rows]) -> Table:
    """One ``allocated`` row per allocator event, in the order of the file, as ``allocations`` has them; then ``reserved``.

    ``phase`` and ``module`` are those of the phase range and the innermost layer range that hold the instant, on whatever
    thread: the allocator is called by the thread that runs the operator. On the host torch counts from the start of the
    recording, so a level there is what was added since then.
    """
    allocated = raw.memory_args.get("Total Allocated")
    if allocated is None:
        return Table.empty("memory")
    count = len(raw.memory_ts)
    ts = raw.memory_ts + base_ns(raw.header)
    device = _column(raw, "Device Id", count)
    phase, module = _phase(events, phases, ts), _module(events, ts)
    tables = []
    for category, argument in (("allocated", "Total Allocated"), ("reserved", "Total Reserved")):
        level = _column(raw, argument, count)
        rows = np.arange(count) if category == "allocated" else np.flatnonzero(level > 0)
        if len(rows) == 0:
            continue
        tables.append(Table.of(
            "memory", ts=ts[rows], device=np.where(device == MISSING, MISSING32, device)[rows].astype(np.int32),
            category=np.full(len(rows), MEMORY_CATEGORIES.index(category), np.int8), bytes=level[rows], phase=phase[rows],
            module=Strings(module.codes[rows], module.values),
        ))  # fmt: skip
    return Table.concat(tables)


def _column(raw: RawTrace, name: str, count: int) -> Ints:
    out = np.full(count, MISSING, np.int64)
    found = raw.memory_args.get(name)
    if found is not None:
        out[found.rows] = found.values
    return out


def _phase(events: Events, phases: dict[str, Rows], ts: Ints) -> NDArray[np.int8]:
    out = np.full(len(ts), -1, np.int8)
    for phase, rows in phases.items():
        top = outermost(rows, events.ts, events.dur)
        hit = inside(events.ts[top], events.ts[top] + events.dur[top], ts) >= 0
        out[hit & (out < 0)] = PHASES.index(phase)
    return out


def _module(events: Events, ts: Ints) -> Strings:
    """Layer of the innermost range that names one: the last to have begun of those that have not ended."""
    layers = [parse_range(n)[1].get("layer") if "layer=" in n else None for n in events.name.values]
    named = Strings.of(None if v is None else str(v) for v in layers)
    of_event = np.append(named.codes, np.int32(-1))[events.name.codes]
    rows = np.flatnonzero((of_event >= 0) & ~events.on_device & (events.kind == kind_code("range")))
    starts, ends = events.ts[rows].tolist(), (events.ts[rows] + events.dur[rows]).tolist()
    codes = np.full(len(ts), -1, np.int32)
    begun: list[int] = []
    at = 0
    for i in np.argsort(ts, kind="stable").tolist():
        instant = int(ts[i])
        while at < len(rows) and starts[at] <= instant:
            begun.append(at)
            at += 1
        while begun and ends[begun[-1]] < instant:
            begun.pop()
        if begun:
            codes[i] = of_event[rows[begun[-1]]]
    return Strings(codes, named.values)
