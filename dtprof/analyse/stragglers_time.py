"""Slowness that moves: a rank that gets slower as the run goes on, and one that is slow in turn with others.

Compared are data and forward phase of every step, which the session times with and without a tracer, before the first operation
that makes ranks wait for each other; a phase that contains one is equally long on all ranks, and shows nothing. Time without a
core is taken for what it is: where it explains half of what is seen, nothing is found.

Growth: Mann and Kendall's test of the excess over the median of the others, and its change from the first to the last quarter
of the steps. Rotation: the distance from the slowest rank of each step to the median, where no rank is the slowest too often
and something that is recorded of the same step (tokens, garbage collection, input) goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, sqrt

import numpy as np

from dtprof.analyse.stragglers import StragglerResult, least_share
from dtprof.protocols import Lens
from dtprof.run import Part, Run
from dtprof.stats import Floats

_OWN = ("phase_data", "phase_forward")
LEAST_STEPS, _LEAST_NS = 20, 1_000_000
_ALPHA = 0.001
# a rank that is the slowest in more than this share of the steps is not one of several in turn
_TURNS = 0.6
# what has to be explained by a cause in time, or a rank correlation with one of another unit
_EXPLAINED, _CORRELATED = 0.5, 0.6
_CAUSES = {"gc_time": "garbage collection", "phase_data": "input", "tokens": "tokens"}


@dataclass(frozen=True)
class Growing:
    """A rank that needs longer and longer, ns per step: excess over its peers in the first and in the last quarter."""

    part: int
    rank: int
    first_ns: float
    last_ns: float
    steps: tuple[int, ...]

    @property
    def grown_ns(self) -> float:
        """What came to it."""
        return self.last_ns - self.first_ns


@dataclass(frozen=True)
class Rotating:
    """Ranks that are the slowest in turn: mean distance to the median, ns per step; share of the steps by rank; the cause and
    how much of it that explains (of the time, or as a rank correlation).
    """

    cost_ns: float
    turns: dict[int, float]
    cause: str
    explained: float
    steps: tuple[int, ...]


@dataclass(frozen=True)
class MovingResult:
    """What moves; ``abstained`` says why nothing could be looked for."""

    growing: tuple[Growing, ...] = ()
    rotating: Rotating | None = None
    abstained: str = ""


def analyse(study: Lens) -> MovingResult:
    """Compare all ranks over all timed training steps."""
    run = study.run
    stragglers: StragglerResult = study.result("stragglers")
    if stragglers.abstained.startswith(("point-to-point", "several captures", "the ranks were")):
        return MovingResult(abstained=stragglers.abstained)
    parts = [p for p in run.parts if p.rank is not None]
    if len(parts) < 2 or len({p.rank for p in parts}) < len(parts):
        return MovingResult(abstained="fewer than two ranks that could be compared")
    steps = _steps(run, parts)
    if len(steps) < LEAST_STEPS:
        return MovingResult(abstained=f"{len(steps)} timed steps on all ranks; {LEAST_STEPS} are needed")
    own = sum(_matrix(run, parts, steps, name) for name in _OWN)
    assert not isinstance(own, int)
    if np.isnan(own).any():
        return MovingResult(abstained="data and forward phase were not timed in every step")
    delays = np.nan_to_num(_matrix(run, parts, steps, "run_delay"))
    found = [g for i in range(len(parts)) if (g := _growing(parts, steps, own, delays, i)) is not None]
    known = {s.rank for s in stragglers.found} | {g.rank for g in found}
    rotating = None if known else _rotating(run, parts, steps, own, delays)
    return MovingResult(tuple(sorted(found, key=lambda g: -g.grown_ns)), rotating)


def _steps(run: Run, parts: list[Part]) -> list[int]:
    """Training steps that all parts have and no tracer was on in."""
    common: set[int] | None = None
    for part in parts:
        table = run.table("steps", part.ordinal)
        mine = set(table["step"][table.is_("kind", "train") & ~table["captured"] & table.known("host_dur")].tolist())
        common = mine if common is None else common & mine
    return sorted(common or ())


def _matrix(run: Run, parts: list[Part], steps: list[int], metric: str) -> Floats:
    """A metric (or ``tokens``), parts x steps; NaN where it is missing."""
    rows = []
    for part in parts:
        if metric == "tokens":
            table = run.table("steps", part.ordinal)
            keep = table.known("tokens")
            numbers, values = table["step"][keep].tolist(), table["tokens"][keep].tolist()
        else:
            table = run.table("metrics", part.ordinal)
            keep = table.is_("metric", metric)
            numbers, values = table["step"][keep].tolist(), table["value"][keep].tolist()
        of = dict(zip(numbers, values, strict=True))
        rows.append([of.get(s, np.nan) for s in steps])
    return np.array(rows, np.float64)


def _growing(parts: list[Part], steps: list[int], own: Floats, delays: Floats, i: int) -> Growing | None:
    others = np.delete(own, i, axis=0)
    excess = own[i] - np.median(others, axis=0)
    quarter = len(steps) // 4
    first, last = float(np.median(excess[:quarter])), float(np.median(excess[-quarter:]))
    least = max(_LEAST_NS, least_share(len(steps)) * float(np.median(others)))
    late = delays[i] - np.median(np.delete(delays, i, axis=0), axis=0)
    starved = float(np.median(late[-quarter:]) - np.median(late[:quarter]))
    if last - first < least or starved > _EXPLAINED * (last - first) or _trend(excess) > _ALPHA:
        return None
    return Growing(parts[i].ordinal, parts[i].rank or 0, first, last, tuple(steps))


def _trend(values: Floats) -> float:
    """One-sided p-value of Mann and Kendall's test against an upward trend (Kendall, 1975), ties left out of the variance."""
    n = len(values)
    s = float(sum(np.sign(values[i + 1 :] - values[i]).sum() for i in range(n - 1)))
    return 0.5 * erfc((s - 1) / sqrt(n * (n - 1) * (2 * n + 5) / 18) / sqrt(2)) if s > 0 else 1.0


def _rotating(run: Run, parts: list[Part], steps: list[int], own: Floats, delays: Floats) -> Rotating | None:
    median = np.median(own, axis=0)
    slowest = own.argmax(axis=0)
    columns = np.arange(len(steps))
    distance = own[slowest, columns] - (median if len(parts) > 2 else own.min(axis=0))
    cost = float(distance.mean())
    turns = {p.rank or 0: float((slowest == i).mean()) for i, p in enumerate(parts)}
    share = least_share(len(steps))
    starved = float((delays[slowest, columns] - np.median(delays, axis=0)).mean())
    if cost < max(_LEAST_NS, share * float(median.mean())) or max(turns.values()) > _TURNS or starved > _EXPLAINED * cost:
        return None
    best = ("", 0.0)
    for metric in _CAUSES:
        values = _matrix(run, parts, steps, metric)
        if np.isnan(values).any():
            continue
        apart = values - np.median(values, axis=0)
        told = (
            _correlation(apart.ravel(), (own - median).ravel())
            if metric == "tokens"
            else float(apart[slowest, columns].mean()) / cost
        )
        if told >= (_CORRELATED if metric == "tokens" else _EXPLAINED) and told > best[1]:
            best = metric, told
    return Rotating(cost, turns, _CAUSES[best[0]], best[1], tuple(steps)) if best[0] else None


def _correlation(a: Floats, b: Floats) -> float:
    """Spearman's rank correlation; 0 where one of the two does not vary."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    ranks = [np.unique(x, return_inverse=True)[1].astype(float) for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
