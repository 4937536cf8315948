"""Advice: findings by what they cost, each with price, remedy and proof; and the record of what was verified."""

from __future__ import annotations

from datetime import UTC, datetime

from dtprof.advise.verify import VerdictRow
from dtprof.numbers import NOT_KNOWN, percent, seconds
from dtprof.report.html_tables import findings_list
from dtprof_dashboards import show
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
    _record(view)


def _record(view: View) -> None:
    title, rows = "The record: predicted against achieved", view.facts.verdicts
    if not rows:
        show.nothing(
            title,
            "Nothing of this run was verified yet.",
            f"Apply a finding’s edit and measure pairs with and without it:\ndtprof verify {view.path} --rule RULE -- COMMAND",
        )
        return
    held = [row.prediction_held for row in rows if row.prediction_held is not None]
    sub = f"{sum(held)} of {len(held)} predictions held." if held else "No prediction stood behind these."
    heads = ["when", "what", "outcome", "predicted saving", "achieved saving", "held"]
    show.section(title, sub, show.table(heads, [_row(row) for row in rows]))


def _row(row: VerdictRow) -> list[str]:
    what = row.rule or ", ".join(f"{k}={v}" for k, v in (row.edit or {}).items())
    predicted, achieved = row.predicted, row.achieved
    said = f"{seconds(predicted['low'])} to {seconds(predicted['high'])}" if predicted else "none"
    got = NOT_KNOWN
    if achieved is not None:
        got = f"{seconds(achieved.seconds_per_step)} ({percent(achieved.share_low)} to {percent(achieved.share_high)})"
    held = {True: "✓ held", False: "▲ did not hold", None: "no prediction"}[row.prediction_held]
    return [datetime.fromtimestamp(row.time, UTC).strftime("%Y-%m-%d %H:%M UTC"), what, row.outcome, said, got, held]


def _count(view: View) -> str:
    return str(len(view.facts.findings) or "")


PAGE = Page("advice", "Advice", "", render, _count)
