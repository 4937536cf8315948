"""Small questions that several rules ask of the accounting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from dtprof.analyse.results import AccountingResult, settled
from dtprof.findings import Severity
from dtprof.numbers import named
from dtprof.run import Run
from dtprof.schema import MISSING

# share of the step from which a finding is high, or medium
HIGH, MEDIUM = 0.15, 0.05


def severity_of(share: float) -> Severity:
    """Severity by the share of the step that a fault costs."""
    return "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"


def step_ns(accounting: AccountingResult) -> float:
    """Mean step over the ranks, ns; 1 where there are no steps, so that shares stay finite."""
    means = [float(np.mean([s.dur_ns for s in settled(p.steps)])) for p in accounting.parts if p.steps]
    return float(np.mean(means)) if means else 1.0


def per_rank(accounting: AccountingResult, *keys: str) -> dict[int, float]:
    """Mean ns per step of the summed keys, by rank (parts without a rank count as -1 - ordinal)."""
    out: dict[int, float] = {}
    for part in accounting.parts:
        if part.steps:
            rank = part.rank if part.rank is not None else -1 - part.part
            out[rank] = float(np.mean([sum(s.accounting[k] for k in keys) for s in settled(part.steps)]))
    return out


def who(keys: Iterable[int]) -> str:
    """The processes of ``per_rank`` in words: ``ranks 0 to 7``; ``part 2`` where no rank is known."""
    found = list(keys)
    ranks, others = [k for k in found if k >= 0], [-1 - k for k in found if k < 0]
    return " and ".join(named(word, numbers) for word, numbers in (("rank", ranks), ("part", others)) if numbers)


def steps_of(accounting: AccountingResult) -> tuple[int, ...]:
    """Numbers of the steps that means are taken over."""
    return tuple(sorted({s.step for p in accounting.parts for s in settled(p.steps)}))


def ranks_of(accounting: AccountingResult) -> tuple[int, ...]:
    """Ranks with steps."""
    return tuple(sorted({p.rank for p in accounting.parts if p.rank is not None and p.steps}))


def ddp_models(run: Run) -> dict[int, list[dict[str, Any]]]:
    """Part ordinal -> what the DDP collector noted of each wrapper's arguments; empty for other sources."""
    out = {}
    for part in run.parts:
        states = part.extra.get("collectors")
        for state in states if isinstance(states, list) else []:
            models = state.get("facts", {}).get("models") if state.get("name") == "ddp" else None
            if isinstance(models, list) and models:
                out[part.ordinal] = models
    return out


def timed_steps(run: Run) -> list[float]:
    """Lengths of the steps that the step clock saw, ns, mean over the ranks; warm-up left out where there are others."""
    train: dict[int, list[int]] = defaultdict(list)
    warm: dict[int, list[int]] = defaultdict(list)
    for part in run.parts:
        steps = run.table("steps", part.ordinal)
        table = steps.take(~steps.is_("kind", "restart"))
        columns = (table["step"].tolist(), table["host_dur"].tolist(), table.is_("kind", "warm-up").tolist())
        for step, length, first in zip(*columns, strict=True):
            if length != MISSING:
                (warm if first else train)[step].append(length)
    return [sum(found) / len(found) for found in (train or warm).values()]
