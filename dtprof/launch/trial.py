"""A paired trial: pairs of measurements until they decide, at looks fixed beforehand, with a repetition before a failure.

What is measured is a function from the number of a pair to its two durations, so that commands, Python functions and
simulated noise go through the same decision.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dtprof.errors import InputError
from dtprof.numbers import change, counted, percent, seconds
from dtprof.stats import (
    CONFIRM_ALPHA,
    Decision,
    Floats,
    Outcome,
    confirming,
    decide,
    detectable,
    least_pairs,
    looks,
    pairs_for,
    spread,
)

Measure = Callable[[int], tuple[float, float]]
Say = Callable[[str], None]
POWER = 0.8


@dataclass(frozen=True)
class Plan:
    """How much may be measured and what decides.

    ``margin`` and ``detect`` are shares of the baseline (``detect`` None: whatever the noise allows), ``alpha`` the chance
    of a false failure. With ``minutes`` the number of pairs follows from how long the first one takes. ``direction`` -1
    asks whether the candidate is *shorter* by more than the margin.
    """

    pairs: int = 20
    minutes: float | None = None
    margin: float = 0.02
    alpha: float = 0.01
    detect: float | None = None
    confirm: bool = True
    early: bool = True
    direction: int = 1

    def check(self) -> None:
        """InputError where the pairs can never decide."""
        least = least_pairs(self.alpha)
        if self.minutes is None and self.pairs < least:
            level = math.ceil(1000 * 2.0**-self.pairs) / 10
            wider = f", or --alpha {level:g}%" if level < 50 else ""
            raise InputError(
                f"{counted(self.pairs, 'pair')} cannot decide at {percent(self.alpha)}: no outcome of so few is that rare",
                f"give --pairs {least} or more{wider}",
            )
        if self.detect is not None and self.detect <= self.margin:
            raise InputError(
                f"a slowdown of {percent(self.detect)} is within the margin of {percent(self.margin)}, which is allowed",
                "ask for --detect above --margin",
            )


@dataclass(frozen=True)
class Trial:
    """What the pairs said. ``first`` and ``repeated`` are durations (n x 2: baseline, candidate) in the unit measured.

    ``decision`` is of the first pairs, in the plan's direction: with direction -1 its shares are baseline / candidate - 1.
    ``refused``: stopped because they could not detect what was asked for.
    """

    outcome: Outcome
    reason: str
    plan: Plan
    allowed: int
    decision: Decision
    first: Floats
    repeated: Floats = field(default_factory=lambda: np.empty((0, 2)))
    refused: bool = False

    @property
    def differences(self) -> Floats:
        """ln(candidate / baseline) of the first pairs."""
        return differences_of(self.first)

    @property
    def noise(self) -> float:
        """Deviation of the differences: the noise of one pair."""
        return spread(self.differences)

    @cached_property
    def sees(self) -> float:
        """The change that all the pairs allowed detect four times in five, in the plan's direction."""
        plan, found = self.plan, self.plan.direction * self.differences
        most = 3 if plan.early else 1
        return detectable(
            found, self.allowed, margin=plan.margin, alpha=plan.alpha, power=POWER, most=most, confirm=plan.confirm
        )

    @cached_property
    def needed(self) -> int | None:
        """Pairs that would detect what was asked for, or else what was estimated; None where that is within the margin,
        and where a failure did not repeat: it is not for want of pairs."""
        plan, found = self.plan, self.plan.direction * self.differences
        aim = plan.detect if plan.detect is not None else self.decision.estimate
        if self.outcome != "inconclusive" or len(self.repeated) or aim <= plan.margin:
            return None
        most = 3 if plan.early else 1
        return pairs_for(found, aim, margin=plan.margin, alpha=plan.alpha, power=POWER, most=most, confirm=plan.confirm)


def differences_of(durations: Floats) -> Floats:
    """ln(candidate / baseline) of each row."""
    found: Floats = np.log(durations[:, 1] / durations[:, 0])
    return found


def run_trial(measure: Measure, plan: Plan, say: Say = lambda _: None) -> Trial:
    """Measure pairs until a look decides, the pairs are spent, or it is plain that they cannot detect what was asked for."""
    plan.check()
    durations: list[tuple[float, float]] = []
    begin = clock.monotonic()
    _gather(measure, durations, 1)
    first_s = clock.monotonic() - begin
    allowed = _allowed(plan, first_s)
    most = allowed + (confirming(allowed) if plan.confirm else 0)
    say(f"the first pair took {seconds(first_s)}; {counted(most, 'pair')} at most, in {seconds(first_s * most)}")
    schedule, level = looks(allowed, plan.alpha, 3 if plan.early else 1)
    for look in schedule:
        _gather(measure, durations, look)
        found = plan.direction * differences_of(np.array(durations))
        decision = decide(found, plan.margin, level)
        say(f"{counted(look, 'pair')} of {allowed}: {_words(plan, decision)}")
        if plan.early and decision.outcome != "inconclusive":
            break
        if look == schedule[0] and plan.detect is not None and (refused := _refused(plan, allowed, decision, durations)):
            return refused
    first = np.array(durations)
    if decision.outcome == "fail" and plan.confirm:
        return _repeat(measure, plan, allowed, decision, first, say)
    return Trial(decision.outcome, _reason(plan, decision), plan, allowed, decision, first)


def _gather(measure: Measure, durations: list[tuple[float, float]], count: int) -> None:
    while len(durations) < count:
        durations.append(measure(len(durations)))


def _allowed(plan: Plan, first_s: float) -> int:
    """Pairs that the budget allows: the minutes hold the pairs and, where one is due, the repetition."""
    if plan.minutes is None:
        return plan.pairs
    affordable = int(plan.minutes * 60 / max(first_s, 1e-9) / (1.5 if plan.confirm else 1.0))
    least = least_pairs(plan.alpha)
    if affordable < least:
        enough = math.ceil(least * (1.5 if plan.confirm else 1.0) * first_s / 6) / 10
        raise InputError(
            f"{plan.minutes:g} minutes hold {counted(affordable, 'pair')} of {first_s:.1f} s; {least} are needed to decide",
            f"give --minutes {enough:g} or more, or fewer steps",
        )
    return min(affordable, 200)


def _refused(plan: Plan, allowed: int, decision: Decision, durations: list[tuple[float, float]]) -> Trial | None:
    """Stop after the first look where even all the pairs would not detect what was asked for."""
    first = np.array(durations)
    found = Trial("inconclusive", "", plan, allowed, decision, first)
    if plan.detect is None or found.sees <= plan.detect:
        return None
    ways = [f"--detect {_up(found.sees)} is possible"]
    if found.needed is not None:
        ways.insert(0, f"{found.needed} pairs would")
    reason = (
        f"{counted(allowed, 'pair')} cannot detect {change(plan.detect)} beyond the margin of {percent(plan.margin)} here: "
        f"the noise of a pair is {percent(found.noise)}, which lets them see {change(found.sees)}; {', or '.join(ways)}"
    )
    return replace(found, reason=reason, refused=True)


def _up(share: float) -> str:
    return f"{math.ceil(1000 * share) / 10:g}%" if math.isfinite(share) else "of nothing"


def _repeat(measure: Measure, plan: Plan, allowed: int, decision: Decision, first: Floats, say: Say) -> Trial:
    count = confirming(allowed)
    say(f"a failure; {counted(count, 'more pair', 'more pairs')} have to repeat it")
    again: list[tuple[float, float]] = []
    while len(again) < count:
        again.append(measure(len(first) + len(again)))
    repeated = np.array(again)
    second = decide(plan.direction * differences_of(repeated), plan.margin, CONFIRM_ALPHA)
    if second.outcome == "fail":
        return Trial("fail", _reason(plan, decision), plan, allowed, decision, first, repeated)
    reason = f"a failure that did not repeat: {_words(plan, decision)} at first, {_words(plan, second)} again"
    return Trial("inconclusive", reason, plan, allowed, decision, first, repeated)


def _words(plan: Plan, decision: Decision) -> str:
    """The candidate's change with its interval, whatever the direction of the decision."""

    def of(value: float) -> str:
        return change(math.expm1(plan.direction * math.log1p(value)))

    if decision.low is None or decision.high is None:
        return of(decision.estimate)
    low, high = (decision.low, decision.high) if plan.direction > 0 else (decision.high, decision.low)
    return f"{of(decision.estimate)} ({of(low)} to {of(high)})"


def _reason(plan: Plan, decision: Decision) -> str:
    what = _words(plan, decision)
    if plan.direction < 0:
        return {
            "fail": f"{what}: shorter by more than {percent(plan.margin)}",
            "pass": f"{what}: not shorter by {percent(plan.margin)}",
            "inconclusive": f"{what}: a saving of {percent(plan.margin)} is neither shown nor excluded",
        }[decision.outcome]
    return {
        "fail": f"{what}: longer by more than the margin of {percent(plan.margin)}",
        "pass": f"{what}: within the margin of {percent(plan.margin)}",
        "inconclusive": f"{what}: neither shown to be within the margin of {percent(plan.margin)} nor beyond it",
    }[decision.outcome]
