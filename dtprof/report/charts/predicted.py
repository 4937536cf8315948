"""Predicted beside measured, and a whole range of one edit with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import Scale, interval, percent, ticks, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis
from dtprof.report.palette import PARTS

HIGH, PITCH, TOP = 26.0, 48.0, 42.0
# the rows of names
LOW, HIGHER = 29.0, 13.0


@dataclass(frozen=True)
class Beside:
    """One bar: ``parts`` of the step where they are known, else only ``total``; its interval; ns. ``simulated`` is dashed."""

    name: str
    note: str
    total: float
    parts: Mapping[str, float] | None
    interval: tuple[float, float] | None = None
    simulated: bool = False


def beside_figure(rows: Sequence[Beside], width: float) -> str:
    """Bars under one another on one axis; a simulated one is dashed, an interval is a whisker. ``rows`` is not empty."""
    left = 16 + max(max(svg.width_of(r.name, bold=True), svg.width_of(r.note)) for r in rows)
    right = width - 110
    top = max(max(r.total, r.interval[1] if r.interval else 0.0) for r in rows) or 1.0
    per_ns, scale = (right - left) / top, Scale.of([top])
    body: list[str] = []
    for i, row in enumerate(rows):
        body += _beside(row, left, TOP + i * PITCH, per_ns, scale)
    known = next((r for r in rows if r.parts), None)
    if known is not None and known.parts is not None:
        body += _names(known.parts, left, per_ns, width)
    body += axis(left, right, TOP + len(rows) * PITCH, top, width=width)
    return svg.figure(width, TOP + len(rows) * PITCH + 24, "Predicted beside measured", body)


def _beside(row: Beside, left: float, y: float, per_ns: float, scale: Scale) -> list[str]:
    body = [svg.text(left - 12, y + 12, row.name, "b", "end"), svg.text(left - 12, y + 27, row.note, "m", "end")]
    x = left
    parts = row.parts if row.parts is not None else {"idle_other_ns": row.total}
    for key in ACCOUNTING:
        ns = parts.get(key, 0.0)
        w = ns * per_ns
        if w >= 1:
            share = percent(ns / row.total) if row.total else ""
            name = PARTS[key].label if row.parts is not None else "not split into parts"
            body.append(svg.rect(x, y, w - 1 if w > 2 else w, HIGH, svg.fill(key), f"{row.name} · {name} {time(ns)} · {share}"))
            words = scale.text(ns)
            if row.parts is not None and w >= svg.width_of(words) + 10:
                body.append(svg.on_mark(x + w / 2, y + 17, words, key))
        x += w
    body.append(svg.text(x + 10, y + 17, time(row.total), "b"))
    if row.simulated:
        dashed = ' stroke="var(--ink)" stroke-dasharray="4 3" pointer-events="none"'
        body.append(svg.rect(left, y, max(x - left, 1.0), HIGH, "none", f"{row.name} · simulated", dashed))
    if row.interval is not None:
        low, high = (left + v * per_ns for v in row.interval)
        path = f"M{svg.number(low)} {y + 30} v8 M{svg.number(low)} {y + 34} H{svg.number(high)} M{svg.number(high)} {y + 30} v8"
        words = interval(*row.interval)
        body.append(f'<path d="{path}" stroke="var(--ink)" fill="none"><title>{svg.escape(words)}</title></path>')
        body.append(svg.text(high + 8, y + 38, words, "m"))
    return body


def _names(parts: Mapping[str, float], left: float, per_ns: float, width: float) -> list[str]:
    """Names with leaders above the first bar, in two rows where they would meet; one that finds no place is left out."""
    anchors, x = [], left
    for key in ACCOUNTING:
        w = parts.get(key, 0.0) * per_ns
        if w >= 3:
            anchors.append((x + 2, PARTS[key].label.replace(":", ",")))
        x += w
    body, free = [], {LOW: width, HIGHER: width}
    for x, name in reversed(anchors):
        wide = svg.width_of(name, bold=True) + 12
        y = LOW if x + wide <= free[LOW] or free[HIGHER] - wide < left else HIGHER
        start = min(x, free[y] - wide)
        if start >= left:
            body += [svg.line(x, y + 4, x, TOP - 1, "lead"), svg.text(start, y, name, "b")]
            free[y] = start
            # no name of the lower row on a leader
            free[LOW] = min(free[LOW], x)
    return body


@dataclass(frozen=True)
class Point:
    """One value of an edit: the predicted step and its interval, and the step measured with it where it was; ns."""

    words: str
    predicted: float
    low: float
    high: float
    measured: float | None = None


def range_figure(points: Sequence[Point], chosen: int | None, measured_ns: float, width: float, name: str) -> str:
    """The predicted step over the values of one edit, evenly apart, from zero; at least two points."""
    left, right, top_y, bottom = 58.0, width - 130, 24.0, 210.0
    top = max(max(max(p.high, p.measured or 0.0) for p in points), measured_ns) * 1.08
    scale = Scale.of([top])
    step = (right - left) / (len(points) - 1)

    def y(ns: float) -> float:
        return bottom - (bottom - top_y) * ns / top

    body = []
    values = ticks(top / scale.size)
    for value in values:
        words = f"{value:g}" + (f" {scale.unit}" if value == values[-1] else "")
        at = y(value * scale.size)
        body += [svg.line(left, at, right, at, "hair"), svg.text(left - 8, at + 4, words, "m", "end")]
    xs = [left + i * step for i in range(len(points))]
    around = [f"{svg.number(x)},{svg.number(y(p.high))}" for x, p in zip(xs, points, strict=True)]
    around += [f"{svg.number(x)},{svg.number(y(p.low))}" for x, p in reversed(list(zip(xs, points, strict=True)))]
    body.append(f'<polygon points="{" ".join(around)}" fill="var(--ink)" fill-opacity=".1"/>')
    line = " ".join(f"{svg.number(x)},{svg.number(y(p.predicted))}" for x, p in zip(xs, points, strict=True))
    body.append(f'<polyline points="{line}" fill="none" stroke="var(--ink)" stroke-dasharray="4 3" stroke-width="1.4"/>')
    for i, (x, point) in enumerate(zip(xs, points, strict=True)):
        here = i == chosen
        title = f"{name}={point.words} · {time(point.predicted)} ({interval(point.low, point.high)})"
        place = f'cx="{svg.number(x)}" cy="{svg.number(y(point.predicted))}" r="{4.5 if here else 3}"'
        body.append(f'<circle {place} fill="var(--ink)"><title>{svg.escape(title)}</title></circle>')
        body.append(svg.text(x, bottom + 18, point.words, "b" if here else "m", "middle"))
        if point.measured is not None:
            look = 'r="5" fill="var(--page)" stroke="var(--ink)" stroke-width="1.6"'
            title = f"{name}={point.words} · measured after: {time(point.measured)}"
            place = f'cx="{svg.number(x)}" cy="{svg.number(y(point.measured))}"'
            body.append(f"<circle {place} {look}><title>{svg.escape(title)}</title></circle>")
        if here:
            body.append(svg.text(x, y(point.high) - 10, f"{point.words}: {time(point.predicted)}", "b halo", "middle"))
    at = y(measured_ns)
    place = f'x1="{left}" y1="{svg.number(at)}" x2="{svg.number(right)}" y2="{svg.number(at)}"'
    body += [f'<line {place} stroke="var(--muted)"/>', svg.text(right + 8, at + 4, f"now {time(measured_ns)}", "b")]
    last = y(points[-1].predicted)
    body.append(svg.text(right + 8, last + 4 if abs(last - at) > 14 else last + (18 if last > at else -12), "predicted", "m"))
    body.append(svg.text((left + right) / 2, bottom + 36, name, "m", "middle"))
    return svg.figure(width, bottom + 42, f"Predicted step over {len(points)} values of {name}", body)
