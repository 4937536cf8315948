"""The budget: for each rank the parts of its step as one stacked bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import Scale, percent, time
from dtprof.report import svg
from dtprof.report.budget import BudgetRow, short_note
from dtprof.report.charts.axes import WIDTH, axis
from dtprof.report.palette import PARTS

BAR, PITCH = 24.0, 32.0
# room at the right for the total and the note
BESIDE = 150.0
LABEL_ROW, NUMBER_FITS, MOST_LABELS = 18.0, 36.0, 7


def budget_figure(
    rows: Sequence[BudgetRow],
    mean: BudgetRow | None,
    shares: Mapping[str, float],
    scale: Scale,
    width: float = WIDTH,
    leads: bool = False,
) -> str:
    """Stacked bars, one per row, the mean above them; names of the parts with leaders above the first bar.

    ``shares`` are what the names say; ``scale`` gives the numbers inside the bars; ``width`` in px. ``rows`` is not empty.
    Where the figure ``leads``, a click on a bar chooses its rank.
    """  # fmt: skip
    bars = [mean, *rows] if mean else list(rows)
    left = max(64.0, 14 + max(svg.width_of(r.label, bold=True) for r in bars))
    right = width - (BESIDE if width >= WIDTH else BESIDE / 2)
    per_ns = (right - left) / max(r.total for r in bars)
    names = _names(bars, shares, left, per_ns, width)
    levels = 1 + max((level for _, _, level, _ in names), default=0)
    top = levels * LABEL_ROW + 22
    body = [svg.line(anchor, top - 11 - level * LABEL_ROW, anchor, top - 2, "lead") for anchor, _, level, _ in names]
    body += [svg.text(x, top - 16 - level * LABEL_ROW, words, "b halo") for _, x, level, words in names]
    y = top
    for i, row in enumerate(bars):
        bar = "".join(_bar(row, left, y, per_ns, scale, width))
        go = svg.leads(f"rank={row.rank}") if leads and row.rank is not None else ""
        body.append(f"<g{go}>{bar}</g>" if go else bar)
        y += PITCH
        if mean and i == 0:
            body.append(svg.line(0, y + 2, right, y + 2, "hair"))
            y += 12
    body += axis(left, right, y, max(r.total for r in bars), width=width)
    return svg.figure(width, y + 20, "Step budget: for each rank the parts of its step, summing to the step", body)


def undrawn(rows: Sequence[BudgetRow]) -> list[str]:
    """Keys that some row spends time on but that no bar can show: under one pixel in each."""
    per_ns = (WIDTH - BESIDE - 64) / max(r.total for r in rows)
    return [k for k in ACCOUNTING if any(r.parts[k] for r in rows) and all(r.parts[k] * per_ns < 1 for r in rows)]


def _bar(row: BudgetRow, left: float, y: float, per_ns: float, scale: Scale, width: float) -> list[str]:
    strong = "b" if row.culprit or row.part is None else ""
    who = row.label if row.part is not None else "mean of the ranks"
    marks = [svg.text(left - 12, y + 16, row.label, strong, "end")]
    x = left
    for key in ACCOUNTING:
        w = row.parts[key] * per_ns
        if w >= 1:
            share = row.parts[key] / row.total
            title = f"{who} · {PARTS[key].label} {time(row.parts[key])} · {percent(share)} of its step"
            marks.append(svg.rect(x, y, w - 1 if w > 2 else w, BAR, svg.fill(key), title))
            if w >= max(NUMBER_FITS, svg.width_of(scale.text(row.parts[key])) + 8):
                marks.append(svg.on_mark(x + (w - 1) / 2, y + 16.2, scale.text(row.parts[key]), key))
        x += w
    total = time(row.total)
    marks.append(svg.text(x + 9, y + 16, total, strong))
    note_x = x + 9 + svg.width_of(total, bold=True) + 8
    fitting = [n for n in (row.note, short_note(row)) if n and note_x + svg.width_of(n) <= width]
    if fitting:
        marks.append(svg.text(note_x, y + 16, fitting[0], "m"))
    return marks


def _names(
    bars: Sequence[BudgetRow], shares: Mapping[str, float], left: float, per_ns: float, width: float
) -> list[tuple[float, float, int, str]]:
    """(anchor, text start, level above the bar, words) of the names of the parts, so that no two meet.

    Placed from the right: each takes the lowest level on which it ends before the next name begins and before the
    leader of a higher name comes down. Where parts are too thin for that, a leader passes behind a name.
    """
    keys = [k for k in ACCOUNTING if any(r.parts[k] * per_ns >= 1 for r in bars)]
    keys = sorted(sorted(keys, key=lambda k: -shares.get(k, 0.0))[:MOST_LABELS], key=ACCOUNTING.index)
    placed: list[tuple[float, float, int, str]] = []
    for key in reversed(keys):
        before = sum(bars[0].parts[k] for k in ACCOUNTING[: ACCOUNTING.index(key)]) * per_ns
        w = bars[0].parts[key] * per_ns
        words = f"{PARTS[key].label.replace(':', ',')} {percent(shares.get(key, 0.0))}"
        wide = svg.width_of(words, bold=True)
        anchor = left + before + min(3.0, w / 2)
        start = min(anchor - 3, width - wide)
        clashes = [sum(_clash(anchor, start, wide, level, other) for other in placed) for level in range(len(placed) + 1)]
        level = clashes.index(min(clashes))
        placed.append((anchor, start, level, words))
    return placed


def _clash(anchor: float, start: float, wide: float, level: int, other: tuple[float, float, int, str]) -> int:
    """How badly a name on this level meets another one: text on text 10, a leader behind a text 1, not at all 0."""
    other_anchor, other_start, other_level, words = other
    if level == other_level:
        return 10 if start + wide + 8 > other_start else 0
    if level < other_level:
        return int(start < other_anchor < start + wide)
    return int(other_start < anchor < other_start + svg.width_of(words, bold=True))
