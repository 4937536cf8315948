"""Checkpoints: what a save takes of the step it lies in, and how often one is written.

``study.result("checkpoint")`` is a ``CheckpointResult``, from what the session recorded of every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtprof.analyse.host_steps import metric, usable
from dtprof.protocols import Lens
from dtprof.run import Run


@dataclass(frozen=True)
class Saves:
    """Saves of one rank: ``steps`` that had one, ``ns`` that each took, ``every`` steps (median distance; None for one save).

    ``marked``: they lie in ranges of phase checkpoint; otherwise ``ns`` is the length of the step beyond the usual one.
    """

    rank: int
    steps: tuple[int, ...]
    ns: tuple[float, ...]
    every: float | None
    marked: bool

    @property
    def usual_ns(self) -> float:
        """The median save."""
        return float(np.median(self.ns))


@dataclass(frozen=True)
class CheckpointResult:
    """``saves`` of the ranks that had any; ``step_ns``: the usual training step, median over steps and ranks."""

    saves: tuple[Saves, ...]
    step_ns: float | None

    @property
    def worst(self) -> Saves | None:
        """The rank whose saves take longest."""
        return max(self.saves, key=lambda s: s.usual_ns, default=None)

    @property
    def every(self) -> float | None:
        """Steps from one save to the next, median over the ranks; None where there were not two."""
        known = [s.every for s in self.saves if s.every is not None]
        return float(np.median(known)) if known else None


def analyse(study: Lens) -> CheckpointResult:
    """Saves of every rank; parts of a rank (restarts) are read together."""
    run = study.run
    lengths = [ns for part in run.parts for ns in usable(run, part.ordinal).values()]
    usual = float(np.median(lengths)) if lengths else None
    found = (_of_rank(run, rank, usual) for rank in run.ranks)
    return CheckpointResult(tuple(s for s in found if s is not None), usual)


def _of_rank(run: Run, rank: int, usual: float | None) -> Saves | None:
    marked: dict[int, float] = {}
    excess: dict[int, float] = {}
    for part in (p for p in run.parts if p.rank == rank):
        steps = run.table("steps", part.ordinal)
        wanted = steps.is_("kind", "checkpoint", "train", "lost") & steps.known("host_dur")
        ranges = metric(run, part.ordinal, "phase_checkpoint")
        marked |= {s: ns for s in steps["step"][wanted].tolist() if (ns := ranges.get(s, 0.0)) > 0}
        kept = np.flatnonzero(wanted & steps.is_("kind", "checkpoint"))
        for step, dur in zip(steps["step"][kept].tolist(), steps["host_dur"][kept].tolist(), strict=True):
            if usual is not None:
                excess[step] = max(dur - usual, 0.0)
    saves = marked or excess
    if not saves:
        return None
    numbers = sorted(saves)
    every = float(np.median(np.diff(numbers))) if len(numbers) > 1 else None
    return Saves(rank, tuple(numbers), tuple(saves[s] for s in numbers), every, bool(marked))
