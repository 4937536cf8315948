"""A pipeline step: stage by time with the micro-batch in each pass, measured or simulated, and what the bubble is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtprof.numbers import Scale, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis

PITCH, HIGH, TOP = 34.0, 26.0, 8.0
_WORDS = {"F": "forward", "B": "backward", "I": "backward for the input", "W": "backward for the weights"}
# the faint paint of forward passes beside backward ones, and of waiting that the structure costs
FORWARD, STRUCTURE = 0.45, 0.26


@dataclass(frozen=True)
class Box:
    """One pass: kind F, B, I or W of a stage on a micro-batch; ns from the step's start."""

    kind: str
    stage: int
    microbatch: int
    start: float
    end: float


def grid_figure(
    rows: Sequence[tuple[str, Sequence[Box]]],
    end_ns: float,
    top_ns: float,
    width: float,
    left: float,
    simulated: bool,
    goes: Sequence[str] = (),
) -> str:
    """A row per rank, its passes in time; the axis reaches to ``top_ns``, so that two figures share it, and names
    end at ``left``. ``goes``: where a click on each row leads.
    """  # fmt: skip
    right = width - 84
    per_ns = (right - left) / max(top_ns, 1.0)
    bottom = TOP + PITCH * len(rows)
    body = []
    for i, (name, boxes) in enumerate(rows):
        y = TOP + i * PITCH
        body.append(svg.text(left - 10, y + 17, name, "", "end"))
        busy = sum(b.end - b.start for b in boxes)
        title = f"{name} · waits {time(end_ns - busy)} of {time(end_ns)}"
        faint = f' fill-opacity="{STRUCTURE}"'
        body.append(svg.rect(left, y, end_ns * per_ns, HIGH, svg.fill("comm_wait_ns"), title, faint))
        marks = "".join(mark for box in boxes for mark in _box(box, name, left + box.start * per_ns, y, per_ns))
        body.append(f"<g{svg.leads(goes[i])}>{marks}</g>" if goes else marks)
        if simulated:
            outline = ' stroke="var(--ink)" stroke-dasharray="4 3" pointer-events="none"'
            body.append(svg.rect(left, y, end_ns * per_ns, HIGH, "none", f"{name} · simulated", outline))
    x = left + end_ns * per_ns
    ink = f'x1="{svg.number(x)}" y1="{TOP - 4}" x2="{svg.number(x)}" y2="{svg.number(bottom)}"'
    body += [f'<line {ink} stroke="var(--ink)"/>', svg.text(x + 8, TOP + 17, time(end_ns), "b")]
    body += axis(left, right, bottom + 2, top_ns, width=width)
    what = "simulated" if simulated else "measured"
    return svg.figure(width, bottom + 26, f"Passes of {len(rows)} ranks, {what}", body)


def _box(box: Box, name: str, x: float, y: float, per_ns: float) -> list[str]:
    w = max((box.end - box.start) * per_ns, 0.8)
    title = f"{name}, stage {box.stage} · {_WORDS[box.kind]} of micro-batch {box.microbatch} · {time(box.end - box.start)}"
    plate = svg.rect(x, y, w, HIGH, "var(--page)", title)
    faint = f' fill-opacity="{FORWARD}"' if box.kind == "F" else ' fill-opacity=".75"' if box.kind == "W" else ""
    marks = [plate, svg.rect(x, y, w - 1 if w > 3 else w, HIGH, svg.fill("compute_ns"), title, faint)]
    words = str(box.microbatch)
    if svg.width_of(words) + 2 <= w:
        look = "" if box.kind == "F" else "on-compute"
        marks.append(svg.text(x + w / 2, y + 17, words, look, "middle"))
    return marks


@dataclass(frozen=True)
class Bubble:
    """One rank: compute, waiting for slower stages, filling and draining, and the rest of the step; ns, summing to it."""

    name: str
    compute: float
    uneven: float
    structure: float
    rest: float

    @property
    def total(self) -> float:
        """The step."""
        return self.compute + self.uneven + self.structure + self.rest


def bubble_figure(rows: Sequence[Bubble], width: float) -> str:
    """Stacked bars: compute, waiting (full) because stages differ, waiting (faint) that the structure costs, idle."""
    left = 14 + max(svg.width_of(r.name) for r in rows)
    right = width - 84
    longest = max(r.total for r in rows) or 1.0
    per_ns, scale = (right - left) / longest, Scale.of([longest])
    wait, compute, idle = svg.fill("comm_wait_ns"), svg.fill("compute_ns"), svg.fill("idle_other_ns")
    names = ("compute", "waiting for slower stages", "fill and drain", "outside the passes")
    body, heads = [], 22.0
    anchors: list[tuple[float, str]] = []
    for i, row in enumerate(rows):
        y, x = heads + i * 30, left
        body.append(svg.text(left - 10, y + 15, row.name, "", "end"))
        values = (row.compute, row.uneven, row.structure, row.rest)
        paints = ((compute, ""), (wait, ""), (wait, f' fill-opacity="{STRUCTURE}"'), (idle, ""))
        for name, value, (paint, look) in zip(names, values, paints, strict=True):
            w = value * per_ns
            if w >= 1:
                body.append(svg.rect(x, y, w - 1 if w > 2 else w, 22, paint, f"{row.name} · {name} {time(value)}", look))
                words = scale.text(value)
                if w > svg.width_of(words) + 10:
                    inside = "on-compute" if paint == compute else "on-wait" if paint == wait and not look else ""
                    body.append(svg.text(x + w / 2, y + 15, words, inside, "middle"))
            if i == 0 and w >= 3:
                anchors.append((x + 2, name))
            x += w
        body.append(svg.text(x + 8, y + 15, time(row.total), "b"))
    after = width
    for x, name in reversed(anchors):
        start = min(x, after - svg.width_of(name, bold=True) - 10)
        body += [svg.line(x, 16, x, heads - 1, "lead"), svg.text(start, 12, name, "b")]
        after = start
    return svg.figure(width, heads + 30 * len(rows), "What the step of each rank is: compute and bubble", body)
