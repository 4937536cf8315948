"""Figures of results, as SVG text: the budget, an operation across ranks, waiting against moving.

Pure functions. Every mark has a title, every figure a label; lengths start at zero; no part is drawn under one pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtprof.analyse.results import ACCOUNTING, Operation
from dtprof.numbers import Scale, percent, ticks, time
from dtprof.report import svg
from dtprof.report.budget import BudgetRow, short_note
from dtprof.report.operations import op_words
from dtprof.report.palette import PARTS

WIDTH = 920.0
BAR, PITCH, RIGHT = 24.0, 32.0, 770.0
LABEL_ROW, NUMBER_FITS, MOST_LABELS = 18.0, 36.0, 7
STRIP, STRIP_LEFT = 270.0, 12.0


def budget_figure(rows: Sequence[BudgetRow], mean: BudgetRow | None, shares: Mapping[str, float], scale: Scale) -> str:
    """Stacked bars, one per row, the mean above them; names of the parts with leaders above the first bar.

    ``shares`` are what the names say; ``scale`` gives the numbers inside the bars. ``rows`` is not empty.
    """
    bars = [mean, *rows] if mean else list(rows)
    left = max(64.0, 14 + max(svg.width_of(r.label, bold=True) for r in bars))
    per_ns = (RIGHT - left) / max(r.total for r in bars)
    names = _names(bars, shares, left, per_ns)
    levels = 1 + max((level for _, _, level, _ in names), default=0)
    top = levels * LABEL_ROW + 22
    body = [svg.line(anchor, top - 11 - level * LABEL_ROW, anchor, top - 2, "lead") for anchor, _, level, _ in names]
    body += [svg.text(x, top - 16 - level * LABEL_ROW, words, "b halo") for _, x, level, words in names]
    y = top
    for i, row in enumerate(bars):
        body += _bar(row, left, y, per_ns, scale)
        y += PITCH
        if mean and i == 0:
            body.append(svg.line(0, y + 2, RIGHT, y + 2, "hair"))
            y += 12
    body += axis(left, RIGHT, y, max(r.total for r in bars))
    return svg.figure(WIDTH, y + 20, "Step budget: for each rank the parts of its step, summing to the step", body)


def undrawn(rows: Sequence[BudgetRow]) -> list[str]:
    """Keys that some row spends time on but that no bar can show: under one pixel in each."""
    per_ns = (RIGHT - 64) / max(r.total for r in rows)
    return [k for k in ACCOUNTING if any(r.parts[k] for r in rows) and all(r.parts[k] * per_ns < 1 for r in rows)]


def axis(left: float, right: float, y: float, top_ns: float, right_at: float | None = None) -> list[str]:
    """A time axis from zero; the unit stands on its last tick. ``top_ns`` lies at ``right``."""
    scale = Scale.of([top_ns])
    marks = [svg.line(left, y, right if right_at is None else right_at, y, "ax")]
    values = ticks(top_ns / scale.size)
    for value in values:
        x = left + (right - left) * value * scale.size / top_ns
        words = f"{value:g}" + (f" {scale.unit}" if value == values[-1] else "")
        anchor = "end" if x + svg.width_of(words) / 2 > WIDTH else "middle"
        marks += [svg.line(x, y, x, y + 4, "ax"), svg.text(x, y + 18, words, "m", anchor)]
    return marks


def _bar(row: BudgetRow, left: float, y: float, per_ns: float, scale: Scale) -> list[str]:
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
    fitting = [n for n in (row.note, short_note(row)) if n and note_x + svg.width_of(n) <= WIDTH]
    if fitting:
        marks.append(svg.text(note_x, y + 16, fitting[0], "m"))
    return marks


def _names(
    bars: Sequence[BudgetRow], shares: Mapping[str, float], left: float, per_ns: float
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
        start = min(anchor - 3, WIDTH - wide)
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


def strip(operation: Operation, ranks: Sequence[tuple[int, str]], top_ns: float) -> str:
    """One operation as thin lines, a line per rank on a scale shared by all strips: waiting, then moving."""
    per_ns = (STRIP - STRIP_LEFT) / top_ns
    name = f"operation {operation.id}"
    pitch = 5.2
    height = max(len(ranks) * pitch + 2.4, 14)
    body = [svg.line(STRIP_LEFT, 0, STRIP_LEFT, height, "ax")]
    for i, (rank, word) in enumerate(ranks):
        y = 2 + i * pitch
        who = f"{name} · rank {rank}" + (f", {word}" if word else "")
        body += _strip_line(operation, rank, who, y, per_ns)
        if rank == operation.last_rank:
            y += 2
            path = f"M2 {svg.number(y - 3.6)} l8 3.6 l-8 3.6 z"
            body.append(f'<path d="{path}" fill="var(--ink)"><title>rank {rank} arrives last</title></path>')
    label = f"{name}, {op_words(operation.op)}: {len(ranks)} ranks, waiting then moving"
    return svg.figure(STRIP, height, label, body, fixed=True)


def _strip_line(operation: Operation, rank: int, who: str, y: float, per_ns: float) -> list[str]:
    whole, wait, transfer = operation.dur_ns[rank], operation.wait_ns.get(rank), operation.transfer_ns
    if wait is None or transfer is None:
        title = f"{who} · {time(whole)}, waiting and moving not told apart"
        return [svg.rect(STRIP_LEFT, y, max(whole * per_ns, 1.2), 4, svg.fill("comm_unsplit_ns"), title)]
    marks = []
    x = STRIP_LEFT + wait * per_ns
    if wait > 0:
        title = f"{who} · waits {time(wait)}, then moves data {time(transfer)}"
        marks.append(svg.rect(STRIP_LEFT, y, wait * per_ns, 4, svg.fill("comm_wait_ns"), title))
    title = f"{who} · moves data {time(transfer)}" + ("" if wait > 0 else ", waits for nobody")
    marks.append(svg.rect(x, y, max(transfer * per_ns, 1.2), 4, svg.fill("comm_transfer_ns"), title))
    return marks


def strip_axis(top_ns: float) -> str:
    """The scale of all strips, for the head of their column."""
    scale = Scale.of([top_ns])
    values = ticks(top_ns / scale.size)
    body = []
    for value in values:
        x = STRIP_LEFT + (STRIP - STRIP_LEFT) * value * scale.size / top_ns
        last = value == values[-1]
        words = f"{value:g}" + (f" {scale.unit}" if last else "")
        end = last and x + svg.width_of(words) / 2 > STRIP
        body.append(svg.text(STRIP if end else x, 11, words, "m", "end" if end else "middle"))
    return svg.figure(STRIP, 14, f"scale from 0 to {time(top_ns)}", body, fixed=True)


def wait_against_move(wait_ns: float, move_ns: float) -> str:
    """Waiting and moving of one operation, summed over the ranks, as shares of a short bar."""
    whole, wide = wait_ns + move_ns, 72.0
    if whole <= 0:
        return ""
    w = wait_ns / whole * wide
    body = []
    if w >= 1:
        body.append(svg.rect(0, 0, w - 1, 12, svg.fill("comm_wait_ns"), f"waiting {percent(wait_ns / whole)}"))
    if wide - w >= 1:
        body.append(svg.rect(w, 0, wide - w, 12, svg.fill("comm_transfer_ns"), f"moving data {percent(move_ns / whole)}"))
    return svg.figure(wide, 12, f"waiting {percent(wait_ns / whole)} of the time in it", body, fixed=True)
