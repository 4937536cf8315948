"""Goodput: what share of a run's time was training that lasts, and what took the rest.

``study.result("goodput")`` is a ``GoodputResult``. The time of a rank goes from the start of its first session to the end of
its last step; the categories sum to it exactly. It needs steps that the session itself recorded: a trace alone shows a few of
them and not what lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtprof.analyse.host_steps import metric
from dtprof.protocols import Lens
from dtprof.run import Part, Run
from dtprof.schema import MISSING

# the order of the categories, everywhere; the first is goodput
CATEGORIES = ("productive", "start_up", "warm_up", "evaluation", "checkpoint", "lost", "restart", "between")
WORDS = {
    "productive": "training", "start_up": "starting", "warm_up": "warming up and compiling", "evaluation": "evaluating",
    "checkpoint": "saving checkpoints", "lost": "steps that were repeated", "restart": "restarting",
    "between": "between steps",
}  # fmt: skip


@dataclass(frozen=True)
class RankGoodput:
    """One rank: ``ns`` by category; ``attempts`` sessions; ``steps`` that were trained and kept."""

    rank: int
    wall_ns: int
    ns: dict[str, int]
    attempts: int
    steps: int


@dataclass(frozen=True)
class GoodputResult:
    """All ranks, or ``why`` there are none. ``restarts``: how often the job began anew, ``lost_steps`` what that repeated."""

    ranks: tuple[RankGoodput, ...]
    restarts: int = 0
    lost_steps: int = 0
    why: str = ""

    @property
    def wall_ns(self) -> float:
        """Mean time over the ranks."""
        return float(np.mean([r.wall_ns for r in self.ranks])) if self.ranks else 0.0

    def shares(self) -> dict[str, float]:
        """Category -> share of the time, mean over the ranks; empty where nothing is known."""
        if not self.ranks or not self.wall_ns:
            return {}
        return {key: float(np.mean([r.ns[key] for r in self.ranks])) / self.wall_ns for key in CATEGORIES}

    @property
    def share(self) -> float | None:
        """The productive share."""
        return self.shares().get("productive")


def analyse(study: Lens) -> GoodputResult:
    """Goodput of every rank that has recorded steps."""
    run = study.run
    if run.format != "dtprof":
        return GoodputResult((), why="only a run that dtprof recorded tells what lies between the captured steps")
    found = [r for rank in run.ranks if (r := _of_rank(run, rank)) is not None]
    if not found:
        return GoodputResult((), why="no step was recorded")
    attempts = len({p.attempt for p in run.parts})
    lost = max((int(np.count_nonzero(run.table("steps", p.ordinal).is_("kind", "lost"))) for p in run.parts), default=0)
    return GoodputResult(tuple(found), attempts - 1, lost)


def _of_rank(run: Run, rank: int) -> RankGoodput | None:
    parts = sorted((p for p in run.parts if p.rank == rank), key=lambda p: (p.attempt, p.window, p.ordinal))
    spent = dict.fromkeys(CATEGORIES, 0)
    begin, at, kept, sessions = None, None, 0, 0
    for part in parts:
        rows = _rows(run, part)
        if not rows:
            continue
        sessions += 1
        started = part.extra.get("started_ns")
        if at is None:
            at = begin = min(started, rows[0][1]) if isinstance(started, int) else rows[0][1]
            spent["start_up"] += rows[0][1] - at
            at = rows[0][1]
        usual = _usual(rows)
        phases = {p: metric(run, part.ordinal, f"phase_{p}") for p in ("checkpoint", "evaluation")}
        for step, ts, dur, kind in rows:
            # clocks of two hosts may disagree: what overlaps is counted once
            ts, dur = max(ts, at), max(ts + dur - max(ts, at), 0)
            spent["between"] += ts - at
            at = ts + dur
            kept += kind in ("train", "warm-up", "checkpoint")
            _book(spent, dur, kind, usual, {p: phases[p].get(step, 0.0) for p in phases})
    if begin is None or at is None or at <= begin:
        return None
    return RankGoodput(rank, at - begin, spent, sessions, kept)


def _rows(run: Run, part: Part) -> list[tuple[int, int, int, str]]:
    """(step, ts, ns, kind) of the steps of a part whose time is known, by time."""
    steps = run.table("steps", part.ordinal)
    columns = (steps["step"].tolist(), steps["host_ts"].tolist(), steps["host_dur"].tolist(), steps.text("kind"))
    rows = [(n, t, d, k or "train") for n, t, d, k in zip(*columns, strict=True) if MISSING not in (t, d)]
    return sorted(rows, key=lambda row: row[1])


def _usual(rows: list[tuple[int, int, int, str]]) -> int:
    """The median training step; where there is none, nothing is usual."""
    train = [dur for *_, dur, kind in rows if kind == "train"]
    return int(np.median(train)) if train else 0


def _book(spent: dict[str, int], dur: int, kind: str, usual: int, phases: dict[str, float]) -> None:
    """Book one step: what is marked as saving or evaluating first, then what the kind of the step says."""
    if kind in ("lost", "restart"):
        spent[kind] += dur
        return
    if kind == "eval":
        spent["evaluation"] += dur
        return
    left = dur
    for phase, ns in phases.items():
        taken = min(round(ns), left)
        spent[phase] += taken
        left -= taken
    # a save that nothing marks is what its step takes longer
    longer = "warm_up" if kind == "warm-up" else "checkpoint" if kind == "checkpoint" and not phases["checkpoint"] else None
    if longer is not None and usual:
        more = max(left - usual, 0)
        spent[longer] += more
        left -= more
    spent["productive"] += left
