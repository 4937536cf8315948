"""Enumerates, asks for memory, then for time, and remembers why each layout lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from dtprof.numbers import percent, seconds, size
from dtprof.plan.memory import fits, host_bytes, peak_bytes
from dtprof.plan.memory.breakdown import Memory
from dtprof.plan.search.found import Candidate, Found, Miss, pareto
from dtprof.plan.search.mend import mend
from dtprof.plan.search.space import Space
from dtprof.plan.search.wanted import Wanted
from dtprof.plan.search.words import brief
from dtprof.plan.spec import Cluster, Layout, Offload
from dtprof.plan.time.step import Estimator

Progress = Callable[[int, int], None]
# gives the step times on a cluster
Clock = Callable[[Cluster], Estimator]
MEMORY, SLOWER, CROSSING = "memory", "slower", "tensor parallelism over nodes"


def search(wanted: Wanted, clock: Clock, progress: Progress | None = None) -> Found:
    """The fastest layout that fits. What lies on the host is tried only where nothing fits without."""
    found = _Search(wanted, clock, progress).run(())
    for many in range(1, len(wanted.offload) + 1):
        if found.best is not None:
            break
        found = _Search(wanted, clock, progress).run(wanted.offload[:many])
    return found if found.best is not None else replace(found, mend=mend(wanted))


class _Search:
    def __init__(self, wanted: Wanted, clock: Clock, progress: Progress | None) -> None:
        self.wanted, self.clock, self.progress = wanted, clock, progress
        self.misses: dict[str, Miss] = {}
        self.best_of: dict[tuple[int, ...], Candidate] = {}
        self.front: list[Candidate] = []
        self.tried = 0

    def run(self, offload: tuple[Offload, ...]) -> Found:
        spaces = [
            (replace(self.wanted.cluster, gpus=gpus), Space(self.wanted, gpus, batch, self._skip))
            for gpus in self.wanted.gpus or (self.wanted.cluster.gpus,)
            for batch in self.wanted.batches
        ]
        work = [(cluster, space, grid) for cluster, space in spaces for grid in space.grids()]
        clocks: dict[int, Estimator] = {}
        for done, (cluster, space, grid) in enumerate(work):
            if cluster.gpus not in clocks:
                clocks[cluster.gpus] = self.clock(cluster)
            self._grid(cluster, space, grid, offload, clocks[cluster.gpus])
            if self.progress:
                self.progress(done + 1, len(work))
        return self._result()

    def _grid(
        self,
        cluster: Cluster,
        space: Space,
        grid: tuple[int, int, int, int, int],
        offload: tuple[Offload, ...],
        clock: Estimator,
    ) -> None:
        here: list[Candidate] = []
        # layouts that differ in what is recomputed alone come one after another, the fastest first: one that fits is enough
        for _, alike in groupby(space.layouts(grid, offload), key=lambda layout: replace(layout, recompute="none")):
            here += self._first_that_fits(cluster, alike, clock)
        for one in here:
            key = (one.layout.gpus, *grid)
            known = self.best_of.get(key)
            if known is None or _order(one) < _order(known):
                self.best_of[key] = one
        self.front = pareto([*self.front, *(one for one in here if one.fit == "fits")])

    def _first_that_fits(self, cluster: Cluster, layouts: Iterator[Layout], clock: Estimator) -> Iterator[Candidate]:
        for layout in layouts:
            self.tried += 1
            memory = peak_bytes(self.wanted.model, cluster, layout, self.wanted.software)
            fit = fits(memory, cluster)
            if fit != "fits":
                self._too_large(cluster, layout, memory)
            if fit == "no":
                continue
            time = clock.step(layout)
            score = time.seconds * self.wanted.slower(layout.global_batch)
            yield Candidate(layout, time, memory, fit, score, self.wanted.price)
            if fit == "fits":
                return

    def _too_large(self, cluster: Cluster, layout: Layout, memory: Memory) -> None:
        over = max(memory.device - cluster.memory_bytes, memory.host - host_bytes(cluster))
        text = f"{brief(layout)} needs {size(memory.device)} of {size(cluster.memory_bytes)}"
        if memory.host > host_bytes(cluster):
            text = f"{brief(layout)} needs {size(memory.host)} of {size(host_bytes(cluster))} of the host's memory for each GPU"
        self._miss(MEMORY).add(over, text, layout)

    def _skip(self, key: str, value: object, why: str) -> None:
        self._miss(key).add(0 if self._miss(key).count == 0 else 1, f"{key} = {value} {why}")

    def _miss(self, reason: str) -> Miss:
        return self.misses.setdefault(reason, Miss(reason))

    def _result(self) -> Found:
        ranked = sorted(self.best_of.values(), key=_order)
        best = ranked[0] if ranked else None
        if best is not None:
            self._losers(best, ranked[1:])
        order = sorted(self.misses.values(), key=lambda miss: -miss.count)
        return Found(best, tuple(ranked[: self.wanted.keep]), tuple(self.front), self.tried, tuple(order))

    def _losers(self, best: Candidate, others: list[Candidate]) -> None:
        node = self.wanted.cluster.gpus_per_node
        for one in others:
            reason = CROSSING if one.layout.tp > node else SLOWER
            more = one.score / best.score - 1
            self._miss(reason).add(one.score, f"{brief(one.layout)}: {seconds(one.seconds)}, +{percent(more)}", one.layout)


def _order(one: Candidate) -> tuple[bool, float, float, int]:
    """What fits with allowances comes first, then score; of two alike the one with less memory."""
    return one.fit != "fits", one.score, one.cost, one.memory.device
