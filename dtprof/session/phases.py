"""Time of each phase of the step, from the ranges that the job annotates, without any tracer."""

from __future__ import annotations

import time
from threading import get_ident

from dtprof.schema import PHASES

TIMED = frozenset(PHASES) - {"other"}


class PhaseClock:
    """Phases of one session in the thread that calls ``step()``. ``calls`` counts all ranges, for the own-cost meter.

    A phase inside another one counts in both; inside itself it counts once.
    """

    __slots__ = ("_ns", "_open", "calls", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.calls = 0
        self._ns: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}

    def enter(self, phase: str) -> None:
        """A range of this phase begins."""
        found = self._open.get(phase)
        if found is None:
            self._open[phase] = [1, time.perf_counter_ns()]
        else:
            found[0] += 1

    def leave(self, phase: str) -> None:
        """A range of this phase ends."""
        found = self._open.get(phase)
        if found is None:
            return
        found[0] -= 1
        if not found[0]:
            del self._open[phase]
            self._ns[phase] = self._ns.get(phase, 0) + time.perf_counter_ns() - found[1]

    def take(self, now: int) -> dict[str, int]:
        """ns by phase since the last time; a phase that is open goes on in the next step. The caller's thread is the loop's."""
        for phase, found in self._open.items():
            self._ns[phase] = self._ns.get(phase, 0) + now - found[1]
            found[1] = now
        taken, self._ns = self._ns, {}
        thread = get_ident()
        if thread != self.thread:
            self.thread = thread
            self._open.clear()
        return taken
