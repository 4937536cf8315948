"""Verify: apply an edit, measure pairs with and without it, decide, and keep what was predicted beside what was achieved.

A rule that proposes no edit (a rank's host is slow) is verified by measuring the same command again after the repair,
against the recorded run: unpaired, so that a change of the machine counts as well, and the verdict says so.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

import msgspec
import numpy as np

from dtprof.edits import Edit, as_mapping
from dtprof.errors import InputError
from dtprof.findings import Finding, Prediction
from dtprof.jsonl import read_lines
from dtprof.launch.pairs import Pair, Protocol, Side, run_once, step_times
from dtprof.launch.trial import Trial
from dtprof.numbers import change, counted, percent, seconds
from dtprof.stats import Floats, Outcome, bounds, location, student_quantile

VERDICTS = "verdicts.jsonl"
Word = Literal["confirmed", "refuted", "inconclusive"]
EXIT: dict[Word, int] = {"confirmed": 0, "refuted": 1, "inconclusive": 2}
_WORDS: dict[Outcome, Word] = {"fail": "confirmed", "pass": "refuted", "inconclusive": "inconclusive"}
_LEAST_AGAIN = 3


class Saving(msgspec.Struct, kw_only=True):
    """What was saved: seconds per step, and as a share of the step, each with its interval."""

    seconds_per_step: float
    low: float
    high: float
    share: float
    share_low: float
    share_high: float


class VerdictRow(msgspec.Struct, kw_only=True):
    """One line of verdicts.jsonl. ``predicted`` is None where nobody predicted; ``time`` is Unix seconds.

    ``prediction_held``: the predicted interval and the achieved one meet; None without a prediction or an interval.
    """

    outcome: Word
    text: str
    rule: str | None
    edit: dict[str, Any] | None
    command: list[str]
    paired: bool
    measured: int
    noise: float | None
    baseline_s: float
    candidate_s: float
    predicted: dict[str, float] | None
    achieved: Saving | None
    prediction_held: bool | None
    time: int
    schema: int = 1


def verdict_of(
    trial: Trial,
    pairs: Sequence[Pair],
    command: Sequence[str],
    *,
    rule: str | None,
    edits: tuple[Edit, ...],
    prediction: Prediction | None,
) -> VerdictRow:
    """The verdict of a paired trial, whose "failure" is a candidate shorter by more than the margin."""
    word = _WORDS[trial.outcome]
    a, b = (median(trial.first[:, i].tolist()) for i in (0, 1))
    saving = _saving(trial.differences, trial.decision.alpha, a)
    predicted = None if prediction is None else asdict(prediction)
    what = "step" if pairs and pairs[-1].steps else "command"
    said = f"{', '.join(map(str, edits))}: {what} {seconds(a)} to {seconds(b)}, {trial.reason}"
    noise = f"noise of a pair {percent(trial.noise)}, {counted(len(trial.first), 'pair')}"
    return VerdictRow(
        outcome=word, text=f"{word.upper()}: {said} ({noise}){_against(predicted, saving)}", rule=rule, edit=as_mapping(edits),
        command=list(command), paired=True, measured=len(trial.first), noise=_finite(trial.noise), baseline_s=a, candidate_s=b,
        predicted=predicted, achieved=saving, prediction_held=_held(predicted, saving), time=int(clock.time()),
    )  # fmt: skip


def _saving(differences: Floats, alpha: float, baseline_s: float) -> Saving | None:
    limits = bounds(differences, alpha)
    if limits is None:
        return None
    share, low, high = (-math.expm1(v) for v in (location(differences), limits[1], limits[0]))
    return Saving(
        seconds_per_step=share * baseline_s,
        low=low * baseline_s,
        high=high * baseline_s,
        share=share,
        share_low=low,
        share_high=high,
    )


def _held(predicted: dict[str, float] | None, achieved: Saving | None) -> bool | None:
    if predicted is None or achieved is None:
        return None
    return predicted["low"] <= achieved.high and achieved.low <= predicted["high"]


def _against(predicted: dict[str, float] | None, achieved: Saving | None) -> str:
    held = _held(predicted, achieved)
    if predicted is None or held is None:
        return ""
    range_ = f"{seconds(predicted['low'])} to {seconds(predicted['high'])}"
    return f"; predicted saving {range_}: {'held' if held else 'did not hold'}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def measure_again(
    run: Path, side: Side, protocol: Protocol, *, times: int, margin: float, alpha: float, finding: Finding
) -> VerdictRow:
    """The same command again, several times, against the recorded run; Student's t of one old value and the new ones."""
    times = max(times, _LEAST_AGAIN)
    old = step_times(run, protocol.warm_up)
    if not old:
        raise InputError(f"{run}: has no recorded steps to compare with", "a rule without an edit needs a run of dtprof")
    before = median(old.values()) / 1e9
    after = []
    for i in range(times):
        again = run_once(side, protocol.folder / f"{i:03d}", timeout_s=protocol.timeout_s, warm_up=protocol.warm_up)
        if not again.steps:
            raise InputError("the command has no dtprof steps", "mark steps as in the recorded run")
        after.append(median(list(again.steps.values())[: protocol.steps]) / 1e9)
    logs = np.log(after) - math.log(before)
    half = student_quantile(alpha, times - 1) * stdev(logs.tolist()) * math.sqrt(1 + 1 / times)
    centre, limit = fmean(logs.tolist()), -math.log1p(margin)
    word: Word = "confirmed" if centre + half < limit else "refuted" if centre - half > limit else "inconclusive"
    shares = [-math.expm1(v) for v in (centre, centre + half, centre - half)]
    saving = Saving(
        seconds_per_step=shares[0] * before, low=shares[1] * before, high=shares[2] * before,
        share=shares[0], share_low=shares[1], share_high=shares[2],
    )  # fmt: skip
    predicted = None if finding.prediction is None else asdict(finding.prediction)
    candidate = before * math.exp(centre)
    text = (
        f"{word.upper()}: {finding.rule}, unpaired: step {seconds(before)} when recorded, {seconds(candidate)} now, "
        f"{change(-shares[0])} ({change(-shares[2])} to {change(-shares[1])}), mean of {counted(times, 'run')}; a change of "
        f"the machine since then counts as well{_against(predicted, saving)}"
    )
    return VerdictRow(
        outcome=word, text=text, rule=finding.rule, edit=None, command=[side.command], paired=False, measured=times,
        noise=float(np.std(logs, ddof=1)), baseline_s=before, candidate_s=candidate, predicted=predicted, achieved=saving,
        prediction_held=_held(predicted, saving), time=int(clock.time()),
    )  # fmt: skip


def keep(run: Path, row: VerdictRow) -> None:
    """Append the verdict to RUN/verdicts.jsonl; InputError where the folder cannot be written."""
    try:
        with (run / VERDICTS).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    except OSError as error:
        raise InputError(
            f"{run / VERDICTS}: cannot be written ({error.strerror or error})", "make the run folder writable"
        ) from error


def verdicts(run: Path) -> list[VerdictRow]:
    """What has been verified of this run, oldest first; torn lines are left out."""
    rows: list[VerdictRow] = read_lines(run / VERDICTS, VerdictRow)[0] if run.is_dir() else []
    return rows
