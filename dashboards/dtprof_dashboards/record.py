"""What was verified of a run: predictions beside what was achieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dtprof.advise.verify import VerdictRow
from dtprof.edits import Edit, as_mapping
from dtprof.numbers import NOT_KNOWN, percent, seconds
from dtprof_dashboards import show

TITLE = "The record: predicted against achieved"


def record(rows: Sequence[VerdictRow]) -> None:
    """The table of everything that was verified; ``rows`` is not empty."""
    held = [row.prediction_held for row in rows if row.prediction_held is not None]
    sub = f"{sum(held)} of {len(held)} predictions held." if held else "No prediction stood behind these."
    heads = ["when", "what", "outcome", "predicted saving", "achieved saving", "held"]
    show.section(TITLE, sub, show.table(heads, [_row(row) for row in rows]))


def measured_after(rows: Sequence[VerdictRow], edits: Sequence[Edit]) -> VerdictRow | None:
    """The newest verdict on exactly these edits that measured what they achieve; None without one."""
    wanted = as_mapping(edits)
    mine = [row for row in rows if row.edit == wanted and row.achieved is not None]
    return max(mine, key=lambda row: row.time, default=None)


def edit_words(edit: Mapping[str, Any]) -> str:
    """The edit of a finding or a verdict, as it is written on a command line."""
    return ", ".join(str(Edit(key, value)) for key, value in edit.items())


def held_words(row: VerdictRow) -> str:
    """Whether the prediction held, as sign and word."""
    return {True: "✓ held", False: "▲ did not hold", None: "no prediction"}[row.prediction_held]


def _row(row: VerdictRow) -> list[str]:
    what = row.rule or edit_words(row.edit or {})
    predicted, achieved = row.predicted, row.achieved
    said = f"{seconds(predicted['low'])} to {seconds(predicted['high'])}" if predicted else "none"
    got = NOT_KNOWN
    if achieved is not None:
        got = f"{seconds(achieved.seconds_per_step)} ({percent(achieved.share_low)} to {percent(achieved.share_high)})"
    when = datetime.fromtimestamp(row.time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [when, what, row.outcome, said, got, held_words(row)]
