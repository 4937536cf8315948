"""What the figures share: their width and a time axis from zero."""

from __future__ import annotations

from dtprof.numbers import Scale, ticks
from dtprof.report import svg

WIDTH = 920.0


def axis(left: float, right: float, y: float, top_ns: float, width: float = WIDTH) -> list[str]:
    """A time axis from zero; the unit stands on its last tick. ``top_ns`` lies at ``right``; ``width`` is the figure's."""
    scale = Scale.of([top_ns])
    marks = [svg.line(left, y, right, y, "ax")]
    values = ticks(top_ns / scale.size)
    for value in values:
        x = left + (right - left) * value * scale.size / top_ns
        words = f"{value:g}" + (f" {scale.unit}" if value == values[-1] else "")
        anchor = "end" if x + svg.width_of(words) / 2 > width else "middle"
        marks += [svg.line(x, y, x, y + 4, "ax"), svg.text(x, y + 18, words, "m", anchor)]
    return marks
