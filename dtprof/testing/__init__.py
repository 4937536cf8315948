"""For those who write plugins: does a collector keep its contract?

    from dtprof.testing import check_collector

    def test_contract():
        check_collector(MyCollector)

What is checked (``dtprof.protocols.Collector``): both halves in their order, with and without a capture; a session that is
killed at any step, and files that are cut, damaged or gone; an empty folder; nothing written outside its folder, nothing
printed, nothing left behind in the process; an exception that the session can catch where the folder has gone; facts that
JSON can hold; and what ``on_step`` costs. It runs without a process group, and needs nothing but dtprof itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dtprof.errors import PluginError
from dtprof.testing.checks import CHECKS, Candidate, its_form

STEP_COST_NS = 250_000


def violations(
    factory: Callable[[], Any], *, options: Mapping[str, Any] | None = None, step_cost_ns: int | None = STEP_COST_NS
) -> list[str]:
    """What a collector does against its contract, one sentence each; [] where it keeps it.

    ``factory`` is the class, or a function that makes a new collector; ``options`` are its own. ``step_cost_ns`` bounds the
    median processor time of ``on_step`` outside a capture; the default is half a percent of a step of 50 ms.
    """
    candidate = Candidate(factory, dict(options or {}), step_cost_ns)
    found: list[str] = list(its_form(candidate))
    for check in () if found else CHECKS:
        found += [problem for problem in check(candidate) if problem not in found]
    return found


def check_collector(
    factory: Callable[[], Any], *, options: Mapping[str, Any] | None = None, step_cost_ns: int | None = STEP_COST_NS
) -> None:
    """Raise PluginError that names everything which ``violations`` finds."""
    found = violations(factory, options=options, step_cost_ns=step_cost_ns)
    if found:
        name = getattr(factory, "__qualname__", None) or repr(factory)
        said = "".join(f"\n  - {problem}" for problem in found)
        raise PluginError(f"{name} does not keep the contract of a collector:{said}", "see A collector in docs/extending.md")
