"""Memory over time: bytes at every reading, what each category holds of them as layers, the peak marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dtprof.intervals import Ints
from dtprof.numbers import memory, ticks, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis

HEIGHT, TOP, BOTTOM, LEFT, BESIDE, LINE = 260.0, 28.0, 30.0, 84.0, 170.0, 15.0
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
# ink of the layers, from the bottom up; hairlines part them, names stand beside them
_INK = (0.62, 0.5, 0.4, 0.31, 0.23, 0.16, 0.11)
_REST = 0.05


def level_figure(
    ts: Ints,
    held: Ints,
    marks: Sequence[tuple[int, str]],
    width: float,
    label: str,
    layers: Mapping[str, Ints] | None = None,
    top_name: str = "peak",
) -> str:
    """Bytes ``held`` at ``ts`` (ns, ascending), not empty; ``marks`` are (ns, words) of steps, ``top_name`` names the highest.

    ``layers``: name -> bytes at ``ts`` that the level is the sum of, from the bottom up, what is left over last.
    """
    right, bottom = width - BESIDE, HEIGHT - BOTTOM
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
    highest = f"{top_name} {memory(int(held[peak]))}"
    half = svg.width_of(highest, bold=True) / 2
    center = min(px, width - half)
    free = LEFT
    for at_ns, words in marks:
        at = x(at_ns)
        wide = svg.width_of(words) + 8
        meets = py < TOP + 30 and center - half - 8 < at + wide and at < center + half + 8
        if at >= free and not meets:
            body += [svg.line(at, TOP, at, bottom, "hair"), svg.text(at + 3, TOP - 4, words, "m")]
            free = at + wide
    columns, chosen = _thinned(ts, held, x)
    title = f"{label} · from {memory(int(held.min()))} to {memory(int(held.max()))} in {time(span)}"
    shown = layers or {label: held}
    body += _layers(shown, columns, chosen, y, title, bool(layers))
    if layers:
        body += _beside(shown, right, y)
    place = f'cx="{svg.number(px)}" cy="{svg.number(py)}" r="3.5"'
    body.append(f'<circle {place} fill="var(--ink)"><title>{highest}</title></circle>')
    body.append(svg.text(center, py - 9, highest, "b halo", "middle"))
    body += axis(LEFT, right, bottom, span, width=width)
    return svg.figure(width, HEIGHT, label, body)


def _layers(
    shown: Mapping[str, Ints], columns: list[float], chosen: Ints, y: svg.Place, title: str, several: bool
) -> list[str]:
    """Areas on one another; each has a title."""
    body, below = [], np.zeros(len(chosen), np.int64)
    for i, (name, held) in enumerate(shown.items()):
        above = below + held[chosen]
        over = " ".join(f"{svg.number(a)},{svg.number(y(b))}" for a, b in zip(columns, above.tolist(), strict=True))
        under = list(zip(columns, below.tolist(), strict=True))
        back = " ".join(f"{svg.number(a)},{svg.number(y(b))}" for a, b in reversed(under))
        ink = _REST if i == len(shown) - 1 else _INK[min(i, len(_INK) - 1)]
        said = f"{name} · from {memory(int(held.min()))} to {memory(int(held.max()))}" if several else title
        look = f'fill="var(--ink)" fill-opacity="{ink if several else 0.2}" stroke="var(--muted)" stroke-width=".7"'
        body.append(f'<polygon points="{over} {back}" {look}><title>{svg.escape(said)}</title></polygon>')
        below = above
    return body


def _beside(shown: Mapping[str, Ints], right: float, y: svg.Place) -> list[str]:
    """Names and last sizes at the right, each at the height of its layer, none on another."""
    wanted, below = [], 0
    for name, held in shown.items():
        last = int(held[-1])
        if int(held.max()):
            wanted.append((y(below + last / 2), f"{name} {memory(last)}"))
        below += last
    body, lowest = [], y(0) + LINE
    for at, words in wanted:
        lowest = min(at, lowest - LINE)
        body += [svg.line(right, at, right + 5, lowest, "lead"), svg.text(right + 8, lowest + 4, words)]
    return body


def _thinned(ts: Ints, held: Ints, x: svg.Place) -> tuple[list[float], Ints]:
    """The place of each pixel column that has a reading, and its highest reading."""
    left, right = x(int(ts[0])), x(int(ts[-1]))
    along = left + (ts - ts[0]) / max(int(ts[-1] - ts[0]), 1) * (right - left)
    columns = np.asarray(along, np.int64)
    first = np.flatnonzero(np.concatenate([[True], np.diff(columns) > 0]))
    if len(first) == len(ts):
        return along.tolist(), np.arange(len(ts))
    ends = np.append(first[1:], len(ts))
    chosen = np.array([a + int(np.argmax(held[a:b])) for a, b in zip(first.tolist(), ends.tolist(), strict=True)], np.int64)
    return columns[first].astype(float).tolist(), chosen
