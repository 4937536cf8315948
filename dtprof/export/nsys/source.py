"""One part of a run as an nsys session sees it: one process, threads with numbers, times from the session's start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dtprof.export.common import aligned
from dtprof.export.nsys.sheet import StringIds
from dtprof.intervals import Ints
from dtprof.run import Part, Run
from dtprof.schema import DEVICE_KINDS, MISSING, MISSING32
from dtprof.table import Table

# a process or thread number has 24 bits in a global id; Linux's largest pid is 2**22
_LARGEST = 2**24 - 1
# the machine's number in global ids
VM = 1
# pid of a part whose process is not known: this plus its ordinal
_ASSUMED_PID = 2**22 + 1
# rows of a table that are made at a time
_PIECE = 200_000


@dataclass
class Source:
    """A part and what all of its nsys tables need; ``zero`` is the instant (ns, aligned clock) that nsys calls 0."""

    run: Run
    part: Part
    zero: int
    strings: StringIds

    @cached_property
    def events(self) -> Table:
        """The events."""
        return self.run.table("events", self.part.ordinal)

    @cached_property
    def lanes(self) -> Table:
        """The lanes."""
        return self.run.table("lanes", self.part.ordinal)

    @cached_property
    def start(self) -> Ints:
        """Start of every event in ns since ``zero``."""
        return aligned(self.part, self.events["ts"], self.zero)

    @cached_property
    def end(self) -> Ints:
        """End of every event in ns since ``zero``."""
        return np.asarray(self.start + self.events["dur"])

    @cached_property
    def pid(self) -> int:
        """The process."""
        told = [self.part.pid or 0, *(int(p) for p in self.lanes["process"][self._host_first].tolist())]
        return next((p for p in told if 0 < p <= _LARGEST), _ASSUMED_PID + self.part.ordinal)

    @cached_property
    def _host_first(self) -> Ints:
        """Rows of the host lanes, training threads first."""
        rows = np.flatnonzero(self.lanes["device"] < 0)
        return rows[np.argsort(~self.lanes.is_("role", "training")[rows], kind="stable")]

    @property
    def global_vm(self) -> int:
        """Number of the machine."""
        return VM << 48

    @property
    def global_pid(self) -> int:
        """The process in the form of nsys: machine << 48 | pid << 24."""
        return self.global_vm | (self.pid << 24)

    @cached_property
    def threads(self) -> dict[int, int]:
        """Thread number of every host lane: its own where it fits and is free, else the next free one from the pid on."""
        taken: set[int] = set()
        found: dict[int, int] = {}
        rows = self._host_first.tolist()
        for row in rows:
            lane, thread = int(self.lanes["id"][row]), int(self.lanes["thread"][row])
            if 0 < thread <= _LARGEST and thread not in taken:
                found[lane] = thread
                taken.add(thread)
        free = self.pid
        for row in rows:
            lane = int(self.lanes["id"][row])
            if lane not in found:
                while free in taken:
                    free += 1
                found[lane] = free
                taken.add(free)
        return found

    @property
    def main_thread(self) -> int:
        """Global id of the first training thread; of the process's first thread where there is none."""
        rows = self._host_first
        return self.global_pid | (self.threads[int(self.lanes["id"][rows[0]])] if len(rows) else self.pid)

    def _by_lane(self, of: dict[int, int]) -> Ints:
        lane = self.events["lane"]
        size = max([int(lane.max()) + 1 if len(lane) else 0, *(k + 1 for k in of)], default=0)
        lut = np.full(size + 1, -1, np.int64)
        for key, value in of.items():
            if key >= 0:
                lut[key] = value
        found: Ints = lut[np.where(lane < 0, size, lane)]
        return found

    @cached_property
    def global_tid(self) -> Ints:
        """Global thread id of every event on a host lane; -1 elsewhere."""
        return self._by_lane({lane: self.global_pid | thread for lane, thread in self.threads.items()})

    def _column(self, column: str, nothing: int) -> Ints:
        """A column of the lanes for every event; ``nothing`` where it is missing."""
        values = self.lanes[column].astype(np.int64)
        known = np.where(self.lanes.known(column), values, nothing)
        return self._by_lane(dict(zip(self.lanes["id"].tolist(), known.tolist(), strict=True)))

    @cached_property
    def device(self) -> Ints:
        """Device of every event; -1 on the host."""
        return self._column("device", -1)

    @cached_property
    def stream(self) -> Ints:
        """Stream of every event on a device lane; 0 where it is not known."""
        return self._column("stream", 0)

    @cached_property
    def context(self) -> Ints:
        """Context of every event on a device lane; 1 where it is not known."""
        return self._column("context", 1)

    @cached_property
    def device_rows(self) -> Ints:
        """Rows that occupy a device."""
        return np.flatnonzero(self.events.is_("kind", *DEVICE_KINDS) & (self.device >= 0))

    @cached_property
    def calls(self) -> Ints:
        """Rows of CUDA calls on host threads."""
        return np.flatnonzero(self.events.is_("kind", "runtime") & (self.device < 0))

    @cached_property
    def correlation(self) -> Ints:
        """Correlation id of every call and device operation as it is written; MISSING is NULL.

        A device operation has the id of its launch call and no other; calls that share an id with an earlier one and calls
        that have none but launch something get ids of their own, so that joining by process and id gives our launches.
        """
        own, launch = self.events["correlation"], self.events["launch"]
        out = np.full(len(self.events), MISSING, np.int64)
        calls, ids = self.calls, own[self.calls]
        known = ids != MISSING
        _, first = np.unique(ids[known], return_index=True)
        out[calls[known][first]] = ids[known][first]
        launched = self.device_rows[launch[self.device_rows] != MISSING32]
        causes = np.unique(launch[launched])
        missing = causes[out[causes] == MISSING]
        fresh = int(own[own != MISSING].max(initial=0)) + 1
        out[missing] = fresh + np.arange(len(missing))
        out[launched] = out[launch[launched]]
        alone = self.device_rows[launch[self.device_rows] == MISSING32]
        orphans = alone[~np.isin(own[alone], ids)]
        out[orphans] = own[orphans]
        return out

    def rows_of(self, *kinds: str) -> Ints:
        """Device rows of these kinds."""
        mask: NDArray[np.bool_] = self.events.is_("kind", *kinds)[self.device_rows]
        return self.device_rows[mask]


def pieces(rows: Ints) -> Iterator[Ints]:
    """Rows a piece at a time, so that no table is held whole."""
    for start in range(0, len(rows), _PIECE):
        yield rows[start : start + _PIECE]
