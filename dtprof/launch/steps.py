"""Steps of a training loop, found where its optimizers are stepped; see ``iterations`` for several optimizers.

A step ends when the last optimizer of its iteration has been stepped. Which one is the last is learned from the first
iteration, whose end is therefore seen only when the second begins; that step and the next, which is shorter for it, are
warm-up. Where iterations end in different ways, each is taken to last until the first optimizer of the next.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dtprof.launch.iterations import Iterations

WARM_UP = "warm-up"
# optimizer steps in one iteration; what looks like more is a loop around phases of training
MOST = 32


class StepFinder:
    """``enter`` and ``leave`` around every step of any optimizer; ``end_step(kind or None)`` is called at its end.

    ``created`` is told of every optimizer that the job makes: while there is one, no stack is ever looked at. Steps inside
    steps (ZeroRedundancyOptimizer, a gradient scaler) are one step. ``skipped`` counts what a gradient scaler left out.
    """

    def __init__(self, end_step: Callable[[str | None], None]) -> None:
        self.skipped = 0
        self._end_step = end_step
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._names: list[str] = []
        self._open = threading.local()
        self._flow = Iterations()
        self._steps: list[int] = []
        self._counts: dict[int, tuple[int, int]] = {}
        self._iterations = 0
        self._marker: tuple[int, int] | None = None
        self._irregular = self._closed = self._late = False

    def created(self, optimizer: Any) -> None:
        """The job has made this optimizer."""
        self._alive.add(optimizer)

    def anew(self) -> StepFinder:
        """One that has seen no step, for a forked child; it knows the same optimizers."""
        other = StepFinder(self._end_step)
        other._alive = weakref.WeakSet(self._alive)
        return other

    def depth(self) -> int:
        """How many steps are open in this thread, one inside the other."""
        return int(getattr(self._open, "depth", 0))

    def enter(self, optimizer: Any) -> None:
        """The step of this optimizer begins."""
        self._open.depth = self.depth() + 1
        if self._open.depth > 1:
            if optimizer is not self._open.outer:
                self._alive.discard(optimizer)
            return
        self._open.outer = optimizer
        number = self._number(optimizer)
        if self._begins(number) and self._steps:
            self._next_iteration()
        self._steps.append(number)
        if len(self._steps) > MOST:
            self._flow.give_up()

    def leave(self) -> None:
        """The step that was entered last has ended, well or not."""
        self._open.depth = max(self.depth() - 1, 0)
        if self._open.depth:
            return
        self._open.outer = None
        alone = len(self._alive) <= 1 and len(self._names) == 1
        last = (self._steps[-1], self._steps.count(self._steps[-1])) if self._steps else None
        if not self._closed and not self._irregular and (alone or (last is not None and last == self._marker)):
            self._close()

    def finish(self) -> None:
        """The job ends: an iteration whose end was not seen ends here."""
        if self._steps and not self._closed:
            self._closed = True
            self._end_step(WARM_UP)
        self._count()

    def pattern(self) -> str:
        """Which optimizers are stepped how often per iteration, in words."""
        counts = dict(self._counts)
        for number in set(self._steps):
            had = self._steps.count(number)
            low, high = counts.get(number, (0 if self._iterations else had, had))
            counts[number] = (low, max(high, had))
        said = [
            f"{self._names[n]} {low if low == high else f'{low} to {high}'} {'time' if high == 1 else 'times'}"
            for n, (low, high) in sorted(counts.items())
        ]
        skipped = f"; {self.skipped} steps left out by the gradient scaler" if self.skipped else ""
        return f"per step: {', '.join(said)}{skipped}" if said else ""

    def _number(self, optimizer: Any) -> int:
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = len(self._names)
            kind = type(optimizer).__name__
            same = sum(name.partition(" ")[0] == kind for name in self._names)
            self._names.append(f"{kind} {same + 1}" if same else kind)
        return number

    def _begins(self, number: int) -> bool:
        if len(self._alive) <= 1 and len(self._names) == 1:
            return True
        begins = self._flow.begins(number, sys._getframe(2))
        return begins or len(self._names) == 1

    def _close(self) -> None:
        self._closed = True
        kind = WARM_UP if self._late else None
        self._late = False
        self._end_step(kind)

    def _next_iteration(self) -> None:
        """End the iteration before, as late as this, if nothing told its end in time."""
        if not self._closed:
            kind = None if self._irregular and self._late else WARM_UP
            self._late = True
            self._end_step(kind)
        marker = (self._steps[-1], self._steps.count(self._steps[-1]))
        if self._marker is not None and marker != self._marker:
            self._irregular = True
        self._marker = marker
        self._count()
        self._closed = False

    def _count(self) -> None:
        """Add the iteration that has ended to the pattern; what was never stepped in an earlier one was stepped 0 times."""
        if not self._steps:
            return
        for number in range(len(self._names)):
            had = self._steps.count(number)
            low, high = self._counts.get(number, (0 if self._iterations else had, had))
            self._counts[number] = (min(low, had), max(high, had))
        self._iterations += 1
        self._steps = []
