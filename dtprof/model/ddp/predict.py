"""What another bucket size, wire type or network would make of a measured DDP step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dtprof import intervals
from dtprof.model.cost import CostTable, from_spans
from dtprof.model.ddp.buckets import Caps, assign
from dtprof.model.ddp.gloo import RankWork, StepTimes, simulate
from dtprof.model.ddp.observe import Floats, RankStep, Seen

# copying a byte is not slower than this on any machine that trains, ns
_SLOWEST_COPY = 5.0
# computing does not slow a transfer more than this on any machine that was seen
_MOST_BUSY = 3.0
# ns of the computing thread that a byte costs which gloo moves meanwhile (copying and adding take the core, or its caches), and
# how much of itself computing loses at most. From two and four ranks on two cores; a rank with cores to spare loses less
_CPU_PER_BYTE, _MOST_DRAG = 1.6, 0.25
# what a predicted change was off by, as a share of the step: with this, nine of ten of 79 bucket sizes in ten networks were
# inside their intervals (docs/predict.md)
_MODEL_ERROR = 0.04
# what a collective may cost the computing thread more than was measured, ns: with it, advised sizes were best (docs/predict.md)
_CAUTION_NS = 4.5e5
# of the width of the interval: how sure one wants to be (95%, normal)
_SIGMAS = 1.96


@dataclass(frozen=True)
class Change:
    """What is changed: bucket caps; ``wire``, the share of the bytes that travels, converted on both sides where below 1;
    network ``bandwidth`` and ``latency`` as multiples; ``view``: gradients lie in the buckets; ``accumulate``: backward passes
    per reduction; ``ideal_rank``: this rank works as the median of the others; ``free``: communication takes no time.
    """

    caps: Caps | None = None
    wire: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    view: bool = False
    accumulate: int = 1
    ideal_rank: int | None = None
    free: bool = False


@dataclass(frozen=True)
class Prediction:
    """A step under a change, ns: value, interval, and what it rests on. Errors and fractions are ratios.

    ``cautious_ns``: the step where every collective costs the computing thread 0.45 ms more than was measured.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    cautious_ns: float
    base_ns: float
    replay_error: float
    buckets: int
    times: StepTimes


class DdpModel:
    """The DDP steps of a run as rank works, and what its collectives cost. Replays the run, and predicts changes of it."""

    def __init__(
        self, seen: Seen, cost: CostTable, held: tuple[float, float] | None = None, cpu_per_byte: float = _CPU_PER_BYTE
    ) -> None:
        self.seen, self.cost = seen, cost
        self.busy, self.extra = in_job(seen, cost) if held is None else held
        self.per_op, self.cpu_per_byte = seen.handover_ns or cost.per_op or 0.0, cpu_per_byte
        self.order = [i for bucket in seen.buckets for i in bucket]
        self.traced = {step: [self._work(r, ranks, r.ready) for r in ranks] for step, ranks in seen.steps.items()}
        self.works = {step: [self._work(r, ranks, r.plain) for r in ranks] for step, ranks in seen.steps.items()}
        self.order = sorted(range(len(seen.sizes)), key=lambda i: self._typical_ready(i))
        self.base = {step: self._step(works, Change()) for step, works in self.works.items()}
        self.replayed = {step: self._step(works, Change()) for step, works in self.traced.items()}

    def _typical_ready(self, parameter: int) -> float:
        return float(np.median([max(w.ready[parameter] for w in works) for works in self.works.values()]))

    def _drag(self, cost: CostTable) -> float:
        """By how much of itself computing takes longer while something moves: what a rank moves per ns costs CPU time."""
        largest = float(cost.sizes[-1])
        time = cost.alone(largest)
        moved = largest * 2 * (self.seen.n - 1) / self.seen.n
        return min(self.cpu_per_byte * moved / time, _MOST_DRAG) if time > 0 else 0.0

    def _work(self, rank: RankStep, ranks: Sequence[RankStep], times: Floats) -> RankWork:
        """Take out of a measured step what its own collectives put in; ``times``: when its gradients are ready."""
        seen, drag = self.seen, self._drag(self.cost)
        before = np.searchsorted(np.sort(rank.launched), rank.ready, "left")
        begin = np.max([r.launched for r in ranks], axis=0)
        moving = intervals.union(begin.astype(np.int64), np.maximum(begin, rank.ended).astype(np.int64))
        beside = intervals.measure(moving, np.zeros(len(rank.ready), np.int64), rank.ready.astype(np.int64))
        ready = times - self.per_op * before - drag / (1 + drag) * beside
        copy = _copy(rank, seen)
        held = seen.bytes
        at = max(float(rank.ready.max()) + copy * seen.sizes[int(np.argmax(rank.ready))], 0.0)
        for size, done in zip(held.tolist(), rank.ended.tolist(), strict=True):
            at = max(at, done) + copy * size
        return RankWork(ready, copy, self.per_op, rank.end - at)

    def _step(self, works: Sequence[RankWork], change: Change) -> StepTimes:
        seen = self.seen
        buckets = seen.buckets if change.caps is None else assign(seen.sizes, self.order, change.caps)
        cost = self.cost.stretched(0.0) if change.free else self.cost.scaled(change.bandwidth, change.latency)
        if change.ideal_rank is not None:
            works = _like_the_others(works, self.ranks.index(change.ideal_rank))
        view = change.view or bool(seen.config.get("gradient_as_bucket_view"))
        return simulate(works, seen.sizes, buckets, cost, change.wire, view, self.busy, self.extra, self._drag(cost))

    def step_times(self, step: int, change: Change) -> StepTimes:
        """One captured step under a change."""
        return self._step(self.works[step], change)

    @property
    def ranks(self) -> list[int]:
        """Ranks in the order of the works."""
        return [r.rank for r in next(iter(self.seen.steps.values()))]

    def _length(self, works: Sequence[RankWork], change: Change) -> float:
        """One step of ``accumulate`` backward passes, the last of which reduces, ns."""
        times = self._step(works, change)
        return times.length + (change.accumulate - 1) * max(self._unreduced(work) for work in works)

    def _unreduced(self, work: RankWork) -> float:
        """Forward and backward pass without reduction, ns: nothing is copied or handed over.

        But it adds its gradients to those of the pass before (the first one leaves that to the last): a copy's time.
        """
        last = int(np.argmax(work.ready))
        copied = sum(self.seen.sizes) - self.seen.sizes[last]
        return float(work.ready[last]) - work.copy * copied + work.copy * sum(self.seen.sizes)

    @property
    def replay_errors(self) -> list[float]:
        """(replayed - measured) / measured of every step, by the last rank to end it."""
        return [
            (self.replayed[step].length - max(r.end for r in ranks)) / max(r.end for r in ranks)
            for step, ranks in self.seen.steps.items()
        ]

    @property
    def replay_error(self) -> float:
        """Median of the absolute replay errors."""
        return float(np.median(np.abs(self.replay_errors)))

    def predict(self, change: Change) -> Prediction:
        """The step under a change: the typical step of the run, moved by what the simulation of each captured step says.

        The interval holds the spread over the steps, that of the collectives' cost, the model's own error, and the replay's.
        """
        steps = list(self.works)
        gains = [self._length(self.works[s], change) - self.base[s].length for s in steps]
        gain = self._gain(change)
        value = self.seen.typical_ns + gain
        noise = float(np.std(gains)) / max(len(gains), 1) ** 0.5
        off = max(abs(other._gain(change) - gain) for other in self._variants)
        half = float(np.linalg.norm([_SIGMAS * noise, off, _MODEL_ERROR * value])) + self.replay_error * value
        middle = steps[int(np.argsort(gains)[len(gains) // 2])]
        times = self._step(self.works[middle], change)
        cautious = self.seen.typical_ns + self._cautious._gain(change)
        return Prediction(
            value, value - half, value + half, cautious, self.seen.typical_ns, self.replay_error, len(times.begin), times
        )

    @cached_property
    def _cautious(self) -> DdpModel:
        seen = replace(self.seen, handover_ns=self.per_op + _CAUTION_NS)
        return DdpModel(seen, self.cost, (self.busy, self.extra), self.cpu_per_byte)

    @cached_property
    def _variants(self) -> list[DdpModel]:
        """The same steps with the costs at the ends of what is not known of them, and with cores to spare."""
        held = self.busy, self.extra
        return [*(DdpModel(self.seen, cost, held) for cost in self.cost.variants()), DdpModel(self.seen, self.cost, held, 0.0)]

    def _gain(self, change: Change) -> float:
        """Median over the steps of the time that a change adds, ns."""
        return float(np.median([self._length(works, change) - self.base[step].length for step, works in self.works.items()]))


def _like_the_others(works: Sequence[RankWork], place: int) -> list[RankWork]:
    """The works with the one at ``place`` replaced by the median of the others, gradient by gradient."""
    others = [w for i, w in enumerate(works) if i != place]
    typical = RankWork(
        np.median([w.ready for w in others], axis=0), *(float(np.median([getattr(w, f) for w in others])) for f in
        ("copy", "per_op", "tail")),
    )  # fmt: skip
    return [typical if i == place else w for i, w in enumerate(works)]


def cost_of_run(seen: Seen) -> CostTable | None:
    """Costs from the collectives of the run alone; None where all have one size."""
    found = spans(seen)
    sizes, alone, beside = (np.array([getattr(t, f) for t in found], float) for f in ("size", "alone", "beside"))
    return from_spans(sizes, alone, beside, seen.n if seen.n > 1 else None)


@dataclass(frozen=True)
class Transfer:
    """One collective of a captured step: bytes; ns ``alone`` and ``beside`` another one, and how much of each while a rank
    computed. It begins when all ranks are there.
    """

    size: float
    alone: float
    beside: float
    alone_busy: float
    beside_busy: float


def spans(seen: Seen) -> list[Transfer]:
    """The collectives of all captured steps."""
    out = []
    held = seen.bytes
    for ranks in seen.steps.values():
        begin = np.max([r.launched for r in ranks], axis=0)
        end = np.max([r.ended for r in ranks], axis=0)
        computed = max(float(r.ready.max()) for r in ranks)
        for k in np.flatnonzero(end > begin).tolist():
            others = [(max(begin[k], begin[j]), min(end[k], end[j])) for j in range(len(held)) if j != k]
            shared = min(sum(hi - lo for lo, hi in others if hi > lo), end[k] - begin[k])
            early = sum(min(hi, computed) - lo for lo, hi in others if hi > lo and computed > lo)
            early = min(early, shared)
            whole_busy = max(0.0, min(end[k], computed) - begin[k])
            alone = end[k] - begin[k] - shared
            out.append(Transfer(held[k], alone, shared, min(max(whole_busy - early, 0.0), alone), early))
    return out


def in_job(seen: Seen, cost: CostTable) -> tuple[float, float]:
    """(how many times longer a transfer takes beside computing, ns that each takes more) than the cost table says.

    The first from the larger collectives, the second from the smaller ones; where all have one size the first takes all. Costs
    that come from the run itself give (1, 0).
    """
    found = [t for t in spans(seen) if t.alone_busy + t.beside_busy > 0]
    if not found:
        return 1.0, 0.0
    middle = (min(t.size for t in found) + max(t.size for t in found)) / 2
    ratios, rest = [], []
    for t in found:
        slow = cost.slowdown(t.size)
        early = t.alone_busy + t.beside_busy / slow
        late = (t.alone - t.alone_busy) + (t.beside - t.beside_busy) / slow
        todo = cost.alone(t.size) - late
        if t.size >= middle and early > 0.5 * (early + late) and todo > 0:
            ratios.append(early / todo)
        rest.append((t.size, early, late))
    busy = float(np.clip(np.median(ratios), 1.0, _MOST_BUSY)) if ratios else 1.0
    small = [early + late - busy * max(cost.alone(size) - late, 0.0) for size, early, late in rest if size < middle]
    return busy, max(float(np.median(small)), 0.0) if small else 0.0


def _copy(rank: RankStep, seen: Seen) -> float:
    """ns per byte with which the backward pass ends when DDP copies the buckets back; 0 where its end is not marked."""
    if rank.backward is None:
        return 0.0
    held, computed = seen.bytes.tolist(), float(rank.ready.max())

    def end(copy: float) -> float:
        at = computed
        for size, done in zip(held, rank.ended.tolist(), strict=True):
            at = max(at, done) + copy * size
        return at

    low, high = 0.0, _SLOWEST_COPY
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if end(middle) < rank.backward[1] else (low, middle)
    return low
