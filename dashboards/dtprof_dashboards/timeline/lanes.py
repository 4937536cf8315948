"""The slices of one part, by lane: ns from the run's first event, waiting and transfer of an operation told apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.covers import PartView
from dtprof.intervals import Ints
from dtprof.run import Part, Run
from dtprof.schema import EVENT_KINDS, MISSING, ROLES

# what a slice is drawn as; the first five have the colours of the accounting
PAINTS = ("compute", "copy", "wait", "transfer", "unsplit", "operator", "call", "sync", "range", "other")
# spans of one lane that overlap go to further rows, at most so many
MOST_DEEP = 64
_KINDS = {
    "kernel": "compute", "memcpy": "copy", "memset": "copy", "comm": "unsplit", "cpu_op": "operator", "runtime": "call",
    "sync": "sync", "range": "range",
}  # fmt: skip
_PAINT_OF = np.array([PAINTS.index(_KINDS.get(kind, "other")) for kind in EVENT_KINDS] + [PAINTS.index("other")], np.int8)
_COMM = EVENT_KINDS.index("comm")
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Lane:
    """One row of slices of a stream or thread, ascending; no two overlap. Arrays have one entry per slice.

    ``name`` is a code of the part's names, ``row`` the event's row; ``counts`` is False in the second slice of an event.
    """

    lane: int
    depth: int
    start: Ints
    end: Ints
    paint: NDArray[np.int8]
    name: NDArray[np.int32]
    row: NDArray[np.int32]
    counts: NDArray[np.bool_]


@dataclass(frozen=True)
class Track:
    """One stream or thread: its name, whether it is on a device, its rows of slices, and the events that no row has."""

    lane: int
    name: str
    role: str
    on_device: bool
    rows: tuple[Lane, ...]
    left_out: int


def start_of(run: Run) -> int:
    """The first start of an event on the aligned clock, ns; 0 where there is none."""
    starts = []
    for part in run.parts:
        run.table("collectives")  # aligned clocks come with the matching of operations
        events = run.table("events", part.ordinal)
        ts = events["ts"][events.known("ts")]
        if len(ts):
            starts.append(int(ts.min()) + part.clock_offset_ns)
    return min(starts, default=0)


def tracks(run: Run, part: Part, zero: int) -> list[Track]:
    """The tracks of a part: host before device, in the order of roles."""
    seen = PartView(run, part.ordinal)
    events = seen.events
    known = np.flatnonzero(events.known("ts"))
    if not len(known):
        return []
    start = np.asarray(events["ts"] + (part.clock_offset_ns - zero))
    end = start + np.maximum(events["dur"], 0)
    depth = _depths(events["parent"], len(events))
    paint = _paints(seen)
    wait = _waits(run, part.ordinal, len(events))
    order = known[np.argsort(events["lane"][known], kind="stable")]
    borders = np.flatnonzero(np.diff(events["lane"][order])) + 1
    found = []
    for rows in np.split(order, borders):
        lane = int(events["lane"][rows[0]])
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        level = _settled(start[rows], end[rows], depth[rows])
        deeps = np.unique(level[level >= 0]).tolist()
        lanes = tuple(_lane(lane, d, rows[level == d], start, end, paint, wait, events["name"]) for d in deeps)
        found.append((lane, lanes, int((level < 0).sum())))
    return _named(run, part.ordinal, found)


def _depths(parent: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """How many events enclose each one, as far as the parents say."""
    depth = np.zeros(count, np.int32)
    inner = np.flatnonzero((parent >= 0) & (parent < count))
    for _ in range(MOST_DEEP):
        deeper = depth[parent[inner]] + 1
        if np.array_equal(deeper, depth[inner]):
            break
        depth[inner] = deeper
    return depth


def _settled(start: Ints, end: Ints, depth: NDArray[np.int32]) -> NDArray[np.int32]:
    """The row of every span of one lane, ascending by start: its depth, or the first row where it fits; -1 is none."""
    by_depth = np.argsort(depth, kind="stable")
    same = depth[by_depth][1:] == depth[by_depth][:-1]
    if not len(depth) or (depth.max() < MOST_DEEP and not (same & (start[by_depth][1:] < end[by_depth][:-1])).any()):
        return depth
    found = np.full(len(start), -1, np.int32)
    ends: list[int] = []
    for i, (begins, stops) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for row, free in enumerate(ends):
            if free <= begins:
                ends[row], found[i] = stops, row
                break
        else:
            if len(ends) < MOST_DEEP:
                found[i] = len(ends)
                ends.append(stops)
    return found


def _paints(seen: PartView) -> NDArray[np.int8]:
    """What every event is drawn as; where nothing runs on a device, operators are the computing."""
    paint = _PAINT_OF[seen.events["kind"]]
    if not len(seen.device_rows):
        paint = paint.copy()
        paint[seen.events.is_("kind", "cpu_op")] = PAINTS.index("compute")
    return paint


def _waits(run: Run, part: int, count: int) -> Ints:
    """Waiting of every event that is an operation's, ns; MISSING elsewhere and where it cannot be told."""
    wait = np.full(count, MISSING, np.int64)
    shares = run.table("participations")
    mine = shares.take(shares["part"] == part)
    wait[mine["event"]] = mine["wait"]
    return wait


def _lane(
    lane: int, depth: int, rows: Rows, start: Ints, end: Ints, paint: NDArray[np.int8], wait: Ints, name: NDArray[np.int32]
) -> Lane:
    """One row of slices; an operation whose waiting is known is two of them."""
    begins, stops, painted, waits = start[rows], end[rows], paint[rows], wait[rows]
    told = (waits != MISSING) & (painted == PAINTS.index("unsplit"))
    turn = np.where(told, begins + np.clip(waits, 0, stops - begins), stops)
    painted = np.where(told, np.where(turn > begins, PAINTS.index("wait"), PAINTS.index("transfer")), painted).astype(np.int8)
    both = np.flatnonzero(told & (turn > begins) & (turn < stops))
    first = np.where(told & (turn > begins), turn, stops)
    order = np.argsort(np.concatenate([begins, turn[both]]), kind="stable")
    second = np.full(len(both), PAINTS.index("transfer"), np.int8)
    return Lane(
        lane,
        depth,
        np.concatenate([begins, turn[both]])[order],
        np.concatenate([first, stops[both]])[order],
        np.concatenate([painted, second])[order],
        np.concatenate([name[rows], name[rows[both]]])[order],
        np.concatenate([rows, rows[both]]).astype(np.int32)[order],
        np.concatenate([np.ones(len(rows), bool), np.zeros(len(both), bool)])[order],
    )


def _named(run: Run, part: int, found: list[tuple[int, tuple[Lane, ...], int]]) -> list[Track]:
    table = run.table("lanes", part)
    places = {int(lane): i for i, lane in enumerate(table["id"].tolist())}
    made: list[tuple[tuple[bool, int, int], Track]] = []
    for lane, rows, left_out in found:
        row = table.row(places[lane]) if lane in places else {}
        device = row.get("device")
        on_device = device is not None and device >= 0
        role = row.get("role") or "other"
        number = row.get("stream") if on_device else row.get("thread")
        kind = "stream" if on_device else "thread"
        unnamed = f"{kind} {number}" if number is not None else "no thread" if lane >= 0 else "lane not known"
        name = row.get("name") or unnamed
        key = (on_device, ROLES.index(role), lane)
        made.append((key, Track(lane, name, role, on_device, rows, left_out)))
    return [track for _, track in sorted(made, key=lambda m: m[0])]
