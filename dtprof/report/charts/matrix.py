"""A matrix of numbers in one hue: who waits in which operation, which rank is slow in which step, which expert is full."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dtprof.report import svg

HEAD, PITCH, THIN, LEAST_CELL = 22.0, 24.0, 7.0, 3.0
# the strongest paint, and what lies under it in steps of the logarithm
STRONGEST, DECADES = 0.6, 3.0
MANY = 24


@dataclass(frozen=True)
class Cell:
    """One number: ``level`` from 0 to 1 paints it (None leaves it empty), ``words`` stand in it where they fit.

    ``go`` is where a click on it leads, as ``page=timeline&rank=1``.
    """

    level: float | None
    words: str
    title: str
    bold: bool = False
    go: str = ""


def log_level(value: float, top: float) -> float:
    """0 to 1 over three decades below ``top``, in a logarithm; nothing for 0 and below."""
    if value <= 0 or top <= 0:
        return 0.0
    return min(max(1 + math.log10(value / top) / DECADES, 0.05), 1.0)


def matrix_figure(
    rows: Sequence[tuple[str, Sequence[Cell]]],
    columns: Sequence[str],
    key: str,
    width: float,
    label: str,
    bold: Collection[str] = (),
) -> str:
    """The figure: a row per name, a column per name, in the hue of the accounting key ``key``; ``rows`` is not empty."""
    left = 14 + max(svg.width_of(name, bold=name in bold) for name, _ in rows)
    pitch = max(min((width - left) / max(len(columns), 1), 110.0), LEAST_CELL)
    high = PITCH if len(rows) <= MANY else max(PITCH * MANY / len(rows), THIN)
    body = _heads(columns, left, pitch)
    every = max(1, round(14 / high))
    for i, (name, cells) in enumerate(rows):
        y = HEAD + i * high
        if i % every == 0:
            body.append(svg.text(left - 10, y + high / 2 + 4, name, "b" if name in bold else "", "end"))
        for j, cell in enumerate(cells):
            body += _cell(cell, left + j * pitch, y, pitch, high, key)
    return svg.figure(max(width, left + pitch * len(columns)), HEAD + high * len(rows) + 4, label, body)


def _heads(columns: Sequence[str], left: float, pitch: float) -> list[str]:
    widest = max((svg.width_of(c) for c in columns), default=0.0) + 8
    every = max(1, math.ceil(widest / pitch))
    shown = range(0, len(columns), every)
    return [svg.text(left + (j + 0.5) * pitch, HEAD - 8, columns[j], "m", "middle") for j in shown]


def _cell(cell: Cell, x: float, y: float, w: float, h: float, key: str) -> list[str]:
    gap = 1.0 if w > 6 and h > 6 else 0.0
    paint, look = (svg.fill(key), f' fill-opacity="{cell.level * STRONGEST:.2f}"') if cell.level else ("var(--hair)", "")
    if cell.level is None:
        paint, look = "none", ' pointer-events="all"'
    marks = [svg.rect(x, y, w - gap, h - gap, paint, cell.title, look + svg.leads(cell.go))]
    if cell.words and h >= 14 and svg.width_of(cell.words, bold=cell.bold) + 4 <= w:
        marks.append(svg.text(x + (w - gap) / 2, y + h / 2 + 4, cell.words, "b in" if cell.bold else "in", "middle"))
    return marks
