"""What a search gives: layouts with their time, memory and price, and why the others are not among them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dtprof.plan.memory import Memory
from dtprof.plan.memory.peak import Fit
from dtprof.plan.spec import Layout
from dtprof.plan.time.step import StepTime

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Candidate:
    """A layout that can be laid out: predicted ``time``, ``memory`` of the rank that needs most, whether that ``fit``s.

    ``score``: seconds of a step, times what a larger batch needs more of data where it is free; ``price`` of a GPU hour.
    """

    layout: Layout
    time: StepTime
    memory: Memory
    fit: Fit
    score: float
    price: float

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.time.seconds

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs together."""
        return self.layout.tokens / self.seconds

    @property
    def gpu_hours(self) -> float:
        """For a thousand million tokens, counted with what a larger batch needs more."""
        return self.score / self.layout.tokens * 1e9 * self.layout.gpus / _SECONDS_PER_HOUR

    @property
    def cost(self) -> float:
        """Price of a thousand million tokens; GPU hours where no price is known."""
        return self.gpu_hours * (self.price or 1.0)


@dataclass
class Miss:
    """``count`` layouts (or values) that were left out for one ``reason``; ``nearest``: the best of them, in words."""

    reason: str
    count: int = 0
    nearest: str = ""
    layout: Layout | None = None
    distance: float = float("inf")

    def add(self, distance: float, nearest: str, layout: Layout | None = None) -> None:
        """One more; it is the nearest if ``distance`` is the smallest so far."""
        self.count += 1
        if distance < self.distance:
            self.distance, self.nearest, self.layout = distance, nearest, layout


@dataclass(frozen=True)
class Found:
    """``best``: the fastest, None where nothing fits; ``ranked``: the best of each grid of tp, pp, cp, ep and GPUs, fastest
    first; ``front``: those that no other beats in time, memory and cost at once; ``tried``: layouts looked at; ``misses`` by
    reason; ``mend``: what would make an impossible search possible.
    """

    best: Candidate | None
    ranked: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    tried: int
    misses: tuple[Miss, ...]
    mend: tuple[str, ...] = field(default=())


def pareto(candidates: list[Candidate]) -> list[Candidate]:
    """Those that no other is as good as or better than in score, device memory and cost at once; fastest first."""
    front: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (c.score, c.memory.device, c.cost)):
        if not any(other.memory.device <= one.memory.device and other.cost <= one.cost for other in front):
            front.append(one)
    return front
