"""gloo as a resource: two collectives of a group in flight, each slower for the other, and a thread that fills and empties.

Measured with torch 2.13: a process group of gloo has two worker threads; a third operation queues. The backward pass goes
on meanwhile, and slows what moves. After it DDP waits for the buckets in their order and copies each back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.model.cost import CostTable
from dtprof.model.ddp.observe import Floats

WORKERS = 2
_EPSILON = 1e-3
# what sends less converts a bucket and then divides it, each a pass over it (default_hooks.py, _compress_hook)
_COMPRESS = 2.0
# ns per byte of a pass over a whole bucket that converts or divides it, at most: copies of single gradients, in and out, may
# cost more. Alone such a pass took .05 to .13 (AVX-512); what runs of two ranks on two cores lost fits .25
_CONVERT = 0.25


@dataclass(frozen=True)
class RankWork:
    """What one rank does in a step when nothing disturbs it; ns of its own work from the step's origin.

    ``ready``: work done when each gradient is there; ``copy``: ns per byte into a bucket, and out of it again; ``per_op``: ns
    that handing over one collective takes; ``tail``: from the last bucket copied back to the end of the step.
    """

    ready: Floats
    copy: float
    per_op: float
    tail: float

    @property
    def convert(self) -> float:
        """ns per byte of one pass over a bucket that converts or divides it."""
        return min(self.copy, _CONVERT)


@dataclass(frozen=True)
class StepTimes:
    """A simulated step: per bucket ``begin`` and ``end`` of the transfer; per rank and bucket ``launched``; per rank
    ``computed`` (end of the backward computation), ``synced`` (all buckets copied back) and ``end``; ns from the origin.
    """

    begin: Floats
    end: Floats
    launched: Floats
    computed: Floats
    synced: Floats
    ends: Floats

    @property
    def length(self) -> float:
        """When the last rank ends the step."""
        return float(self.ends.max())


def simulate(
    ranks: Sequence[RankWork],
    sizes: Sequence[int],
    buckets: Sequence[Sequence[int]],
    cost: CostTable,
    wire: float = 1.0,
    view: bool = False,
    busy: float = 1.0,
    extra: float = 0.0,
    drag: float = 0.0,
) -> StepTimes:
    """One step: ``sizes`` are the parameters' bytes, ``buckets`` their members in order; ``wire`` scales what is sent.

    A collective begins when all ranks have handed it over and a worker is free, in the order of the buckets. With ``view``
    gradients lie in the buckets, and nothing is copied. Where less than all travels (``wire`` below 1) a bucket is converted
    and divided before, by the thread that hands it over, and converted back after, each at ``RankWork.convert``. ``busy``: how
    many times longer a transfer takes while a rank still computes; ``extra``: ns that each then takes beside what the cost
    says, before it moves anything, so that another one may move meanwhile; ``drag``: by how much of itself computing takes
    longer while something moves.
    """
    held = [sum(sizes[i] for i in bucket) for bucket in buckets]
    need = np.array([needs(rank, sizes, buckets, view, wire < 1) for rank in ranks])
    total = np.array([float(rank.ready.max()) for rank in ranks])
    total = np.maximum(total, need.max(axis=1))
    back = max(rank.convert for rank in ranks) if wire < 1 else 0.0
    after = [b * back for b in held]
    run = _Running(need, total, [b * wire for b in held], cost, after, busy, extra, drag)
    begin, end, launched, computed = run.through()
    synced = np.array([_finish(rank, float(computed[i]), end, held, view) for i, rank in enumerate(ranks)])
    ends = synced + np.array([rank.tail for rank in ranks])
    return StepTimes(begin, end, launched, computed, synced, ends)


def ready_at(rank: RankWork, sizes: Sequence[int], buckets: Sequence[Sequence[int]], launched: Floats, view: bool) -> Floats:
    """When each gradient is there, in a step whose buckets were handed over at ``launched``: work between these passes evenly.

    The handing over of the buckets before its own comes on top of the rank's own work.
    """
    before = np.zeros(len(sizes))
    for number, bucket in enumerate(buckets):
        before[list(bucket)] = number
    need = needs(rank, sizes, buckets, view, convert=False)
    work = rank.ready + rank.per_op * before
    return np.asarray(np.interp(work, [0.0, *need], [0.0, *launched]) + np.maximum(work - need[-1], 0.0))


def needs(rank: RankWork, sizes: Sequence[int], buckets: Sequence[Sequence[int]], view: bool, convert: bool) -> list[float]:
    """Work that a rank has done when it hands over each bucket, in order."""
    out: list[float] = []
    extra = 0.0
    for bucket in buckets:
        last = max(bucket, key=lambda i: rank.ready[i])
        extra += rank.per_op + (_COMPRESS * rank.convert * sum(sizes[i] for i in bucket) if convert else 0)
        at = float(rank.ready[last]) + (0 if view else rank.copy * sizes[last]) + extra
        out.append(max(at, out[-1]) if out else at)
    return out


def _finish(rank: RankWork, computed: float, end: Floats, held: Sequence[float], view: bool) -> float:
    """DDP waits for each bucket in order, and copies it back."""
    at = computed
    for bucket, done in zip(held, end.tolist(), strict=True):
        at = max(at, done) + (0 if view else rank.copy * bucket)
    return at


class _Running:
    """Ranks that compute and collectives that move, from event to event."""

    def __init__(
        self,
        need: Floats,
        total: Floats,
        held: Sequence[float],
        cost: CostTable,
        after: Sequence[float],
        busy: float,
        extra: float,
        drag: float,
    ) -> None:
        self.after, self.busy, self.extra, self.drag = after, busy, extra, drag
        self.need, self.total, self.held, self.cost = need, total, held, cost
        self.ranks, self.count = need.shape
        self.done = np.zeros(self.ranks)
        self.launched = np.full(need.shape, np.inf)
        self.begin, self.end = np.full(self.count, np.inf), np.full(self.count, np.inf)
        self.computed = np.full(self.ranks, np.inf)
        self.idle: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.slower: dict[tuple[float, float], tuple[float, float]] = {}
        self.queue = 0
        self.now = 0.0

    def through(self) -> tuple[Floats, Floats, Floats, Floats]:
        """To the end of all work and traffic."""
        while True:
            self._hand_over()
            self._begin()
            step = self._next()
            if not np.isfinite(step):
                return self.begin, self.end, self.launched, self.computed
            self._advance(step)

    def _hand_over(self) -> None:
        reached = (self.need <= self.done[:, None] + _EPSILON) & np.isinf(self.launched)
        self.launched[reached] = self.now
        self.computed[(self.total <= self.done + _EPSILON) & np.isinf(self.computed)] = self.now
        if not self._computing:
            self.idle.clear()

    @property
    def _computing(self) -> bool:
        """Does any rank still compute?"""
        return bool(np.isinf(self.computed).any())

    def _begin(self) -> None:
        while self.queue < self.count and len(self.left) < WORKERS and np.isfinite(self.launched[:, self.queue]).all():
            self.left[self.queue] = self.cost.alone(self.held[self.queue]) + self.after[self.queue]
            if self.extra > 0 and self._computing:
                self.idle[self.queue] = self.extra
            self.begin[self.queue] = self.now
            self.queue += 1

    def _speeds(self) -> dict[int, float]:
        """What of each transfer that moves is done per ns."""
        pace = 1 / self.busy if self._computing else 1.0
        moving = [k for k in self.left if k not in self.idle]
        if len(moving) < 2:
            return dict.fromkeys(moving, pace)
        small, large = sorted(moving, key=lambda k: self.held[k])
        pair = self.held[small], self.held[large]
        if pair not in self.slower:
            self.slower[pair] = self.cost.together(*pair)
        return {k: pace / longer for k, longer in zip((small, large), self.slower[pair], strict=True)}

    def _next(self) -> float:
        """Time to the next event; infinite where nothing is left."""
        moving = self._speeds()
        goals = np.where(np.isinf(self.launched), self.need, np.inf).min(axis=1)
        goals = np.where(np.isfinite(goals), goals, np.where(np.isinf(self.computed), self.total, np.inf))
        waits = goals - self.done
        ahead = [*(self.left[k] / moving[k] for k in moving), *self.idle.values()]
        return float(min([*(waits / self._pace).tolist(), *ahead]))

    @property
    def _pace(self) -> float:
        """Work that a rank does per ns."""
        return 1 / (1 + self.drag) if self.left else 1.0

    def _advance(self, step: float) -> None:
        moving = self._speeds()
        step = max(step, 0.0)
        self.now += step
        self.done = np.minimum(self.done + step * self._pace, np.maximum(self.total, self.need.max(axis=1)))
        for number in list(self.idle):
            self.idle[number] -= step
            if self.idle[number] <= _EPSILON:
                del self.idle[number]
        for number, speed in moving.items():
            self.left[number] -= step * speed
            if self.left[number] <= _EPSILON:
                del self.left[number]
                self.end[number] = self.now
