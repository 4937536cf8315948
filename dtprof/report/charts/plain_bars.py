"""Bars of one part beside names, with their number and a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtprof.report import svg

PITCH, HIGH = 26.0, 18.0


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its length, the number in words, a note in muted words, a title, a paint of its own."""

    name: str
    value: float
    words: str
    note: str = ""
    title: str = ""
    bold: bool = False
    paint: str = ""


def bars_figure(found: Sequence[Bar], paint: str, width: float, label: str) -> str:
    """The figure; ``paint`` is a CSS colour of the palette; ``found`` is not empty."""
    left = 14 + max(svg.width_of(b.name, bold=b.bold) for b in found)
    beside = 16 + max(svg.width_of(b.words, bold=True) + svg.width_of(b.note) + 10 for b in found)
    room = max(width - left - beside, 60.0)
    top = max((b.value for b in found), default=0.0) or 1.0
    body = []
    for i, bar in enumerate(found):
        y = i * PITCH
        w = max(bar.value, 0.0) / top * room
        body.append(svg.text(left - 10, y + 13, bar.name, "b" if bar.bold else "", "end"))
        if w >= 1:
            body.append(svg.rect(left, y, w, HIGH, bar.paint or paint, bar.title or f"{bar.name} · {bar.words}"))
        body.append(svg.text(left + w + 8, y + 13, bar.words, "b"))
        if bar.note:
            body.append(svg.text(left + w + 18 + svg.width_of(bar.words, bold=True), y + 13, bar.note, "m"))
    return svg.figure(width, PITCH * len(found), label, body)
