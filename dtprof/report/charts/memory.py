"""Memory over time: bytes at every reading as a line, the peak marked; and categories side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtprof.intervals import Ints
from dtprof.numbers import memory, ticks, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis

HEIGHT, TOP, BOTTOM, LEFT = 240.0, 28.0, 30.0, 84.0
# readings that are drawn: of more, the highest and lowest of each pixel's
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def level_figure(ts: Ints, held: Ints, marks: Sequence[tuple[int, str]], width: float, label: str) -> str:
    """Bytes ``held`` at ``ts`` (ns, ascending); ``marks`` are (ns, words) of steps. Not empty."""
    right, bottom = width - 90, HEIGHT - BOTTOM
    zero, span = int(ts[0]), max(int(ts[-1] - ts[0]), 1)
    top = max(int(held.max()), 1) * 1.05
    unit, name = next((u, n) for u, n in _UNITS if top >= u)

    def x(ns: float) -> float:
        return LEFT + (ns - zero) / span * (right - LEFT)

    def y(count: float) -> float:
        return bottom - (bottom - TOP) * count / top

    body = []
    values = ticks(top / unit)
    for value in values:
        words = f"{value:g}" + (f" {name}" if value == values[-1] else "")
        at = y(value * unit)
        body += [svg.line(LEFT, at, right, at, "hair"), svg.text(LEFT - 8, at + 4, words, "m", "end")]
    peak = int(np.argmax(held))
    px, py = x(int(ts[peak])), y(int(held[peak]))
    free = LEFT
    for at_ns, words in marks:
        at = x(at_ns)
        wide = svg.width_of(words) + 8
        meets = py < TOP + 30 and px - 70 < at + wide and at < px + 60
        if at >= free and not meets:
            body += [svg.line(at, TOP, at, bottom, "hair"), svg.text(at + 3, TOP - 4, words, "m")]
            free = at + wide
    low, high = _thinned(ts, held, x)
    outline = " ".join(f"{svg.number(a)},{svg.number(y(b))}" for a, b in high)
    back = " ".join(f"{svg.number(a)},{svg.number(y(b))}" for a, b in reversed(low))
    title = f"{label} · from {memory(int(held.min()))} to {memory(int(held.max()))} in {time(span)}"
    look = 'fill="var(--muted)" fill-opacity=".25" stroke="var(--muted)" stroke-width="1"'
    body.append(f'<polygon points="{outline} {back}" {look}><title>{svg.escape(title)}</title></polygon>')
    place = f'cx="{svg.number(px)}" cy="{svg.number(py)}" r="3.5"'
    body.append(f'<circle {place} fill="var(--ink)"><title>the peak, {memory(int(held[peak]))}</title></circle>')
    words = f"peak {memory(int(held[peak]))}"
    body.append(svg.text(min(px, width - svg.width_of(words, bold=True) / 2), py - 9, words, "b halo", "middle"))
    body += axis(LEFT, right, bottom, span, width=width)
    return svg.figure(width, HEIGHT, label, body)


def _thinned(ts: Ints, held: Ints, x: svg.Place) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """(x, lowest) and (x, highest) of each pixel column: steps from one reading to the next."""
    columns = np.array([int(x(int(t))) for t in ts.tolist()]) if len(ts) < 4000 else _columns(ts, x)
    first = np.flatnonzero(np.concatenate([[True], np.diff(columns) > 0]))
    low, high = np.minimum.reduceat(held, first), np.maximum.reduceat(held, first)
    at = columns[first].astype(float)
    zero = np.zeros_like(low) if len(first) < 200 else low
    return list(zip(at.tolist(), zero.tolist(), strict=True)), list(zip(at.tolist(), high.tolist(), strict=True))


def _columns(ts: Ints, x: svg.Place) -> Ints:
    left, right = x(int(ts[0])), x(int(ts[-1]))
    along = (ts - ts[0]) / max(int(ts[-1] - ts[0]), 1)
    return np.asarray(left + along * (right - left), np.int64)
