"""What a gate or a check ends with: one shape, so that every output says the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dtprof.stats import Outcome

EXIT: dict[Outcome, int] = {"pass": 0, "fail": 1, "inconclusive": 2}


@dataclass(frozen=True)
class Row:
    """One metric: its outcome and one sentence; ``values`` go to the JSON document."""

    name: str
    outcome: Outcome
    text: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def harmless(self) -> bool:
        """Inconclusive, and it does not even look worse than its margin: nobody has to act on it."""
        return self.outcome == "inconclusive" and self.values.get("suspect") is False


@dataclass(frozen=True)
class Result:
    """The whole: ``headline`` is the first line everywhere; ``rows`` the worst first; ``notes`` what else must be known."""

    title: str
    outcome: Outcome
    headline: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 inconclusive."""
        return EXIT[self.outcome]

    def to_document(self) -> dict[str, Any]:
        """The JSON document: schema 1."""
        return {
            "schema": 1,
            "title": self.title,
            "outcome": self.outcome,
            "headline": self.headline,
            **self.document,
            "metrics": [{"name": r.name, "outcome": r.outcome, "text": r.text, **r.values} for r in self.rows],
            "notes": list(self.notes),
        }
