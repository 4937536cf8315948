"""Memory of one process over time: the level, and what of it each category holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dtprof.analyse.memory import CATEGORIES
from dtprof.analyse.memory_live import live
from dtprof.intervals import Ints
from dtprof.report.memory import HEADS
from dtprof.run import Run
from dtprof.schema import MISSING

_COUNTERS = ("memory_allocated", "memory_rss")
REST = "the rest"
NO_STATE = "the memory collector counted no state"


@dataclass(frozen=True)
class Series:
    """Bytes ``held`` at ``ts`` (ns, ascending), ``what`` they are, and of them those of each category, by its words.

    ``top`` names the highest of them: between two readings there may be a higher peak.

    ``layers`` sum to at most ``held``. ``why`` says what they rest on, or why there are none.
    """

    ts: Ints
    held: Ints
    what: str
    layers: Mapping[str, Ints] = field(default_factory=dict)
    why: str = ""
    top: str = "peak"


def series(run: Run, part: int) -> Series | None:
    """The allocator's readings, else the counter of each step; None with fewer than two."""
    return _of_allocator(run, part) or _of_steps(run, part)


def _of_allocator(run: Run, part: int) -> Series | None:
    table = run.table("memory", part)
    rows = np.flatnonzero(table.is_("category", "allocated") & table.known("ts") & ~table.known("stack"))
    rows = rows[table["device"][rows] == table["device"][rows].max()] if len(rows) else rows
    ts, held = table["ts"][rows], table["bytes"][rows]
    if len(np.unique(ts)) < 2:
        return None
    layers, why = _blocks(run, part, int(table["device"][rows[0]]), ts, held)
    return Series(ts, held, "allocated, at each event of the allocator", layers, why)


def _blocks(run: Run, part: int, device: int, ts: Ints, held: Ints) -> tuple[dict[str, Ints], str]:
    """Bytes of each category after every event of the allocator."""
    allocations = run.table("allocations", part)
    mine = allocations["device"] == device
    if not np.array_equal(allocations["ts"][mine], ts):
        return {}, "the blocks behind the level were not recorded: an allocator snapshot or profile_memory tells them"
    found = live(allocations, run.table("memory", part), device)
    category = np.array([c or "" for c in found.category])
    layers = {}
    for name in CATEGORIES:
        blocks = np.flatnonzero(category == name)
        if len(blocks):
            change = np.zeros(len(ts) + 1, np.int64)
            np.add.at(change, found.born[blocks], found.size[blocks])
            np.add.at(change, np.minimum(found.died[blocks], len(ts)), -found.size[blocks])
            layers[HEADS[name]] = np.cumsum(change[:-1])
    if not layers:
        return {}, "no phase is marked (dtprof.annotate), and without phases what a block is cannot be told"
    return _within(layers, held), "categories are inferred from the phase in which a block was made and freed"


def _of_steps(run: Run, part: int) -> Series | None:
    metrics, steps = run.table("metrics", part), run.table("steps", part)
    timed = steps.take(steps.known("host_ts"))
    ends = dict(zip(timed["step"].tolist(), (timed["host_ts"] + np.maximum(timed["host_dur"], 0)).tolist(), strict=True))
    for metric in _COUNTERS:
        mine = metrics.take(metrics.is_("metric", metric))
        points = sorted((ends[s], v) for s, v in zip(mine["step"].tolist(), mine["value"].tolist(), strict=True) if s in ends)
        if len(points) >= 2:
            ts, held = (np.array(column, np.int64) for column in zip(*points, strict=True))
            what = f"{'allocated' if metric == _COUNTERS[0] else 'resident'}, at the end of each step"
            layers, since = _state(run, part, ts)
            why = "parameters, gradients and optimizer are counted now and then, exactly, and hold until the next count"
            counted = ts >= since
            if layers and counted.sum() >= 2:
                ts, held, layers = ts[counted], held[counted], {name: bytes_[counted] for name, bytes_ in layers.items()}
            return Series(ts, held, what, _within(layers, held), why if layers else NO_STATE, "highest reading")
    return None


def _state(run: Run, part: int, ts: Ints) -> tuple[dict[str, Ints], int]:
    """Bytes of the state that was counted, by category, as of the last count; and when the first of each had been made."""
    table = run.table("memory", part)
    layers: dict[str, Ints] = {}
    since = MISSING
    for name in CATEGORIES:
        mine = table.take(table.is_("category", name) & table.known("ts"))
        counts, at = np.unique(mine["ts"], return_inverse=True)
        if len(counts):
            sums = np.bincount(at.reshape(-1), weights=np.maximum(mine["bytes"], 0)).astype(np.int64)
            last = np.searchsorted(counts, ts, side="right") - 1
            layers[HEADS[name]] = np.where(last >= 0, sums[np.maximum(last, 0)], 0)
            since = max(since, int(counts[0]))
    return layers, since


def _within(layers: dict[str, Ints], held: Ints) -> dict[str, Ints]:
    """The layers with what is left of the level above them; where they exceed it, they are cut from above."""
    room, out = np.maximum(held, 0), {}
    for name, bytes_ in layers.items():
        out[name] = np.minimum(np.maximum(bytes_, 0), room)
        room = room - out[name]
    return out | {REST: room} if out else {}


def step_marks(run: Run, part: int, ts: Ints) -> list[tuple[int, str]]:
    """(start ns, words) of the steps inside the series."""
    steps = run.table("steps", part)
    found = zip(steps["step"].tolist(), steps["host_ts"].tolist(), strict=True)
    return [(int(at), f"step {step}") for step, at in found if at != MISSING and ts[0] <= at <= ts[-1]]
