"""Time of each phase of the step, from the ranges that the job annotates, without any tracer.

Beside a training step all code finds the caches cold, so a range leaves no more than two events, and what they say is
worked out when lines are written, many steps at a time.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import NamedTuple

from dtprof.schema import PHASES

TIMED = frozenset(PHASES) - {"other"}
MAX_EVENTS = 50_000

Event = tuple[str | None, bool, int, int]
"""Phase (None: a range that is none), does it begin?, thread, monotonic ns."""


class Taken(NamedTuple):
    """The events of one step, and the thread and time at which it ended."""

    events: list[Event]
    thread: int
    now: int

    @property
    def is_full(self) -> bool:
        """Were there more than are kept? Then nothing is known of the step's phases."""
        return len(self.events) == MAX_EVENTS


class PhaseClock:
    """Phases of one session in the thread that calls ``step()``; ``events`` is for the ranges to append to.

    A phase inside another one counts in both; inside itself it counts once. Of a step with more than MAX_EVENTS events
    nothing is known.
    """

    __slots__ = ("_open", "_ranges", "_thread", "_unread", "events")

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._thread = get_ident()
        self._ranges = self._unread = 0
        self._open: dict[str, list[int]] = {}

    def take(self, now: int) -> Taken:
        """What was heard since the last time, for ``spent``; the caller's thread is the loop's."""
        taken = Taken(list(self.events), get_ident(), now)
        self.events.clear()
        self._unread += len(taken.events)
        return taken

    @property
    def calls(self) -> float:
        """How many ranges were taken, for the own-cost meter; those not yet worked out have two events each."""
        return self._ranges + self._unread / 2

    def spent(self, taken: Taken) -> dict[str, int]:
        """ns by phase of one step; a phase that is open goes on in the next. Steps come in their order, each once."""
        self._unread -= len(taken.events)
        if taken.thread != self._thread or taken.is_full:
            self._thread = taken.thread
            self._open.clear()
        ns: dict[str, int] = {}
        for phase, begins, thread, at in taken.events:
            self._ranges += begins
            if phase is not None and thread == self._thread:
                self._hear(ns, phase, begins, at)
        for phase, found in self._open.items():
            ns[phase] = ns.get(phase, 0) + taken.now - found[1]
            found[1] = taken.now
        return {} if taken.is_full else ns

    def _hear(self, ns: dict[str, int], phase: str, begins: bool, at: int) -> None:
        found = self._open.get(phase)
        if begins and found is None:
            self._open[phase] = [1, at]
        elif found is not None:
            found[0] += 1 if begins else -1
            if not found[0]:
                del self._open[phase]
                ns[phase] = ns.get(phase, 0) + at - found[1]
