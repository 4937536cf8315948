"""Host threads of a job without device work: what runs on them, where they hand over communication, where they wait for it.

Waiting is not recorded: a thread that waits for a gloo operation runs no operator, and its next operator begins when the
operation has ended. As the same program runs in every step and on every rank, the operator that waits for the n-th operation of
a step is the same one everywhere: the last one, over steps and ranks, that is the first to begin after the operation's end. It
is believed where the operation did end in the pause before it. A send or receive is over, in gloo, when its thread has waited
for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dtprof.catalogue.collectives import operation
from dtprof.intervals import Ints
from dtprof.model.graph.nodes import PartNodes, Rows
from dtprof.schema import ROLES

# the n-th occurrence of a name in a step
Key = tuple[str, int]
# one in so many instances may look as if the thread had gone on before the end: ends are recorded beside the waiting thread
_SKEWED = 0.1
_HANDOVERS = ("c10d::", "_c10d_functional::")
_WAIT = "::wait_tensor"
_MESSAGES = ("gloo:send", "gloo:recv")


@dataclass(frozen=True)
class Operation:
    """One operation of communication on one part: row of its span, thread and row of the call that handed it over."""

    row: int
    thread: int
    call: int


class Threads:
    """One part's training threads: operators without operators inside, and the communication handed over from them."""

    def __init__(self, nodes: PartNodes) -> None:
        self.nodes = nodes
        events = nodes.view.events
        self.names = events.text("name")
        self.step = np.asarray(events["step"])
        roles = [ROLES.index("training"), ROLES.index("autograd")]
        names = events.values("name")
        waits = np.array([n.endswith(_WAIT) for n in names] + [False], bool)[events["name"]]
        call = np.array([n.startswith(_HANDOVERS) for n in names] + [False], bool)[events["name"]] & ~waits
        ops = np.flatnonzero(events.is_("kind", "cpu_op") & np.isin(nodes.view.lane_role, roles) & ~waits)
        parent = np.asarray(events["parent"])[ops]
        outer = np.zeros(len(nodes.ts), bool)
        outer[parent[parent >= 0]] = True
        self.leaves: dict[int, Rows] = {}
        for lane in np.unique(nodes.lane[ops]).tolist():
            mine = ops[nodes.lane[ops] == lane]
            before = np.maximum.accumulate(np.where(call[mine], nodes.end[mine], 0))
            within = np.concatenate([[False], nodes.ts[mine[1:]] < before[:-1]])
            self.leaves[lane] = mine[(call[mine] | ~outer[mine]) & ~within]
        self.calls = np.sort(np.concatenate([rows[call[rows]] for rows in self.leaves.values()] or [np.empty(0, np.int64)]))

    @cached_property
    def operations(self) -> list[Operation]:
        """Every operation with its call: in order of the calls where there is one for each, else the last call before it."""
        nodes, found = self.nodes, self.nodes.view.host_comm_rows
        calls = [c for c in self.calls.tolist() if operation(str(self.names[c])) != "unknown"]
        if len(calls) != len(found):
            starts = nodes.ts[calls].tolist()
            calls = [calls[max(bisect_left(starts, t + 1) - 1, 0)] for t in nodes.ts[found].tolist()] if calls else []
        return [
            Operation(row, int(nodes.lane[call]), call)
            for row, call in zip(found.tolist(), calls, strict=False)
            if nodes.ts[call] <= nodes.ts[row]
        ]

    def keys(self, rows: Ints | list[int]) -> dict[int, Key]:
        """The name and the number of its occurrence in the step, of each row."""
        count: dict[tuple[int, str], int] = defaultdict(int)
        out = {}
        for row in rows if isinstance(rows, list) else rows.tolist():
            at = int(self.step[row]), str(self.names[row])
            out[row] = at[1], count[at]
            count[at] += 1
        return out

    @cached_property
    def sites(self) -> dict[int, dict[int, Key]]:
        """Lane -> row of every operator without operators inside -> its key."""
        return {lane: self.keys(rows) for lane, rows in self.leaves.items()}

    @cached_property
    def numbered(self) -> dict[int, Key]:
        """Row of every operation -> its key."""
        return self.keys([o.row for o in self.operations])

    def first_after(self, lane: int, instant: int) -> int | None:
        """Place, among the lane's operators, of the first that begins at or after an instant; None where there is none."""
        place = int(np.searchsorted(self.nodes.ts[self.leaves[lane]], instant, "left"))
        return place if place < len(self.leaves[lane]) else None

    @cached_property
    def places(self) -> dict[int, dict[Key, float]]:
        """Lane -> key of an operator -> its mean place in a step."""
        out: dict[int, dict[Key, float]] = {}
        for lane, rows in self.leaves.items():
            first: dict[int, int] = {}
            every: dict[Key, list[int]] = defaultdict(list)
            for at, row in enumerate(rows.tolist()):
                every[self.sites[lane][row]].append(at - first.setdefault(int(self.step[row]), at))
            out[lane] = {key: float(np.mean(found)) for key, found in every.items()}
        return out

    @cached_property
    def program(self) -> tuple[Key, ...]:
        """The operations of the step that has most of them: ranks where these are equal run the same program."""
        by_step: dict[int, list[Key]] = defaultdict(list)
        for op in self.operations:
            by_step[int(self.step[op.row])].append(self.numbered[op.row])
        return max((tuple(found) for found in by_step.values()), key=len, default=())

    def is_message(self, row: int) -> bool:
        """Is the operation a send or a receive?"""
        return str(self.names[row]) in _MESSAGES

    def pause(self, lane: int, place: int) -> int:
        """When the operator before a place ended."""
        return int(self.nodes.end[self.leaves[lane][place - 1]]) if place else int(self.nodes.ts[self.leaves[lane][0]])

    def pause_before(self, lane: int, row: int) -> int:
        """When the operator before the one of that row ended."""
        return self.pause(lane, int(np.searchsorted(self.leaves[lane], row)))


@dataclass(frozen=True)
class Wait:
    """A thread waits at ``site`` (row of the operator that goes on) for an operation; ``bound``: it did wait for it."""

    lane: int
    site: int
    operation: int
    bound: bool


def waits_of(parts: list[Threads]) -> list[list[Wait]]:
    """For every part the waits of its threads; operations that nobody was seen to wait for have none."""
    seen: dict[tuple[tuple[Key, ...], Key], list[_Seen]] = defaultdict(list)
    for number, threads in enumerate(parts):
        for op in threads.operations:
            place = threads.first_after(op.thread, int(threads.nodes.end[op.row]))
            if place is None:
                continue
            row = int(threads.leaves[op.thread][place])
            if threads.step[row] == threads.step[op.row]:
                inside = threads.pause(op.thread, place) <= threads.nodes.end[op.row]
                seen[threads.program, threads.numbered[op.row]].append(
                    _Seen(number, op.thread, threads.sites[op.thread][row], bool(inside))
                )
    chosen = {key: site for key, found in seen.items() if (site := _site(parts, found)) is not None}
    return [_placed(threads, chosen) for threads in parts]


class _Seen(NamedTuple):
    """The first operator of a part's thread after an operation; ``inside``: the operation ended in the pause before it."""

    part: int
    lane: int
    site: Key
    inside: bool


def _site(parts: list[Threads], found: list[_Seen]) -> Key | None:
    """The latest of the operators that came first after an operation's end, if a thread did wait there.

    Later is what is later on one and the same thread: ranks and steps may have more operators before it.
    """
    count = Counter(one.site for one in found)
    part, lane = max(((one.part, one.lane) for one in found), key=Counter((o.part, o.lane) for o in found).__getitem__)
    places = parts[part].places[lane]
    later = len(found)
    for site in sorted(count, key=lambda site: places.get(site, -1.0)):
        later -= count[site]
        if later <= _SKEWED * len(found):
            return site if any(one.inside for one in found if one.site == site) else None
    return None


def _placed(threads: Threads, chosen: dict[tuple[tuple[Key, ...], Key], Key]) -> list[Wait]:
    rows = {(lane, int(threads.step[row]), key): row for lane, sites in threads.sites.items() for row, key in sites.items()}
    out = []
    for op in threads.operations:
        key = chosen.get((threads.program, threads.numbered[op.row]))
        row = rows.get((op.thread, int(threads.step[op.row]), key)) if key is not None else None
        if threads.is_message(op.row):
            after = threads.first_after(op.thread, int(threads.nodes.end[op.row]))
            row = None if after is None else int(threads.leaves[op.thread][after])
        if row is not None and threads.nodes.ts[row] >= threads.nodes.ts[op.row]:
            place = int(np.searchsorted(threads.leaves[op.thread], row))
            end = int(threads.nodes.end[op.row])
            bound = threads.pause(op.thread, place) <= end <= int(threads.nodes.ts[row])
            out.append(Wait(op.thread, row, op.row, bound))
    return out
