"""Advice: findings by what they cost, each with price, remedy and proof; and the record of what was verified."""

from __future__ import annotations

from dtprof.report.html_tables import findings_list
from dtprof_dashboards import show
from dtprof_dashboards.record import TITLE, record
from dtprof_dashboards.view import Page, View


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Advice", view.meta)
    if facts.findings:
        lead = max((f for f in facts.findings), key=lambda f: (f.severity == "high", f.seconds_per_step or 0.0))
        show.verdict(lead.title, lead.why, [lead.next] if lead.next else [])
        sub = "What the fault takes is its cost; what a change would save is a prediction with its interval, or none."
        show.section("What to do, worst first", sub, findings_list(facts.findings))
    else:
        show.verdict("nothing to do was found", facts.verdict.why, facts.verdict.next, facts.verdict.commands)
    if facts.verdicts:
        record(facts.verdicts)
    else:
        show.nothing(
            TITLE,
            "Nothing of this run was verified yet.",
            f"Apply a finding’s edit and measure pairs with and without it:\ndtprof verify {view.path} --rule RULE -- COMMAND",
        )


def _count(view: View) -> str:
    return str(len(view.facts.findings) or "")


PAGE = Page("advice", "Advice", "", render, _count)
