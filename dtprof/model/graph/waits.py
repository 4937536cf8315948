"""Which operation of which stream a stream waits for: recorded where the trace has it, inferred elsewhere.

A recorded wait is a synchronisation event on the waiting stream that names the call that recorded the event; the source
is the last operation launched on the recorded stream before that call. Where only the calls are in the file:
    a collective waits for the last other kernel launched before it (NCCL's own wait);
    calls right before and after a collective's launch that every collective has are NCCL's own and mean just that;
    every other call, by site (thread, operations around it, position), waits for the candidate that is never refuted at
    that site and most often tight: the latest collectives, or the last operation of another stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dtprof.intervals import Ints
from dtprof.model.graph.device import Placed
from dtprof.model.graph.graph import Builder, EdgeKind
from dtprof.model.graph.nodes import PartNodes, Rows

REFUTED_BY_NS = 1_000
TIGHT_WITHIN_NS = 5_000
# a candidate that more of a site's instances refute is not what the site waits for
_REFUTED_SHARE = 0.02
# how many collectives back a wait may look
_DEPTH = 4

RULES = ("elimination", "latest", "oldest")


@dataclass(frozen=True)
class Wait:
    """Operation ``target`` starts after operation ``source`` has ended; rows of the part's events."""

    source: int
    target: int
    certain: bool


@dataclass
class Found:
    """Waits of a part, and how many calls none of the rules could place."""

    waits: list[Wait] = field(default_factory=list)
    unplaced: int = 0


@dataclass(frozen=True)
class _Call:
    """A wait call: row, the operation that waits, its site, and what it may wait for (name of candidate -> row)."""

    row: int
    target: int
    site: tuple[int, int, int, int]
    candidates: dict[str, int]


def find(nodes: PartNodes, rule: str = "elimination") -> Found:
    """The waits of a part by one of RULES: ``elimination`` as above; ``latest`` and ``oldest`` take the newest or the
    oldest collective of every unrecorded wait instead, to show what hangs on the inference.
    """
    launches = _Launches(nodes)
    found = Found(_recorded(nodes, launches))
    if found.waits or not nodes.is_comm.any():
        return found
    found.waits += _collectives(nodes, launches)
    calls = [c for c in _calls(nodes, launches) if c.candidates]
    found.unplaced = int(nodes.waits[nodes.calls].sum()) - len(calls) - launches.own_calls
    chosen = _by_elimination(nodes, calls) if rule == "elimination" else {c.site: _fixed(rule) for c in calls}
    for call in calls:
        names = chosen.get(call.site, ())
        name = next((n for n in names if n in call.candidates), None)
        if name is None:
            found.unplaced += 1
        else:
            found.waits.append(Wait(call.candidates[name], call.target, False))
    return found


def connect(builder: Builder, placed: Placed, found: Found) -> None:
    """Edges of the waits."""
    for wait in found.waits:
        if wait.source in placed.done and wait.target in placed.begin:
            builder.edge(placed.done[wait.source], placed.begin[wait.target], 0, EdgeKind.EVENT, certain=wait.certain)


class _Launches:
    """Operations by launch: what was launched last, and next, at any instant."""

    def __init__(self, nodes: PartNodes) -> None:
        self.nodes = nodes
        rows = nodes.ops[nodes.launch[nodes.ops] >= 0]
        called = nodes.ts[nodes.launch[rows]]
        order = np.argsort(called, kind="stable")
        self.rows, self.called = rows[order], called[order]
        self.lanes = nodes.lane[self.rows]
        self.threads = nodes.lane[nodes.launch[self.rows]]
        self.comm = nodes.is_comm[self.rows]
        self.own_calls = 0
        self._by_lane = {int(lane): np.flatnonzero(self.lanes == lane) for lane in np.unique(self.lanes).tolist()}
        self._by_thread = {int(t): np.flatnonzero(self.threads == t) for t in np.unique(self.threads).tolist()}
        self._comm = np.flatnonzero(self.comm)
        self._other = np.flatnonzero(~self.comm)

    def last(self, lane: int, instant: int) -> int:
        """Row of the last operation launched on a stream before an instant; -1."""
        return self._before(self._by_lane.get(lane, np.empty(0, np.int64)), instant)

    def last_other(self, instant: int) -> int:
        """Row of the last operation that is no communication; -1."""
        return self._before(self._other, instant)

    def comms(self, instant: int) -> Rows:
        """Rows of the latest collectives, newest first."""
        at = int(np.searchsorted(self.called[self._comm], instant, "left"))
        return self.rows[self._comm[max(0, at - _DEPTH) : at][::-1]]

    def next_of_thread(self, thread: int, instant: int) -> int:
        """Row of the next operation that a thread launches; -1."""
        return self._after(self._by_thread.get(thread, np.empty(0, np.int64)), instant)

    def previous_of_thread(self, thread: int, instant: int) -> int:
        """Row of the operation that a thread launched before; -1."""
        return self._before(self._by_thread.get(thread, np.empty(0, np.int64)), instant)

    def next_of_lane(self, lane: int, instant: int) -> int:
        """Row of the next operation launched on a stream, by any thread; -1."""
        return self._after(self._by_lane.get(lane, np.empty(0, np.int64)), instant)

    def streams(self) -> Iterator[int]:
        """All streams."""
        return iter(self._by_lane)

    def _before(self, mine: Ints, instant: int) -> int:
        at = int(np.searchsorted(self.called[mine], instant, "left")) - 1
        return int(self.rows[mine[at]]) if at >= 0 else -1

    def _after(self, mine: Ints, instant: int) -> int:
        at = int(np.searchsorted(self.called[mine], instant, "left"))
        return int(self.rows[mine[at]]) if at < len(mine) else -1


def _recorded(nodes: PartNodes, launches: _Launches) -> list[Wait]:
    """Waits that synchronisation events record."""
    deps, events = nodes.run.table("deps", nodes.part), nodes.view.events
    rows = np.flatnonzero(deps.is_("kind", "stream_wait"))
    on_stream = events.is_("kind", "sync") & (nodes.view.lane_device >= 0)
    out = []
    for record, sync, lane in zip(*(deps[c][rows].tolist() for c in ("src", "dst", "src_lane")), strict=True):
        if not on_stream[sync] or lane < 0:
            continue
        source = launches.last(lane, int(nodes.ts[record]))
        target = launches.next_of_lane(int(nodes.lane[sync]), _called(nodes, sync))
        if source >= 0 and target >= 0 and source != target:
            out.append(Wait(source, target, True))
    return out


def _called(nodes: PartNodes, sync: int) -> int:
    """When the call behind a synchronisation event was made; the event's own start where the call is not in the file."""
    correlation = nodes.view.events["correlation"]
    calls = np.flatnonzero(nodes.waits & (correlation == correlation[sync]))
    return int(nodes.ts[calls[0]]) if len(calls) else int(nodes.ts[sync])


def _collectives(nodes: PartNodes, launches: _Launches) -> list[Wait]:
    out = []
    for at in np.flatnonzero(launches.comm).tolist():
        source = launches.last_other(int(launches.called[at]))
        if source >= 0:
            out.append(Wait(source, int(launches.rows[at]), True))
    return out


def _calls(nodes: PartNodes, launches: _Launches) -> list[_Call]:
    """Wait calls that are not NCCL's own, with their sites and candidates."""
    out = []
    events = nodes.view.events
    for thread in nodes.threads.tolist():
        mine = nodes.calls[(nodes.lane[nodes.calls] == thread)]
        is_wait = nodes.waits[mine]
        is_launch = ~is_wait & np.isin(mine, list(set(nodes.outer.values())))
        before, after = _own(nodes, mine, is_wait, is_launch)
        own = _own_calls(nodes, mine, is_wait, is_launch, before, after)
        launches.own_calls += len(own)
        position = 0
        for row, wait in zip(mine.tolist(), is_wait.tolist(), strict=True):
            if not wait:
                position = 0
                continue
            position += 1
            if row in own:
                continue
            instant = int(nodes.ts[row])
            following = launches.next_of_thread(thread, instant)
            target = launches.next_of_lane(int(nodes.lane[following]), instant) if following >= 0 else -1
            if target < 0:
                continue
            previous = launches.previous_of_thread(thread, instant)
            names = events["name"]
            site = (thread, int(names[previous]) if previous >= 0 else -1, int(names[following]), position)
            out.append(_Call(row, target, site, _candidates(nodes, launches, instant, target)))
    return out


def _own(nodes: PartNodes, mine: Rows, is_wait: Ints, is_launch: Ints) -> tuple[int, int]:
    """How many waits right before and right after a collective's launch every collective has: NCCL's own."""
    fewest = [1 << 30, 1 << 30]
    comm_calls = _comm_calls(nodes)
    for at in np.flatnonzero(is_launch).tolist():
        if int(mine[at]) in comm_calls:
            for side, step in ((0, -1), (1, 1)):
                count, place = 0, at + step
                while 0 <= place < len(mine) and is_wait[place]:
                    count, place = count + 1, place + step
                fewest[side] = min(fewest[side], count)
    before, after = (0 if n == 1 << 30 else n for n in fewest)
    return before, min(after, 1)


def _comm_calls(nodes: PartNodes) -> set[int]:
    rows = nodes.ops[nodes.is_comm[nodes.ops]]
    return {nodes.outer[call] for call in nodes.launch[rows].tolist() if call in nodes.outer}


def _own_calls(nodes: PartNodes, mine: Rows, is_wait: Ints, is_launch: Ints, before: int, after: int) -> set[int]:
    own: set[int] = set()
    comm_calls = _comm_calls(nodes)
    for at in np.flatnonzero(is_launch).tolist():
        if int(mine[at]) in comm_calls:
            own.update(int(r) for r in mine[max(0, at - before) : at])
            own.update(int(r) for r in mine[at + 1 : at + 1 + after])
    return {r for r in own if nodes.waits[r]}


def _candidates(nodes: PartNodes, launches: _Launches, instant: int, target: int) -> dict[str, int]:
    lane = int(nodes.lane[target])
    found = {
        f"collective {n}": int(row) for n, row in enumerate(launches.comms(instant).tolist()) if int(nodes.lane[row]) != lane
    }
    for other in launches.streams():
        if other != lane and (row := launches.last(other, instant)) >= 0:
            found[f"stream {other}"] = row
    return found


def _fixed(rule: str) -> tuple[str, ...]:
    newest = [f"collective {n}" for n in range(_DEPTH)]
    return tuple(newest if rule == "latest" else newest[::-1])


def _by_elimination(nodes: PartNodes, calls: list[_Call]) -> dict[tuple[int, int, int, int], tuple[str, ...]]:
    """For every site the candidates that hold there, best first."""
    sites: dict[tuple[int, int, int, int], list[_Call]] = defaultdict(list)
    for call in calls:
        sites[call.site].append(call)
    chosen = {}
    for site, mine in sites.items():
        scores = []
        for name in {n for c in mine for n in c.candidates}:
            lags = [int(nodes.ts[c.target] - nodes.end[c.candidates[name]]) for c in mine if name in c.candidates]
            refuted = sum(lag < -REFUTED_BY_NS for lag in lags) / len(lags)
            tight = sum(abs(lag) <= TIGHT_WITHIN_NS for lag in lags) / len(lags)
            if refuted <= _REFUTED_SHARE:
                scores.append((-tight, float(np.median(lags)), name))
        chosen[site] = tuple(name for _, _, name in sorted(scores))
    return chosen
