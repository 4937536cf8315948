"""Study: one run under examination; every analysis is computed once, on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtprof.protocols import Analysis
from dtprof.run import Run


class Study:
    """The lens that analyses, rules, reports and pages look through."""

    def __init__(self, run: Run, analyses: dict[str, Analysis], known: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self._analyses = analyses
        self._results: dict[str, Any] = dict(known or {})

    @property
    def results(self) -> dict[str, Any]:
        """Analysis -> result, of those computed so far."""
        return dict(self._results)

    def result(self, name: str) -> Any:
        """The result of analysis ``name``, computed on first use; KeyError lists the known ones."""
        if name not in self._results:
            if name not in self._analyses:
                raise KeyError(f"no analysis {name!r}; known: {', '.join(sorted(self._analyses))}")
            self._results[name] = self._analyses[name](self)
        return self._results[name]
