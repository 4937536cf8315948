"""Who is slow: own time of every rank in every step, compared like with like.

Own time is the step without its exposed communication: what the rank itself needed, whoever waited for whom. In a
synchronous job all steps are equally long and the slow rank is the one with most own time and least waiting.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, CommResult, PartAccount, PhaseResult, StepAccount, settled
from dtprof.protocols import Lens
from dtprof.run import Run

OWN_KEYS = (
    "compute_ns", "copy_exposed_ns", "idle_host_ns", "idle_dependency_ns", "idle_input_ns", "idle_checkpoint_ns",
    "idle_other_ns",
)  # fmt: skip
_LEAST_STEPS = 2
_LEAST_NS = 1_000_000
# excess that counts, as a share of the others' own time: fewer steps ask for more
_SHARE_FEW, _SHARE_MANY, _MANY_STEPS = 0.10, 0.05, 10
# the mean excess must be this many standard errors from zero
_ERRORS = 4.0


@dataclass(frozen=True)
class Straggler:
    """One rank that needs longer than its peers; times per step, against the median peer by accounting key and phase."""

    part: int
    rank: int
    steps: tuple[int, ...]
    slowest_in: int
    excess_ns: int
    cost_ns: int
    low_ns: int
    high_ns: int
    by_key: dict[str, int]
    by_phase: dict[str, int]
    operators: int
    peer_operators: int
    gc_ns: int | None

    @property
    def main_key(self) -> str:
        """The accounting key that explains most of the excess."""
        return max(self.by_key, key=lambda k: self.by_key[k])

    @property
    def main_phase(self) -> str | None:
        """The phase that explains most of the excess, None where no phase explains half of it."""
        if not self.by_phase:
            return None
        best = max(self.by_phase, key=lambda p: self.by_phase[p])
        return best if self.by_phase[best] >= self.excess_ns / 2 else None


@dataclass(frozen=True)
class StragglerResult:
    """Stragglers, largest cost first; ``abstained`` says why none could be looked for ("" where it could)."""

    found: tuple[Straggler, ...]
    steps: int
    abstained: str


def analyse(study: Lens) -> StragglerResult:
    """Compare the own time of all ranks step by step."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    parts = [p for p in accounting.parts if p.rank is not None and p.steps and not p.unreliable]
    if len({p.rank for p in parts}) < 2:
        return StragglerResult((), 0, "fewer than two ranks with steps")
    if len({p.rank for p in parts}) < len(parts):
        return StragglerResult((), 0, "several captures of one rank: ranks cannot be paired")
    if any(o.op in ("send", "recv", "send_recv") for o in comm.operations):
        return StragglerResult((), 0, "point-to-point traffic: ranks of different pipeline stages do different work")
    mine = {p.part: {s.step: s for s in settled(p.steps) if s.complete} for p in parts}
    common = sorted(set.intersection(*(set(s) for s in mine.values())))
    if len(common) < _LEAST_STEPS:
        return StragglerResult((), len(common), f"{len(common)} complete steps on all ranks; {_LEAST_STEPS} are needed")
    own = np.array([[_own(mine[p.part][s]) for s in common] for p in parts], np.int64)
    found = [s for i in range(len(parts)) if (s := _straggler(study, parts, mine, common, own, i)) is not None]
    return StragglerResult(tuple(sorted(found, key=lambda s: -s.cost_ns)), len(common), "")


def _own(step: StepAccount) -> int:
    return sum(step.accounting[k] for k in OWN_KEYS)


def _straggler(
    study: Lens, parts: list[PartAccount], mine: dict[int, dict[int, StepAccount]], common: list[int], own: np.ndarray, i: int
) -> Straggler | None:
    others = np.delete(own, i, axis=0)
    excess = own[i] - np.median(others, axis=0)
    cost = own[i] - others.max(axis=0)
    mean, count = float(excess.mean()), len(common)
    error = float(excess.std(ddof=1) / np.sqrt(count))
    share = _SHARE_MANY if count >= _MANY_STEPS else _SHARE_FEW
    least = max(_LEAST_NS, share * float(np.median(others)))
    if mean < least or mean < _ERRORS * error or excess.min() < mean / 2 or cost.mean() <= 0:
        return None
    part = parts[i]
    peers = [p for p in parts if p.part != part.part]
    by_key = {k: _gap(mine, part, peers, common, k) for k in OWN_KEYS}
    phases: PhaseResult = study.result("phases")
    operators = {p.part: _operators(study.run, p.part, common) for p in parts}
    return Straggler(
        part.part, part.rank if part.rank is not None else -1, tuple(common), int(np.sum(cost > 0)), round(mean),
        round(float(cost.mean())), round(mean - 2 * error), round(mean + 2 * error), by_key,
        _phase_gaps(phases, part, peers, set(common)), operators[part.part],
        int(np.median([operators[p.part] for p in peers])), _gc(study.run, mine[part.part], part.part, common),
    )  # fmt: skip


def _gap(
    mine: dict[int, dict[int, StepAccount]], part: PartAccount, peers: list[PartAccount], common: list[int], key: str
) -> int:
    gaps = [mine[part.part][s].accounting[key] - np.median([mine[p.part][s].accounting[key] for p in peers]) for s in common]
    return round(float(np.mean(gaps)))


def _phase_gaps(phases: PhaseResult, part: PartAccount, peers: list[PartAccount], common: set[int]) -> dict[str, int]:
    spent: Counter[tuple[int, str]] = Counter()
    for time in phases.times:
        if time.step in common:
            spent[(time.part, time.phase)] += time.own_ns
    names = {phase for p, phase in spent if p == part.part}
    return {
        n: round((spent[(part.part, n)] - float(np.median([spent[(p.part, n)] for p in peers]))) / len(common))
        for n in sorted(names)
    }


def _operators(run: Run, part: int, common: list[int]) -> int:
    """Device operations, or operators on a CPU job, per step."""
    view = PartView(run, part)
    rows = view.device_rows if view.on_device else np.flatnonzero(view.events.is_("kind", "cpu_op"))
    return int(np.isin(view.events["step"][rows], common).sum() / len(common))


def _gc(run: Run, steps: dict[int, StepAccount], part: int, common: list[int]) -> int | None:
    """Garbage-collection pauses per step in ns; None where nobody recorded them."""
    samples = run.table("samples", part)
    pauses = samples.is_("metric", "gc_pause")
    if not len(samples):
        return None
    inside = sum(
        float(samples["value"][pauses & (samples["ts"] >= steps[s].ts) & (samples["ts"] < steps[s].ts + steps[s].dur_ns)].sum())
        for s in common
    )
    return round(inside / len(common))
