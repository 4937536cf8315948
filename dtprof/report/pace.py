"""The pace of a run: every step of a rank, those that are slower than its others, and throughput."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np

from dtprof.analyse.results import ACCOUNTING, StepAccount
from dtprof.numbers import time
from dtprof.report.facts import Facts
from dtprof.report.palette import PARTS
from dtprof.schema import MISSING

# a step is slow above median + max(6 x 1.4826 x MAD, 15% of the median) of the training steps (Rousseeuw and Croux 1993)
K, SIGMA_OF_MAD, FLOOR, LEAST = 6.0, 1.4826, 0.15, 5
# the part of a slow step's excess that one accounting key must hold to be its cause
_CAUSE = 0.5


@dataclass(frozen=True)
class StepBar:
    """One step of one rank: ``dur_ns``; ``parts`` of its accounting, None where it was timed and not traced."""

    step: int
    dur_ns: int
    kind: str
    parts: dict[str, int] | None
    slow: bool = False
    cause: str = ""


@dataclass(frozen=True)
class Throughput:
    """Tokens (or samples) of all ranks per second and per step."""

    unit: str
    per_second: float
    per_step: float


def bars(facts: Facts, rank: int | None) -> list[StepBar]:
    """Every step of the first process of that rank (None: of the first process), in order, the slow ones with their cause."""
    parts = [p for p in facts.run.parts if rank is None or p.rank == rank]
    found: dict[int, StepBar] = {}
    for part in parts if rank is not None else parts[:1]:
        accounts = {s.step: s for a in facts.accounting.parts if a.part == part.ordinal for s in a.steps if s.complete}
        table = facts.run.table("steps", part.ordinal)
        columns = (table["step"].tolist(), table["host_dur"].tolist(), table.text("kind"))
        for step, timed, kind in zip(*columns, strict=True):
            account = accounts.pop(step, None)
            if account is not None:
                found[step] = _traced(account)
            elif timed not in (MISSING, 0) and not facts.accounting.on_device:
                found.setdefault(step, StepBar(step, timed, kind or "train", None))
        found |= {step: _traced(account) for step, account in accounts.items()}
    return _marked([found[step] for step in sorted(found)])


def _traced(account: StepAccount) -> StepBar:
    return StepBar(account.step, account.dur_ns, account.kind, account.accounting)


def median_of(found: list[StepBar]) -> float | None:
    """Median of the training steps, ns; None without any."""
    train = [b.dur_ns for b in found if b.kind == "train"]
    return float(statistics.median(train)) if train else None


def _marked(found: list[StepBar]) -> list[StepBar]:
    """Traced steps are compared with traced ones, the others with the others: tracing itself takes time."""
    out = {bar.step: bar for bar in found}
    traced = {bar.step for bar in found if bar.parts}
    for like in ([b for b in found if b.parts], [b for b in found if not b.parts]):
        train = [b for b in like if b.kind == "train"]
        if len(train) < LEAST:
            continue
        middle = statistics.median(b.dur_ns for b in train)
        scatter = statistics.median(abs(b.dur_ns - middle) for b in train)
        limit = middle + max(K * SIGMA_OF_MAD * scatter, FLOOR * middle)
        usual = {k: statistics.median(v) for k in ACCOUNTING if (v := [b.parts[k] for b in train if b.parts])}
        for bar in train:
            if bar.dur_ns > limit:
                out[bar.step] = replace(bar, slow=True, cause=_cause(bar, usual, middle, bar.step - 1 in traced))
    return [out[step] for step in sorted(out)]


def _cause(bar: StepBar, usual: dict[str, float], middle: float, after: bool) -> str:
    if bar.parts is None:
        return f"{time(bar.dur_ns - middle)} longer, {'as the trace is written' if after else 'not traced'}"
    more = {k: bar.parts[k] - usual[k] for k in ACCOUNTING}
    key = max(more, key=lambda k: more[k])
    if more[key] < _CAUSE * (bar.dur_ns - middle):
        return f"{time(bar.dur_ns - middle)} longer, in no one part"
    return f"{PARTS[key].label} {time(more[key])} longer"


def throughput(facts: Facts) -> Throughput | None:
    """Tokens, else samples, that the training steps of all ranks took; None where the job did not say how many."""
    for unit in ("tokens", "samples"):
        per_step, seconds = 0.0, []
        for part in facts.run.parts:
            table = facts.run.table("steps", part.ordinal)
            rows = table.take(
                table.is_("kind", "train") & table.known(unit) & table.known("host_dur") & (table["host_dur"] > 0)
            )
            if len(rows):
                per_step += float(np.mean(rows[unit]))
                seconds.append(float(np.median(rows["host_dur"])) / 1e9)
        if per_step and seconds:
            return Throughput(unit, per_step / statistics.fmean(seconds), per_step)
    return None
