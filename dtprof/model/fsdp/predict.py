"""What prefetching, resharding or other units would make of a measured FSDP2 step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dtprof.model.fsdp.cost import Network, network_of
from dtprof.model.fsdp.observe import SeenFsdp
from dtprof.model.fsdp.program import Expanded, Op, Plan, Program, Unit, expand, groups_of, joined, wrapped
from dtprof.model.fsdp.running import Moving, StepTimes, simulate
from dtprof.model.typical import error_of_median

# of the width of the interval: how sure one wants to be (95%, normal)
_SIGMAS = 1.96


@dataclass(frozen=True)
class Change:
    """What is changed: ``prefetch`` units ahead; ``reshard`` after forward; ``wrap`` layers in a unit; the network's
    ``bandwidth`` and ``latency`` as multiples; ``free``: operations take no time. None is as measured.
    """

    prefetch: int | None = None
    reshard: bool | None = None
    wrap: int | None = None
    bandwidth: float = 1.0
    latency: float = 1.0
    free: bool = False


@dataclass(frozen=True)
class Prediction:
    """A step under a change, ns, with its interval; ns that the slowest rank waits and most bytes gathered at once, as measured
    and as predicted.
    """

    step_ns: float
    low_ns: float
    high_ns: float
    waiting: tuple[float, float]
    peak: tuple[int, int]


@dataclass(frozen=True)
class Simulated:
    """One simulated step: units, each rank's acts, what the operations cost, and when all of it happens."""

    units: tuple[Unit, ...]
    ranks: tuple[Expanded, ...]
    moving: Moving
    times: StepTimes


class FsdpModel:
    """The FSDP2 steps of a run as programs, and what its operations cost. Replays the run, and predicts changes of it."""

    def __init__(self, seen: SeenFsdp, network: Network | None = None) -> None:
        self.seen = seen
        self._depths: dict[int, SeenFsdp] = {}
        self.network = network or network_of(seen)
        self.base = {number: self.step(number, Change()) for number in seen.steps}

    def step(self, number: int, change: Change) -> Simulated:
        """One captured step under a change. ValueError where the change cannot be made."""
        seen = self._at(change.prefetch)
        step = seen.steps[number]
        units, freed = seen.units, seen.freed
        programs: Sequence[Program] = step.programs
        if change.wrap is not None:
            groups = groups_of(units, change.wrap)
            if isinstance(groups, str):
                raise ValueError(groups)
            programs = [wrapped(p, units, groups) for p in programs]
            freed = frozenset(n for n, group in enumerate(groups) if group[0] in freed)
            units = tuple(joined(units, group) for group in groups)
        ranks = tuple(expand(p, units, freed, self.plan(change)) for p in programs)
        network = replace(
            self.network, bandwidth_scale=change.bandwidth, latency_scale=change.latency, free=change.free or self.network.free
        )
        moving = network.moving(number, ranks[0].ops)
        return Simulated(units, ranks, moving, simulate(ranks, moving, step.begins))

    def _at(self, depth: int | None) -> SeenFsdp:
        """The steps as they were, or, on a device, with so many units gathered ahead. ValueError where that is not known."""
        if depth is None or self.seen.at_depth is None:
            return self.seen
        if depth not in self._depths:
            found = self.seen.at_depth(depth)
            if isinstance(found, str):
                raise ValueError(found)
            self._depths[depth] = found
        return self._depths[depth]

    def plan(self, change: Change) -> Plan:
        """How units are gathered under a change. Prefetching takes gathers that the thread does not wait for."""
        forward, backward = self.seen.ahead
        if self.seen.on_device:
            return Plan(None, 0 if change.reshard else None, change.reshard, waits=False, settles=True)
        waits = self.seen.waits and not change.prefetch
        if change.prefetch is not None:
            return Plan(change.prefetch, change.prefetch, change.reshard, waits)
        if change.wrap is None and change.reshard is None:
            return Plan(waits=waits)
        explicit = forward > 0 or backward > 1
        return Plan(forward, backward if explicit else 0, change.reshard, waits)

    @property
    def replay_error(self) -> float:
        """Median over the steps of |replayed - measured| / measured, by the last rank to end."""
        errors = [abs(self.base[n].times.length / max(s.ends) - 1) for n, s in self.seen.steps.items()]
        return float(np.median(errors))

    def predict(self, change: Change) -> Prediction:
        """The typical step of the run, moved by what the simulation of each captured step says.

        The interval holds the spread over the steps, what of the operations' cost was not measured, and the replay error.
        """
        runs = {n: self.step(n, change) for n in self.seen.steps}
        gains = [runs[n].times.length - self.base[n].times.length for n in runs]
        under = float(np.median(gains))
        gain = under * self.untraced
        value = self.seen.typical_ns + gain
        noise = error_of_median(gains)
        off = max(abs(other.gain(change) - under) for other in self._variants) + abs(under - gain)
        spread = float(np.linalg.norm([_SIGMAS * noise, off, _SIGMAS * self.seen.error_ns]))
        half = spread + self.replay_error * value
        return Prediction(
            value, value - half, value + half, (_waiting(self.base), _waiting(runs)), (_peak(self.base), _peak(runs))
        )

    @property
    def untraced(self) -> float:
        """The typical step over the traced ones, 1 at most: what the tracer adds, a change of the traced step holds as well."""
        traced = float(np.median([max(s.ends) for s in self.seen.steps.values()]))
        return min(self.seen.typical_ns / traced, 1.0)

    def gain(self, change: Change) -> float:
        """Median over the steps of the time that a change adds, ns."""
        return float(np.median([self.step(n, change).times.length - self.base[n].times.length for n in self.seen.steps]))

    @cached_property
    def _variants(self) -> list[FsdpModel]:
        return [FsdpModel(self.seen, network) for network in self.network.variants()]

    def ops(self, change: Change) -> list[Op]:
        """The operations of a step under a change."""
        return self.step(self.number, change).ranks[0].ops

    @property
    def number(self) -> int:
        """The first captured step."""
        return next(iter(self.seen.steps))


def _waiting(runs: dict[int, Simulated]) -> float:
    return float(np.median([max(r.times.exposed(r.ranks)) for r in runs.values()]))


def _peak(runs: dict[int, Simulated]) -> int:
    return max(rank.peak for run in runs.values() for rank in run.ranks)
