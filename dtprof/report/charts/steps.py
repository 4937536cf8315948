"""Every step of a rank: a stacked column each, the median dashed, slow steps with their cause."""

from __future__ import annotations

from collections.abc import Sequence

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import Scale, percent, ticks, time
from dtprof.report import svg
from dtprof.report.pace import StepBar
from dtprof.report.palette import PARTS

HEIGHT, TOP, BOTTOM, LEFT = 276.0, 46.0, 26.0, 52.0
# more steps than this are a line; a column is at most this wide
MANY, WIDEST = 200, 48.0
_LABEL = 15.0


def steps_figure(
    found: Sequence[StepBar], median_ns: float | None, width: float, chosen: int | None = None, leads: bool = False
) -> str:
    """The figure, ``width`` px wide; ``found`` is not empty. The step ``chosen`` is marked below the axis; where the figure
    ``leads``, a click on a column with parts chooses its step.
    """
    canvas = _Canvas(found, width, leads)
    body = canvas.axes()
    body += canvas.line() if len(found) > MANY else [mark for i, bar in enumerate(found) for mark in canvas.column(i, bar)]
    if median_ns is not None:
        body += canvas.median(median_ns)
    body += canvas.slowest() + canvas.names()
    if chosen is not None:
        body += canvas.chosen(chosen)
    return svg.figure(width, HEIGHT, f"Time of {len(found)} steps, each the sum of its parts", body)


class _Canvas:
    def __init__(self, found: Sequence[StepBar], width: float, leads: bool) -> None:
        self.found, self.width, self.leads = found, width, leads
        self.right = width - 168.0
        self.longest = max(b.dur_ns for b in found) * 1.02
        self.pitch = min((self.right - LEFT) / len(found), WIDEST)
        self.bottom = HEIGHT - BOTTOM
        self.per_ns = (self.bottom - TOP) / self.longest
        self.scale = Scale.of([self.longest])

    def x(self, i: float) -> float:
        return LEFT + self.pitch * i

    def y(self, ns: float) -> float:
        return self.bottom - ns * self.per_ns

    def axes(self) -> list[str]:
        """Ticks of time at the left, step numbers below."""
        values = ticks(self.longest / self.scale.size)
        body = []
        for value in values:
            y = self.y(value * self.scale.size)
            words = f"{value:g}" + (f" {self.scale.unit}" if value == values[-1] else "")
            body += [svg.line(LEFT, y, self.x(len(self.found)), y, "hair"), svg.text(LEFT - 6, y + 4, words, "m", "end")]
        every = max(1, -(-len(self.found) // 8))
        for i in range(0, len(self.found), every):
            word = f"step {self.found[i].step}" if i == 0 else str(self.found[i].step)
            body.append(svg.text(max(self.x(i + 0.5), LEFT + 8), self.bottom + 17, word, "m", "middle"))
        return body

    def column(self, i: int, bar: StepBar) -> list[str]:
        """One step, its parts from the bottom up; one that was timed only in the colour of what is not split."""
        w = self.pitch - 1 if self.pitch > 3 else self.pitch
        if bar.parts is None:
            title = f"step {bar.step} · {time(bar.dur_ns)}, {bar.kind}; timed, not traced"
            top = self.y(bar.dur_ns)
            return [svg.rect(self.x(i), top, w, self.bottom - top, svg.fill("idle_other_ns"), title)]
        marks, at = [], 0
        go = svg.leads(f"step={bar.step}") if self.leads else ""
        for key in ACCOUNTING:
            high = bar.parts[key] * self.per_ns
            if high >= 0.5:
                share = percent(bar.parts[key] / bar.dur_ns)
                title = f"step {bar.step} · {PARTS[key].label} {time(bar.parts[key])} · {share} of {time(bar.dur_ns)}"
                y = self.y(at + bar.parts[key])
                marks.append(svg.rect(self.x(i), y, w, high - 0.5 if high > 2 else high, svg.fill(key), title, go))
            at += bar.parts[key]
        return marks

    def line(self) -> list[str]:
        """The length of the steps as a line."""
        points = " ".join(f"{svg.number(self.x(i + 0.5))},{svg.number(self.y(b.dur_ns))}" for i, b in enumerate(self.found))
        longest = max(self.found, key=lambda b: b.dur_ns)
        title = f"<title>{len(self.found)} steps, the longest step {longest.step}: {time(longest.dur_ns)}</title>"
        return [f'<polyline points="{points}" fill="none" stroke="var(--ink)" stroke-width="1.2">{title}</polyline>']

    def median(self, ns: float) -> list[str]:
        """The dashed line, and its number beside it at the right."""
        y, end = self.y(ns), self.x(len(self.found))
        place = f'x1="{LEFT}" y1="{svg.number(y)}" x2="{svg.number(end)}" y2="{svg.number(y)}"'
        return [
            f'<line {place} stroke="var(--ink)" stroke-dasharray="3 3"/>',
            svg.text(end + 8, y + 4, f"median {time(ns)}", "b"),
        ]

    def slowest(self) -> list[str]:
        """The slow step that takes longest, in words above it."""
        slow = [(b.dur_ns, i) for i, b in enumerate(self.found) if b.slow]
        if not slow:
            return []
        _, i = max(slow)
        bar, x = self.found[i], self.x(i + 0.5)
        words = f"step {bar.step}: {bar.cause}" + (f" ({len(slow)} slow steps)" if len(slow) > 1 else "")
        half = svg.width_of(words) / 2
        middle = min(max(x, half), self.width - half)
        return [svg.line(x, TOP - 14, x, self.y(bar.dur_ns) - 2, "lead"), svg.text(middle, TOP - 20, words, "", "middle")]

    def names(self) -> list[str]:
        """The names of the parts at the right, at the height of the last traced step's parts, none on another."""
        last = next((b for b in reversed(self.found) if b.parts), None)
        timed = any(b.parts is None for b in self.found)
        wanted: list[tuple[float, str, str]] = []
        at = 0
        for key in ACCOUNTING if last and len(self.found) <= MANY else ():
            ns = last.parts[key] if last and last.parts else 0
            if ns * self.per_ns >= 2:
                wanted.append((self.y(at + ns / 2), PARTS[key].label.replace(":", ","), svg.fill(key)))
            at += ns
        body, lowest = [], self.bottom + 4
        x = self.x(len(self.found)) + 8
        keep_off = self.y(median) if (median := self._median_of()) else -100.0
        for y, word, paint in wanted:
            place = min(y, lowest - _LABEL)
            if abs(place - keep_off) < _LABEL:
                place = keep_off - _LABEL
            lowest = place
            body += [svg.rect(x, place - 4, 8, 8, paint, word), svg.text(x + 12, place + 4, word)]
        if timed and len(self.found) <= MANY:
            word = "timed, not traced"
            body += [
                svg.rect(LEFT, TOP - 43, 8, 8, svg.fill("idle_other_ns"), word),
                svg.text(LEFT + 12, TOP - 35, word, "m"),
            ]
        return body

    def _median_of(self) -> float:
        train = sorted(b.dur_ns for b in self.found if b.kind == "train")
        return float(train[len(train) // 2]) if train else 0.0

    def chosen(self, step: int) -> list[str]:
        """A mark below the axis."""
        for i, bar in enumerate(self.found):
            if bar.step == step:
                x, y = self.x(i + 0.5), self.bottom + 2
                path = f"M{svg.number(x - 4)} {svg.number(y + 6)} l4 -6 l4 6 z"
                return [f'<path d="{path}" fill="var(--ink)"><title>step {step}, chosen</title></path>']
        return []
