"""One step of FSDP2, event by event: ranks that work, hand over collectives and wait for them, and what moves these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dtprof.model.fsdp.program import Act, Expanded

# a process group of gloo has two worker threads; a third operation queues (dtprof.model.ddp.gloo)
WORKERS = 2
_EPSILON = 1e-3


@dataclass(frozen=True)
class Moving:
    """What the operations of a step cost: ns of each alone, how many times longer each takes beside another one, and how many
    ns of it are left when it is over for each rank; ``workers``: how many move at a time.
    """

    alone: Sequence[float]
    slowdown: Sequence[float]
    early: Sequence[Sequence[float]]
    workers: int = WORKERS


@dataclass
class StepTimes:
    """A simulated step, ns from its origin: when each operation was handed over by each rank, began and ended; when each act
    of each rank began and ended; when each rank ended the step.
    """

    handed: list[list[float]]
    begin: list[float]
    end: list[float]
    acts: list[list[tuple[float, float]]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @property
    def length(self) -> float:
        """When the last rank ends the step."""
        return max(self.ends)

    def exposed(self, ranks: Sequence[Expanded]) -> list[float]:
        """ns that each rank's thread waited for operations."""
        return [
            sum(hi - lo for act, (lo, hi) in zip(rank.acts, times, strict=True) if act.doing == "wait")
            for rank, times in zip(ranks, self.acts, strict=True)
        ]


def simulate(ranks: Sequence[Expanded], moving: Moving, begins: Sequence[float] | None = None) -> StepTimes:
    """One step. All ranks issue the same operations in the same order; one begins when all have handed it over and a worker
    is free. ``begins``: when each rank begins the step. ValueError where a rank waits for what nobody issues.
    """
    return _Running(ranks, moving, begins or [0.0] * len(ranks)).through()


class _Thread:
    def __init__(self, acts: Sequence[Act], begin: float) -> None:
        self.acts, self.begin = acts, begin
        self.place = 0
        self.left = begin
        self.since = 0.0
        self.times: list[tuple[float, float]] = []

    @property
    def act(self) -> Act | None:
        return self.acts[self.place] if self.place < len(self.acts) else None


class _Running:
    def __init__(self, ranks: Sequence[Expanded], moving: Moving, begins: Sequence[float]) -> None:
        count = len(ranks[0].ops)
        self.moving = moving
        self.threads = [_Thread(rank.acts, begin) for rank, begin in zip(ranks, begins, strict=True)]
        self.out = StepTimes([[-1.0] * len(ranks) for _ in range(count)], [-1.0] * count, [-1.0] * count)
        self.ends = [-1.0] * len(ranks)
        self.flying: dict[int, float] = {}
        self.queue = 0
        self.now = 0.0

    def through(self) -> StepTimes:
        while True:
            while self._move():
                pass
            waits = [t.left for n, t in enumerate(self.threads) if t.left > _EPSILON and self.ends[n] < 0]
            waits += [left * self._slow(op) for op, left in self.flying.items()]
            waits += [short for n, t in enumerate(self.threads) if (short := self._until_over(n, t)) > _EPSILON]
            if not waits:
                break
            self._advance(min(waits))
        if min(self.ends) < 0:
            raise ValueError("a rank waits for an operation that not all ranks issue")
        self.out.ends = self.ends
        self.out.acts = [t.times for t in self.threads]
        return self.out

    def _slow(self, op: int) -> float:
        return self.moving.slowdown[op] if len(self.flying) > 1 else 1.0

    def _over(self, op: int, number: int) -> bool:
        """Is an operation over for a rank?"""
        return self.out.end[op] >= 0 or self.flying.get(op, float("inf")) <= self.moving.early[op][number] + _EPSILON

    def _until_over(self, number: int, thread: _Thread) -> float:
        """ns until what a thread waits for is over for it; 0 where it waits for nothing that moves."""
        act = thread.act
        if act is None or act.doing != "wait" or thread.left > _EPSILON or act.op not in self.flying:
            return 0.0
        return (self.flying[act.op] - self.moving.early[act.op][number]) * self._slow(act.op)

    def _move(self) -> bool:
        """Do all that takes no time; True where something was done."""
        moved = False
        for number, thread in enumerate(self.threads):
            while thread.left <= _EPSILON and self.ends[number] < 0 and self._next(number, thread):
                moved = True
        count = len(self.out.begin)
        while self.queue < count and len(self.flying) < self.moving.workers and min(self.out.handed[self.queue]) >= 0:
            self.flying[self.queue] = self.moving.alone[self.queue]
            self.out.begin[self.queue] = self.now
            self.queue += 1
            moved = True
        for op in [op for op, left in self.flying.items() if left <= _EPSILON]:
            del self.flying[op]
            self.out.end[op] = self.now
            moved = True
        return moved

    def _next(self, number: int, thread: _Thread) -> bool:
        """The thread goes on by one act, if it can."""
        act = thread.act
        if act is None:
            self.ends[number] = self.now
            return True
        if act.doing == "wait" and not self._over(act.op, number):
            return False
        if act.doing == "issue":
            self.out.handed[act.op][number] = self.now
        begin = thread.since if act.doing == "wait" else self.now
        thread.left = act.ns if act.doing in ("work", "issue") else 0.0
        thread.times.append((begin, self.now + thread.left))
        thread.place += 1
        thread.since = self.now
        return True

    def _advance(self, step: float) -> None:
        slow = {op: self._slow(op) for op in self.flying}
        self.now += step
        for thread in self.threads:
            if thread.left > _EPSILON:
                thread.left = max(thread.left - step, 0.0)
                if thread.left <= _EPSILON:
                    thread.left = 0.0
                    thread.since = self.now
        for op in self.flying:
            self.flying[op] -= step / slow[op]
