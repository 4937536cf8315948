"""Findings and verdicts in words: place, cost, price; shared by terminal and page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dtprof.findings import Evidence, Finding
from dtprof.numbers import NOT_KNOWN, Scale, counted, interval, named, percent

NO_PREDICTION = "no prediction: the cost is measured, what a change would save is not"

# the words of a verdict that carry a colour of their own
_EMPHASIS = (("waiting", "wait"), ("moving data", "transfer"), ("computing", "compute"), ("compute", "compute"))


def cost_scale(findings: Sequence[Finding]) -> Scale:
    """One unit for the costs of all findings."""
    return Scale.of(f.seconds_per_step * 1e9 for f in findings if f.seconds_per_step is not None)


def cost(finding: Finding, scale: Scale) -> str:
    """``4.40 ms``, ``≤ 0.89 ms`` or ``not known``: what the fault takes from each step."""
    if finding.seconds_per_step is None:
        return NOT_KNOWN
    text = scale.with_unit(finding.seconds_per_step * 1e9)
    return f"≤ {text}" if finding.bound else text


def price(finding: Finding, scale: Scale) -> str:
    """What a change would save, as a prediction with its record, or why there is none."""
    predicted = finding.prediction
    if predicted is not None:
        saving = scale.with_unit(predicted.seconds_per_step * 1e9)
        band = interval(predicted.low * 1e9, predicted.high * 1e9)
        rest = predicted.unexplained_fraction
        record = f"replay error {percent(predicted.replay_error)}" + ("" if rest is None else f", unexplained {percent(rest)}")
        return f"saves {saving} per step ({band}); {record}"
    if finding.seconds_per_step is None:
        return "no prediction: what it costs is not known"
    if finding.bound:
        return f"at most {scale.with_unit(finding.seconds_per_step * 1e9)} per step, the whole of it; no prediction"
    return NO_PREDICTION


def share(finding: Finding) -> str:
    """``30% of the step``, or nothing where the share is not known."""
    return "" if finding.share is None else f"{percent(finding.share)} of the step"


def place(finding: Finding) -> str:
    """``rank 7 · step 10 · 40 events``."""
    events = sum(e.count for e in finding.evidence)
    where = [
        named("rank", finding.ranks) if finding.ranks else "no single rank",
        named("step", finding.steps) if finding.steps else "the whole capture",
    ]
    if events:
        where.append(counted(events, "event"))
    return " · ".join(where)


def evidence(item: Evidence) -> str:
    """The sentence, ended."""
    return item.text if item.text.endswith((".", "!", "?", ")")) else item.text + "."


def is_command(text: str) -> bool:
    """Is this line something to type?"""
    return bool(re.match(r"(\$ |dtprof |torchrun |python3? |pip install |[A-Z_]+=\S+ )", text))


def emphasis(verdict: str) -> tuple[str, str, str]:
    """Split a verdict line into (emphasised beginning, its meaning, rest): up to the first word that has a colour.

    Only a line that begins with its number has one.
    """
    if not verdict[:1].isdigit():
        return "", "", verdict
    found = [(m.end(), meaning) for word, meaning in _EMPHASIS if (m := re.search(rf"\b{word}\b", verdict))]
    if not found:
        return "", "", verdict
    end, meaning = min(found)
    return verdict[:end], meaning, verdict[end:]
