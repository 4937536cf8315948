"""The gate's result: what a trial of two commands said, with the cause in the first line."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dtprof.analyse import study_of
from dtprof.analyse.diff import Diff, diff
from dtprof.check.result import Result, Row
from dtprof.errors import DtprofError
from dtprof.ingest import open_run
from dtprof.launch.pairs import Pair, Pairs
from dtprof.launch.trial import POWER, Trial
from dtprof.numbers import change, counted, percent, seconds
from dtprof.stats import Outcome, detectable

METRIC = "step_time"


@dataclass(frozen=True)
class Cause:
    """What moved between a traced run of either side; ``found`` None with ``why_not`` where it is not known."""

    found: Diff | None
    why_not: str = ""

    @property
    def text(self) -> str:
        """The cause for the first line, or why there is none."""
        if self.found is None:
            return f"the cause is not known: {self.why_not}"
        if not self.found.keys:
            return f"the cause is not known: {'; '.join(self.found.cannot)}"
        if self.found.cause is None:
            return "the cause is not known: the traced runs do not differ in any one category"
        return self.found.cause.text


def cause_of(pairs: Pairs) -> Cause:
    """Trace one run of each side and compare them."""
    try:
        folders = pairs.capture()
        if folders is None:
            return Cause(None, "the commands have no dtprof steps")
        return Cause(diff(study_of(open_run(str(folders[0]))), study_of(open_run(str(folders[1])))))
    except DtprofError as error:
        return Cause(None, error.message)


def gate_result(trial: Trial, pairs: Sequence[Pair], *, title: str, cause: Cause | None = None, whole: bool = False) -> Result:
    """The result of a gate. ``whole``: the commands were timed as a whole."""
    unit = "command" if whole else "step"
    a, b = (statistics.median(trial.first[:, i].tolist()) for i in (0, 1))
    text = f"{unit} {seconds(a)} to {seconds(b)}, {trial.reason}"
    word = trial.outcome.upper()
    headline = f"{word}: {text}"
    if cause is not None:
        headline = f"{word}: {text}; {cause.text}"
    noise = f"noise of a pair {percent(trial.noise)}; {counted(trial.allowed, 'pair')} {catches(trial)}"
    notes: list[str] = []
    if trial.outcome != "inconclusive":
        notes.insert(0, noise)
    elif trial.refused:
        headline = f"{word}: {trial.reason}"
    else:
        headline = f"{headline} ({noise})"
    if trial.needed is not None:
        aim = trial.plan.detect if trial.plan.detect is not None else trial.decision.estimate
        notes.append(f"{counted(trial.needed, 'pair')} would catch {change(aim)} four times in five")
    row = Row(METRIC, trial.outcome, text, {"baseline_s": a, "candidate_s": b})
    return Result(title, trial.outcome, headline, (row,), tuple(notes), gate_document(trial, pairs, cause))


def catches(trial: Trial) -> str:
    """What the pairs allowed would detect, in words."""
    if not math.isfinite(trial.sees):
        return "catch nothing"
    return f"catch {change(trial.sees)} four times in five"


def gate_document(trial: Trial, pairs: Sequence[Pair], cause: Cause | None) -> dict[str, Any]:
    """What the JSON document says beside headline and rows; durations in seconds, changes as shares."""
    decision = trial.decision
    return {
        "estimate": decision.estimate,
        "low": decision.low,
        "high": decision.high,
        "margin": trial.plan.margin,
        "alpha": trial.plan.alpha,
        "noise": trial.noise,
        "detectable": trial.sees,
        "power": POWER,
        "pairs_allowed": trial.allowed,
        "pairs_used": len(trial.first),
        "pairs_repeated": len(trial.repeated),
        "pairs_needed": trial.needed,
        "pairs": [asdict(p) for p in pairs],
        "cause": None if cause is None else {"text": cause.text, "headline": cause.found.headline if cause.found else None},
    }


def aa_result(trial: Trial, pairs: Sequence[Pair], *, title: str) -> Result:
    """The result of measuring a command against itself: what this machine can see. Passes unless it differs from itself."""
    counts = (10, 20, 40)
    reach = {n: detectable(trial.differences, n, margin=trial.plan.margin, alpha=trial.plan.alpha) for n in counts}
    able = ", ".join(f"{change(reach[n])} with {n} pairs" for n in counts if math.isfinite(reach[n]))
    noise = f"noise of a pair {percent(trial.noise)}"
    text = f"{noise}; with a margin of {percent(trial.plan.margin)} a gate catches {able or 'nothing'}"
    asked = trial.plan.detect
    outcome: Outcome = "inconclusive"
    if trial.decision.outcome == "fail":
        headline = f"INCONCLUSIVE: the command differs from itself, {trial.reason}"
    elif asked is not None and trial.sees > asked:
        headline = f"INCONCLUSIVE: {counted(trial.allowed, 'pair')} cannot catch {change(asked)} four times in five; {text}"
    else:
        outcome, headline = "pass", f"PASS: the command does not differ from itself; {text}"
    row = Row(METRIC, outcome, text)
    document = {**gate_document(trial, pairs, None), "aa": True, "detectable_with": {str(n): v for n, v in reach.items()}}
    return Result(title, outcome, headline, (row,), (), document)
