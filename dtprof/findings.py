"""Findings, predictions and verdicts: plain values that rules produce and every output draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")


@dataclass(frozen=True)
class Evidence:
    """One sentence of evidence and the event rows behind it: part ordinal -> rows of that part's events."""

    text: str
    events: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many events stand behind the sentence."""
        return sum(map(len, self.events.values()))


@dataclass(frozen=True)
class Prediction:
    """Predicted saving of an edit, in seconds per step, with its interval and the model's own record.

    ``unexplained_fraction`` is that of the critical path; None where the model has no such path.
    """

    seconds_per_step: float
    low: float
    high: float
    replay_error: float
    unexplained_fraction: float | None


@dataclass(frozen=True)
class Finding:
    """One cause with its place, its price and what to do.

    ``ranks`` are the culprits (victims stand in the evidence); ``seconds_per_step`` is what the fault costs, or None
    where it cannot be told; ``why`` and ``next`` are the sentences of the verdict when this finding leads it.
    """

    rule: str
    severity: Severity
    title: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    seconds_per_step: float | None
    evidence: tuple[Evidence, ...]
    why: str
    next: str
    apply: str
    verify: str
    share: float | None = None
    bound: bool = False
    edit: dict[str, Any] | None = None
    prediction: Prediction | None = None


@dataclass(frozen=True)
class Verdict:
    """The three lines that everybody sees first, and the line of facts above them."""

    header: str
    verdict: str
    why: str
    next: tuple[str, ...]
    commands: tuple[str, ...] = ()
