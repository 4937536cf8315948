"""Rules about checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dtprof.advise.places import severity_of
from dtprof.analyse.checkpoint import CheckpointResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, time
from dtprof.protocols import Lens
from dtprof.run import Run

_LEAST_SAVES = 3
_LEAST_NS, _LEAST_SHARE = 1e6, 0.10
# ranks are named from this share of the largest excess on
_NAMED_SHARE = 0.5
# what a rank does before its first collective of a step
_OWN = ("phase_data", "phase_forward")


@dataclass(frozen=True)
class _After:
    """The steps after the saves of a rank: excess per save in ns, of how many saves, how many steps it lasts."""

    excess_ns: float
    saves: int
    steps: int
    step_ns: float
    interval: float


class SavingThread:
    """Steps that follow a checkpoint are longer on some ranks: what writes it beside them gets in their way."""

    id = "checkpoint.saving_thread"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Compares own time (data and forward phase) after a save with that of the same rank's later steps."""
        after = {p.rank: found for p in study.run.parts if p.rank is not None and (found := _after(study.run, p.ordinal))}
        after = {rank: found for rank, found in after.items() if not _waited(study, rank, found.excess_ns)}
        worst = max(after.values(), key=lambda found: found.excess_ns, default=None)
        if worst is None or worst.excess_ns < max(_LEAST_NS, _LEAST_SHARE * worst.step_ns):
            return
        ranks = tuple(sorted(r for r, found in after.items() if found.excess_ns >= _NAMED_SHARE * worst.excess_ns))
        cost = worst.excess_ns / worst.interval
        others = [f"rank {r}: {time(max(found.excess_ns, 0.0))}" for r, found in sorted(after.items()) if r not in ranks]
        who = named("rank", ranks)
        waiting = f"; the others wait for {'it' if len(ranks) == 1 else 'them'}" if others else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / worst.step_ns),
            title=f"Each checkpoint costs {who} {time(worst.excess_ns)} in the {_steps(worst)} after it{waiting}",
            ranks=ranks,
            steps=(),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"Data and forward phase after {counted(worst.saves, 'save')}: each time longer than in later steps of the "
                    f"same rank, {time(worst.excess_ns)} in the middle."
                ),
                Evidence(f"The same on the others: {', '.join(others[:8])}." if others else "All ranks are slowed alike."),
            ),
            why=f"{who} computes {time(worst.excess_ns)} longer after a save and not in other steps, as where a thread saves "
            f"beside them and holds Python's lock; the thread itself was not recorded",
            next="save in a process of its own (DCP: AsyncCheckpointerType.PROCESS), or have fewer, larger tensors to plan for",
            apply="async_checkpointer_type=AsyncCheckpointerType.PROCESS in async_save; fewer, larger tensors in the state; or "
            "save less often",
            verify="measure again: the steps after a save should be as long as the others",
            share=cost / worst.step_ns,
        )


def _waited(study: Lens, rank: int, excess_ns: float) -> bool:
    """Does the rank come out of a save so much before another one that waiting for that one explains the excess?"""
    result: CheckpointResult = study.result("checkpoint")
    took = {saves.rank: saves.usual_ns for saves in result.saves}
    sooner = max(took.values(), default=0.0) - took.get(rank, 0.0)
    return sooner > 0 and sooner >= excess_ns / 2


def _steps(found: _After) -> str:
    return "step" if found.steps == 1 else f"{found.steps} steps"


def _after(run: Run, part: int) -> _After | None:
    """None where the rank has too few saves, or its phases were not recorded."""
    steps, metrics = run.table("steps", part), run.table("metrics", part)
    saved = np.sort(steps["step"][steps.is_("kind", "checkpoint")])
    usable = steps.is_("kind", "train") & ~steps["captured"] & steps.known("host_dur")
    own = {int(s): 0.0 for s in steps["step"][usable].tolist()}
    told = set[int]()
    for name in _OWN:
        rows = metrics.is_("metric", name)
        for step, value in zip(metrics["step"][rows].tolist(), metrics["value"][rows].tolist(), strict=True):
            if step in own:
                own[step] += value
                told.add(step)
    own = {step: ns for step, ns in own.items() if step in told}
    if len(saved) < _LEAST_SAVES or not own:
        return None
    interval = float(np.median(np.diff(saved)))
    distance = {step: int(step - saved[at - 1]) for step in own if (at := int(np.searchsorted(saved, step))) > 0}
    late = [own[step] for step, far in distance.items() if interval / 2 < far <= interval]
    if not late:
        return None
    usual, total, lasts, saves = float(np.median(late)), 0.0, 0, 0
    length = float(np.median(steps["host_dur"][usable]))
    for far in range(1, int(interval // 2) + 1):
        excess = np.array([own[step] - usual for step, d in distance.items() if d == far])
        # in every one of them: a step that is long by chance is long after one save
        if len(excess) < _LEAST_SAVES or excess.min() < max(_LEAST_NS, float(np.median(excess)) / 2):
            break
        total, lasts, saves = total + float(np.median(excess)), far, max(saves, len(excess))
    return _After(total, saves, lasts, length, interval)
