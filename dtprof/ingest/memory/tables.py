"""From the columns of an allocator snapshot to tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.memory.unpickle import ACTIONS, STATES
from dtprof.intervals import Ints
from dtprof.numbers import memory
from dtprof.run import quality_rows
from dtprof.schema import MEMORY_CATEGORIES, MISSING
from dtprof.table import Strings, Table

_SIGNS = {"alloc": 1, "free_completed": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_FREED = ("free_requested", "free_completed")
# a microsecond on either side of this cannot be nanoseconds in 64 bits
_LATEST_US = 2**62 // 1000

Quality = list[tuple[str, str, int, str]]


@dataclass(frozen=True)
class Columns:
    """``columns`` by "table.column" as the program of ``unpickle`` names them; ``skipped`` entries were none."""

    columns: dict[str, NDArray[np.int64]]
    stacks: tuple[str, ...]
    skipped: int

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def actions(self, wanted: dict[str, int]) -> Ints:
        """What ``wanted`` gives each event's action, 0 where it gives nothing."""
        return np.array([wanted.get(a, 0) for a in ACTIONS], np.int64)[self["events.action"]]

    def is_action(self, *wanted: str) -> NDArray[np.bool_]:
        """Events of these actions."""
        return self.actions(dict.fromkeys(wanted, 1)) > 0

    def is_state(self, wanted: str) -> NDArray[np.bool_]:
        """Blocks in this state."""
        return np.asarray(self["blocks.state"] == STATES.index(wanted))


def tables_of(columns: Columns, source: str) -> dict[str, Table]:
    """All tables of a snapshot."""
    quality: Quality = []
    ts = _times(columns["events.time_us"])
    memory_tables = [_held_by_stack(columns, ts)]
    samples: list[dict[str, Any]] = []
    for device in _devices(columns):
        memory_tables += _levels(columns, ts, device, source, quality)
        samples += _state(columns, ts, device)
    samples += _ooms(columns, ts)
    _history(columns, source, quality)
    tables = {
        "allocations": _allocations(columns, ts),
        "memory": Table.concat(memory_tables),
        "samples": Table.from_rows("samples", samples),
        "quality": quality_rows(quality),
    }
    return tables


def _devices(columns: Columns) -> list[int]:
    """Devices with memory or history."""
    return sorted({*columns["segments.device"].tolist(), *columns["events.device"].tolist()})


def _times(microseconds: Ints) -> Ints:
    known = np.abs(np.maximum(microseconds, -_LATEST_US)) < _LATEST_US
    return np.where(known, microseconds * np.int64(1000), MISSING)


def _end(ts: Ints) -> int:
    """The last recorded instant: the snapshot itself carries no time."""
    known = ts[ts != MISSING]
    return int(known.max()) if len(known) else MISSING


def _allocations(columns: Columns, ts: Ints) -> Table:
    sign = columns.actions(_SIGNS)
    rows = np.flatnonzero(sign)
    address = columns["events.address"][rows]
    device = columns["events.device"][rows].astype(np.int32)
    return Table.of(
        "allocations", ts=ts[rows], device=device, address=address, size=(sign * columns["events.size"])[rows],
        segment=_segment_of(columns, device, address), stack=_stacks(columns, columns["events.stack"][rows]),
    )  # fmt: skip


def _segment_of(columns: Columns, device: NDArray[np.int32], address: Ints) -> Ints:
    """First address of the segment that holds an address; missing where none does any more."""
    out = np.full(len(address), MISSING, np.int64)
    for one in np.unique(device).tolist():
        mine = np.flatnonzero(columns["segments.device"] == one)
        if not len(mine):
            continue
        start = columns["segments.address"][mine].view(np.uint64)
        order = np.argsort(start)
        start, size = start[order], columns["segments.size"][mine][order].astype(np.uint64)
        rows = np.flatnonzero(device == one)
        wanted = address[rows].view(np.uint64)
        at = np.searchsorted(start, wanted, "right") - 1
        held = (at >= 0) & (wanted - start[np.maximum(at, 0)] < size[np.maximum(at, 0)])
        out[rows[held]] = start[at[held]].view(np.int64)
    return out


def _stacks(columns: Columns, codes: Ints) -> Strings:
    return Strings(codes.astype(np.int32), columns.stacks)


def _levels(columns: Columns, ts: Ints, device: int, source: str, quality: Quality) -> list[Table]:
    """Bytes allocated and reserved after every event that changed them, counted back from the end."""
    mine = columns["events.device"] == device
    of_blocks = columns["blocks.device"] == device
    active = of_blocks & ~columns.is_state("inactive")
    total = columns["segments.size"][columns["segments.device"] == device]
    ends = {"allocated": int(columns["blocks.requested"][active].sum()), "reserved": int(total.sum())}
    found = []
    for category, signs in (("allocated", _SIGNS), ("reserved", _RESERVED)):
        change = columns.actions(signs) * columns["events.size"] * mine
        rows = np.flatnonzero(change)
        after = ends[category] - np.append(np.cumsum(change[rows][::-1])[::-1][1:], 0)[: len(rows)]
        if len(rows) and after.min() < 0:
            effect = f"when how much was {category} is not known; the state at the end is"
            quality.append((source, f"the history of device {device} does not fit the state at its end", 1, effect))
            rows, after = rows[:0], after[:0]
        code, where = (np.full(len(rows), v, np.int32) for v in (MEMORY_CATEGORIES.index(category), device))
        found.append(Table.of("memory", ts=ts[rows], device=where, category=code, bytes=after))
    now = [{"ts": _end(ts), "device": device, "category": c, "bytes": ends[c]} for c in ends]
    return [*found, Table.from_rows("memory", now)]


def _held_by_stack(columns: Columns, ts: Ints) -> Table:
    """Bytes that live blocks held at the end, by device and stack, the most first; -1 bytes nowhere."""
    live = ~columns.is_state("inactive")
    stack, device = columns["blocks.stack"][live], columns["blocks.device"][live]
    known = stack >= 0
    pairs, inverse = np.unique(np.stack([device[known], stack[known]]), axis=1, return_inverse=True)
    held = np.zeros(pairs.shape[1], np.int64)
    np.add.at(held, inverse.reshape(-1), columns["blocks.requested"][live][known])
    order = np.argsort(-held, kind="stable")
    return Table.of(
        "memory", ts=np.full(len(held), _end(ts)), device=pairs[0][order].astype(np.int32),
        category=["allocated"] * len(held), bytes=held[order], stack=_stacks(columns, pairs[1][order]),
    )  # fmt: skip


def _state(columns: Columns, ts: Ints, device: int) -> list[dict[str, Any]]:
    """What the segments held at the end."""
    mine = columns["blocks.device"] == device
    size, asked, segment = columns["blocks.size"], columns["blocks.requested"], columns["blocks.segment"]
    free, pending = mine & columns.is_state("inactive"), mine & columns.is_state("active_pending_free")
    live = mine & ~columns.is_state("inactive")
    in_use = np.isin(segment, segment[live])
    values = {
        "memory_inactive": int(size[free].sum()),
        "memory_inactive_held": int(size[free & in_use].sum()),
        "memory_pending_free": int(size[pending].sum()),
        "memory_largest_free": int(size[free].max(initial=0)),
        "memory_rounding": int((size - asked)[live].sum()),
    }
    rows = [{"metric": k, "value": float(v), "unit": "bytes"} for k, v in values.items()]
    count = int(np.sum(columns["segments.device"] == device))
    rows.append({"metric": "memory_segments", "value": float(count), "unit": "segments"})
    return [{"ts": _end(ts), "device": device, **row} for row in rows]


def _ooms(columns: Columns, ts: Ints) -> list[dict[str, Any]]:
    rows = np.flatnonzero(columns.is_action("oom")).tolist()
    return [
        {
            "ts": int(ts[i]), "metric": "memory_oom", "value": float(columns["events.size"][i]), "unit": "bytes",
            "device": int(columns["events.device"][i]),
        }
        for i in rows
    ]  # fmt: skip


def _history(columns: Columns, source: str, quality: Quality) -> None:
    """Say what the history lacks."""
    if columns.skipped:
        quality.append((source, "entries that are no block and no known event", columns.skipped, "left out"))
    quality.append((source, "no steps: an allocator snapshot marks none", 1, "nothing is told per step"))
    if not len(columns["events.action"]):
        effect = "the state at the end is known, and nothing before it; call torch.cuda.memory._record_memory_history()"
        quality.append((source, "no history was recorded", 1, effect))
        return
    unknown = _unknown_blocks(columns)
    if unknown:
        effect = "levels hold from the first recorded event on; nothing is said about a peak before it"
        quality.append((source, "the history lost its beginning: blocks whose allocation is not in it", unknown, effect))
    rows = np.flatnonzero(columns.is_action("oom")).tolist()
    if rows:
        most = memory(int(columns["events.size"][rows].max()))
        quality.append((source, f"the allocator ran out of memory, asked for up to {most}", len(rows), "those requests failed"))


def _unknown_blocks(columns: Columns) -> int:
    """Blocks that were freed, or are alive at the end, without an allocation in the history."""
    alive: set[tuple[int, int]] = set()
    freed: set[tuple[int, int]] = set()
    unknown: set[tuple[int, int]] = set()
    places = zip(columns["events.device"].tolist(), columns["events.address"].tolist(), strict=True)
    for action, place in zip(columns["events.action"].tolist(), places, strict=True):
        name = ACTIONS[action]
        if name == "alloc":
            alive.add(place)
            freed.discard(place)
        elif name in _FREED:
            if place not in alive and place not in freed:
                unknown.add(place)
            if name == "free_completed":
                alive.discard(place)
                freed.discard(place)
            else:
                freed.add(place)
    live = ~columns.is_state("inactive")
    left = set(zip(columns["blocks.device"][live].tolist(), columns["blocks.address"][live].tolist(), strict=True))
    return len(unknown) + len(left - alive)
