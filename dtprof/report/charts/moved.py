"""What moved between two runs: for each part of the step how much longer or shorter it takes in the second."""

from __future__ import annotations

from collections.abc import Mapping

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import MINUS, Scale, time
from dtprof.report import svg
from dtprof.report.palette import PARTS

PITCH, HIGH = 26.0, 18.0


def moved_figure(keys: Mapping[str, tuple[int, int]], width: float) -> str:
    """Bars to the right where B takes longer, to the left where it takes less; (A, B) in ns, keys that occur in either."""
    shown = [k for k in ACCOUNTING if k in keys and any(keys[k])]
    left = 16 + max(svg.width_of(PARTS[k].label) for k in shown)
    most = max(abs(keys[k][1] - keys[k][0]) for k in shown) or 1
    scale = Scale.of([most])
    room = width - left - 140
    middle = left + 70 + room / 2
    per_ns = room / 2 / most
    body = [svg.line(middle, 0, middle, PITCH * len(shown), "ax")]
    for i, key in enumerate(shown):
        a, b = keys[key]
        y, w = i * PITCH + 2, abs(b - a) * per_ns
        title = f"{PARTS[key].label} · {time(a)} in A, {time(b)} in B"
        body.append(svg.text(left - 12, y + 13, PARTS[key].label, "", "end"))
        if w >= 1:
            body.append(svg.rect(middle if b > a else middle - w, y, w, HIGH, svg.fill(key), title))
        sign = "+" if b > a else MINUS if b < a else ""
        words = f"{sign}{scale.with_unit(abs(b - a))}"
        body.append(svg.text(middle + w + 8 if b >= a else middle - w - 8, y + 13, words, "b", "start" if b >= a else "end"))
    return svg.figure(width, PITCH * len(shown) + 2, "Change of each part of the step from A to B", body)
