"""What one part does when: covers of compute, copies and communication on device and host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.ingest.phases import phase_of
from dtprof.intervals import Cover, Ints
from dtprof.run import Run
from dtprof.schema import DEVICE_KINDS, MISSING32, PHASES, ROLES
from dtprof.table import Table

# host operators that hand work to a communication backend; their time is no computing
_ENQUEUE = ("c10d::", "record_param_comms", "_c10d_functional::")


@dataclass
class PartView:
    """Events of one part with the selections that several analyses share; all arrays are in event order."""

    run: Run
    part: int

    @cached_property
    def events(self) -> Table:
        """The events."""
        return self.run.table("events", self.part)

    @cached_property
    def end(self) -> Ints:
        """Ends of the events."""
        return np.asarray(self.events["ts"] + self.events["dur"])

    @cached_property
    def lanes(self) -> Table:
        """The lanes."""
        return self.run.table("lanes", self.part)

    @cached_property
    def lane_device(self) -> NDArray[np.int32]:
        """Device of every event's lane; -1 is the host."""
        return self._by_lane("device", -1)

    @cached_property
    def lane_role(self) -> NDArray[np.int32]:
        """Role code of every event's lane."""
        return self._by_lane("role", -1)

    def _by_lane(self, column: str, nothing: int) -> NDArray[np.int32]:
        ids = self.lanes["id"]
        lut = np.full(int(ids.max()) + 1 if len(ids) else 0, nothing, np.int32)
        lut[ids] = self.lanes[column]
        lane = self.events["lane"]
        if len(lut) == 0:
            return np.full(len(lane), nothing, np.int32)
        return np.where(lane >= 0, lut[np.maximum(lane, 0)], nothing).astype(np.int32)

    @cached_property
    def device_rows(self) -> NDArray[np.int64]:
        """Rows that occupy a device."""
        return np.flatnonzero(self.events.is_("kind", *DEVICE_KINDS) & (self.lane_device >= 0))

    def cover(self, rows: NDArray[np.int64]) -> Cover:
        """Union of these events."""
        return intervals.union(self.events["ts"][rows], self.end[rows])

    def _device(self, *kinds: str) -> NDArray[np.int64]:
        rows = self.device_rows
        return rows[np.isin(self.events["kind"][rows], [self.events.code("kind", k) for k in kinds])]

    @cached_property
    def comm_rows(self) -> NDArray[np.int64]:
        """Communication kernels."""
        return self._device("comm")

    @cached_property
    def device_compute(self) -> Cover:
        """Kernels that are not communication."""
        return self.cover(self._device("kernel"))

    @cached_property
    def device_copy(self) -> Cover:
        """Copies and memsets."""
        return self.cover(self._device("memcpy", "memset"))

    @cached_property
    def device_comm(self) -> Cover:
        """Communication kernels."""
        return self.cover(self.comm_rows)

    @cached_property
    def host_comm_rows(self) -> NDArray[np.int64]:
        """Communication spans of a CPU backend."""
        return np.flatnonzero(self.events.is_("kind", "comm") & (self.lane_device < 0))

    @cached_property
    def host_comm(self) -> Cover:
        """Communication of a CPU backend."""
        return self.cover(self.host_comm_rows)

    @cached_property
    def host_compute(self) -> Cover:
        """Operators on the training and autograd threads, without those that only hand over communication.

        An operator that hands over communication inside (an autograd function that exchanges) may also wait for it there: while
        communication is open it counts as far as other operators inside it run.
        """
        threads = np.isin(self.lane_role, [ROLES.index("training"), ROLES.index("autograd")])
        names = self.events.values("name")
        enqueue = np.array([n.startswith(_ENQUEUE) for n in names] + [False], bool)
        ops = self.events.is_("kind", "cpu_op") & threads & ~enqueue[self.events["name"]]
        handed = threads & enqueue[self.events["name"]]
        around = self._around(np.flatnonzero(handed | (threads & self.events.is_("kind", "comm"))))
        around |= self._begun(np.flatnonzero(handed & self.events.is_("kind", "cpu_op")))
        plain, outer = self.cover(np.flatnonzero(ops & ~around)), self.cover(np.flatnonzero(ops & around))
        both = intervals.join(plain, intervals.subtract(outer, self.host_comm))
        return intervals.subtract(both, self.cover(self._enqueues(threads, enqueue)))

    def _around(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The events that enclose any of these."""
        out = np.zeros(len(self.events), bool)
        above = self.events["parent"][rows]
        while len(above := np.unique(above[above >= 0])):
            out[above] = True
            above = self.events["parent"][above]
        return out

    def _begun(self, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The events of a lane in which any of these calls begins: the autograd engine's operator is stamped as ended a little
        before what runs inside it, and so is not its parent.
        """
        out = np.zeros(len(self.events), bool)
        lanes, ts = self.events["lane"], self.events["ts"]
        for lane in np.unique(lanes[calls]).tolist():
            begins, mine = np.sort(ts[calls[lanes[calls] == lane]]), np.flatnonzero(lanes == lane)
            at = np.searchsorted(begins, ts[mine])
            inside = at < len(begins)
            inside[inside] = begins[at[inside]] <= self.end[mine[inside]]
            out[mine[inside]] = True
        return out

    def _enqueues(self, threads: NDArray[np.bool_], enqueue: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.flatnonzero(self.events.is_("kind", "cpu_op") & threads & enqueue[self.events["name"]])

    def phase_cover(self, phase: str) -> Cover:
        """Union of the host ranges of one phase."""
        return self.cover(self.phase_rows(phase))

    def phase_rows(self, phase: str) -> NDArray[np.int64]:
        """Host ranges that mark one phase."""
        mine = self.events["phase"] == PHASES.index(phase)
        return np.flatnonzero(mine & self.events.is_("kind", "range") & (self.lane_device < 0) & self._names_phase(phase))

    def _names_phase(self, phase: str) -> NDArray[np.bool_]:
        names = self.events.values("name")
        lut = np.array([phase_of(n) == phase for n in names] + [False], bool)
        named: NDArray[np.bool_] = lut[self.events["name"]]
        return named

    @cached_property
    def main_lane(self) -> int | None:
        """The compute lane with most kernel time."""
        rows = self._device("kernel")
        if len(rows) == 0:
            return None
        spent = np.bincount(self.events["lane"][rows], weights=self.events["dur"][rows].astype(float))
        return int(np.argmax(spent))

    @cached_property
    def main_rows(self) -> NDArray[np.int64]:
        """Compute kernels of the main lane."""
        rows = self._device("kernel")
        mine: NDArray[np.int64] = rows[self.events["lane"][rows] == self.main_lane]
        return mine

    @cached_property
    def device_step(self) -> NDArray[np.int32]:
        """Step in which each device row was launched."""
        return np.asarray(self.events["step"][self.device_rows], np.int32)

    @cached_property
    def on_device(self) -> bool:
        """Does this part use a device at all?"""
        return len(self.device_rows) > 0

    @cached_property
    def launch_end(self) -> Ints:
        """For each device row the end of its launch call; MISSING32-marked rows are left at -1."""
        launch = self.events["launch"][self.device_rows]
        ends: Ints = np.where(launch != MISSING32, self.end[np.maximum(launch, 0)], -1)
        return ends

    @cached_property
    def earliest_launch(self) -> tuple[Ints, Ints]:
        """Instants at which device operations start, and for each the end of the first launch call to return; -1: none known.

        Operations that start together were all ready to start: the first of their launches ended the wait for the host.
        """
        starts, known = self.events["ts"][self.device_rows], self.launch_end
        first = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
        far = np.iinfo(np.int64).max
        earliest = np.minimum.reduceat(np.where(known >= 0, known, far), first) if len(first) else known
        return starts[first], np.where(earliest == far, -1, earliest)
