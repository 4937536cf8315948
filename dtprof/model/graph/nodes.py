"""What one part brings to the step graph: host calls that matter, device operations, and how they hang together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.covers import PartView
from dtprof.intervals import Cover, Ints
from dtprof.run import Run
from dtprof.schema import MISSING32

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_WAIT = re.compile(r"StreamWaitEvent")
_RECORD = re.compile(r"EventRecord")
_STREAM_SYNC = re.compile(r"StreamSynchronize")
_DEVICE_SYNC = re.compile(r"(?:Device|Ctx)Synchronize")
_EVENT_SYNC = re.compile(r"EventSynchronize")
_PAGEABLE = re.compile(r"DtoH.*Pageable|Device -> Pageable")
# an event synchronisation shorter than this found its event done
_LONG_EVENT_SYNC_NS = 20_000


@dataclass
class PartNodes:
    """Rows of one part's events that become nodes, in event order; ``ts`` and ``end`` are on the run's clock, in ns."""

    run: Run
    part: int
    rank: int | None
    offset: int

    @cached_property
    def view(self) -> PartView:
        """The part's events with the selections that analyses share."""
        return PartView(self.run, self.part)

    @cached_property
    def ts(self) -> Ints:
        """Starts of all events on the run's clock."""
        return np.asarray(self.view.events["ts"] + self.offset)

    @cached_property
    def end(self) -> Ints:
        """Ends of all events on the run's clock."""
        return np.asarray(self.view.end + self.offset)

    @cached_property
    def lane(self) -> NDArray[np.int32]:
        """Lane of all events."""
        return np.asarray(self.view.events["lane"])

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Runtime calls whose name has the pattern."""
        names = self.view.events.values("name")
        lut = np.array([bool(pattern.search(n)) for n in names] + [False], bool)
        found: Mask = lut[self.view.events["name"]] & self._runtime
        return found

    @cached_property
    def _runtime(self) -> Mask:
        return self.view.events.is_("kind", "runtime")

    @cached_property
    def threads(self) -> NDArray[np.int32]:
        """Host lanes on which operators run; others, as a watchdog that polls, order nothing.

        Where the source records no operators, the lanes from which device work is launched.
        """
        events = self.view.events
        ops = events.is_("kind", "cpu_op") & (self.view.lane_device < 0) & (self.lane >= 0)
        if not ops.any():
            launched = np.asarray(events["launch"])[self.ops]
            return np.unique(self.lane[launched[launched >= 0]]).astype(np.int32)
        found: NDArray[np.int32] = np.unique(self.lane[ops]).astype(np.int32)
        return found

    @cached_property
    def waits(self) -> Mask:
        """Calls that make a stream wait for an event."""
        return self.named(_WAIT)

    @cached_property
    def records(self) -> Mask:
        """Calls that record an event on a stream."""
        return self.named(_RECORD)

    @cached_property
    def stream_syncs(self) -> Mask:
        """Calls that block until a stream is empty."""
        return self.named(_STREAM_SYNC)

    @cached_property
    def device_syncs(self) -> Mask:
        """Calls that block until the device is empty."""
        return self.named(_DEVICE_SYNC)

    @cached_property
    def event_syncs(self) -> Mask:
        """Calls that block until an event has happened, and did block."""
        return self.named(_EVENT_SYNC) & (self.end - self.ts > _LONG_EVENT_SYNC_NS)

    @cached_property
    def ops(self) -> Rows:
        """Device operations."""
        return self.view.device_rows

    @cached_property
    def is_comm(self) -> Mask:
        """Events that are communication kernels."""
        mask = np.zeros(len(self.ts), bool)
        mask[self.view.comm_rows] = True
        return mask

    @cached_property
    def launch(self) -> NDArray[np.int32]:
        """Launch call of all events; negative where there is none or it is on a thread that orders nothing."""
        launch = np.asarray(self.view.events["launch"])
        known = launch >= 0
        good = known & np.isin(self.lane[np.maximum(launch, 0)], self.threads)
        return np.where(good, launch, MISSING32).astype(np.int32)

    @cached_property
    def copies_back(self) -> Rows:
        """Copies from the device to pageable memory: their calls return after them."""
        events = self.view.events
        lut = np.array([bool(_PAGEABLE.search(n)) for n in events.values("name")] + [False], bool)
        mine = self.ops[lut[events["name"][self.ops]]]
        return np.asarray(mine[self.launch[mine] >= 0])

    @cached_property
    def calls(self) -> Rows:
        """Host calls that launch, wait, record or block, outermost ones, on threads that order something."""
        wanted = self.waits | self.records | self.stream_syncs | self.device_syncs | self.event_syncs
        launched = self.launch[self.ops]
        wanted[launched[launched >= 0]] = True
        wanted &= np.isin(self.lane, self.threads)
        parent = self.view.events["parent"]
        nested = (parent >= 0) & wanted[np.maximum(parent, 0)]
        return np.flatnonzero(wanted & ~nested)

    @cached_property
    def outer(self) -> dict[int, int]:
        """Nested call -> the outermost call around it that is a node."""
        chosen = np.zeros(len(self.ts), bool)
        chosen[self.calls] = True
        parent = self.view.events["parent"]
        launched = self.launch[self.ops]
        out: dict[int, int] = {}
        for call in np.unique(launched[launched >= 0]).tolist():
            at = call
            while at >= 0 and not chosen[at]:
                at = int(parent[at])
            if at >= 0:
                out[call] = at
        return out

    def activity(self, lane: int) -> Cover:
        """When a host thread does something: operators and runtime calls, unaligned event clock shifted to the run's."""
        events = self.view.events
        rows = np.flatnonzero((self.lane == lane) & events.is_("kind", "cpu_op", "runtime"))
        starts, ends = self.view.cover(rows)
        return starts + self.offset, ends + self.offset

    def operators(self, lane: int) -> Cover:
        """When a host thread is inside an operator."""
        rows = np.flatnonzero((self.lane == lane) & self.view.events.is_("kind", "cpu_op"))
        starts, ends = self.view.cover(rows)
        return starts + self.offset, ends + self.offset
