"""Late is not slow: a rank that enters its step after the others, and then needs no longer than they do."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.analyse.stragglers import StragglerResult
from dtprof.analyse.waiting import Entry, WaitingResult
from dtprof.protocols import Lens

# a rank that needs this much longer than the slowest of the others to its first operation is slow, not late
_SLOWER = 1.1
# the lateness must be long enough to explain this share of the waiting
_EXPLAINS = 0.5


@dataclass(frozen=True)
class Late:
    """How late a rank enters one step, and how long it and the others then need to their first operation; ns."""

    step: int
    least: int
    most: int
    needs: int
    needs_least: int
    needs_most: int
    mean: float


@dataclass(frozen=True)
class LatenessResult:
    """The late rank (None where nobody is late) and what is waited for it, ns per rank and step."""

    rank: int | None = None
    cost_ns: float = 0.0
    steps: tuple[Late, ...] = ()


def analyse(study: Lens) -> LatenessResult:
    """The rank that most waiting is for, if it enters every step last, late enough to explain it, and is no straggler."""
    waiting: WaitingResult = study.result("waiting")
    stragglers: StragglerResult = study.result("stragglers")
    if stragglers.found or not waiting.by_culprit:
        return LatenessResult()
    rank = next(iter(waiting.by_culprit))
    steps = sorted({e.step for e in waiting.entries if e.rank == rank})
    late = [_late([e for e in waiting.entries if e.step == step], rank, step) for step in steps]
    found = tuple(x for x in late if x is not None)
    if not found or len(found) < len(late):
        return LatenessResult()
    ranks = len({e.rank for e in waiting.entries})
    explained = sum(x.mean for x in found) / len(found) * (ranks - 1) / ranks
    if explained < _EXPLAINS * waiting.by_culprit[rank]:
        return LatenessResult()
    return LatenessResult(rank, waiting.by_culprit[rank], found)


def _late(entries: list[Entry], rank: int, step: int) -> Late | None:
    own = next(e for e in entries if e.rank == rank)
    others = [e for e in entries if e.rank != rank]
    if not others:
        return None
    lags = [own.enters_ns - e.enters_ns for e in others]
    needs = [e.needs_ns for e in others]
    if min(lags) <= 0 or own.needs_ns > _SLOWER * max(needs):
        return None
    return Late(step, min(lags), max(lags), own.needs_ns, min(needs), max(needs), sum(lags) / len(lags))
