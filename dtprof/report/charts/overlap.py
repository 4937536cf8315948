"""Buckets of gradients under the backward pass: when each became ready, when its communication ran, what stuck out."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.numbers import size, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis

PITCH, HIGH, TOP = 20.0, 12.0, 40.0


@dataclass(frozen=True)
class Lane:
    """One bucket, or one operation: ready, and on the wire from ``start`` to ``end``; ns from the step's start, or None."""

    name: str
    bytes: int | None
    ready: int | None
    start: int | None
    end: int | None


@dataclass(frozen=True)
class Lanes:
    """One step of one rank: its end, its backward pass, and the lanes in their order; ns from its start."""

    label: str
    end: int
    backward: tuple[int, int] | None
    lanes: tuple[Lane, ...]

    @property
    def exposed_ns(self) -> int:
        """From the end of the backward pass to the last end of a lane; 0 where either is not known."""
        if self.backward is None:
            return 0
        return max([0, *(lane.end - self.backward[1] for lane in self.lanes if lane.end is not None)])


def overlap_figure(found: Lanes, width: float) -> str:
    """The figure: the backward pass as a band, a lane for each bucket; ready as a tick, waiting for the network hatched out."""
    left = 14 + max(svg.width_of(lane.name) for lane in found.lanes)
    right = width - 120
    per_ns = (right - left) / max(found.end, 1)

    def x(ns: float) -> float:
        return left + ns * per_ns

    bottom = TOP + PITCH * len(found.lanes)
    body = []
    if found.backward:
        a, b = found.backward
        title = f"{found.label} · backward pass · {time(b - a)}"
        body.append(svg.rect(x(a), TOP - 22, max((b - a) * per_ns, 1), 12, svg.fill("compute_ns"), title))
        body.append(svg.text(x(a) + 4, TOP - 26, f"backward {time(b - a)}", "b"))
        body.append(svg.line(x(b), TOP - 22, x(b), bottom, "lead"))
    for i, lane in enumerate(found.lanes):
        body += _lane(lane, left, TOP + i * PITCH, x, per_ns, x(found.backward[1] if found.backward else found.end))
    body += axis(left, right, bottom + 4, found.end, width=width)
    return svg.figure(width, bottom + 28, f"{found.label}: {len(found.lanes)} lanes of communication under the step", body)


def _lane(lane: Lane, left: float, y: float, x: svg.Place, per_ns: float, mark: float) -> list[str]:
    """One lane; its words lie at the left of the bar where at the right they would meet the line at ``mark``."""
    body = [svg.text(left - 10, y + 10, lane.name, "", "end")]
    held = "" if lane.bytes is None else f" · {size(lane.bytes)}"
    if lane.ready is not None and lane.start is not None and lane.start > lane.ready:
        title = f"{lane.name} · ready, handed over {time(lane.start - lane.ready)} later"
        body.append(
            svg.rect(
                x(lane.ready), y + 4, (lane.start - lane.ready) * per_ns, 4, svg.fill("comm_wait_ns"), title, ' opacity=".5"'
            )
        )
    if lane.ready is not None:
        path = f"M{svg.number(x(lane.ready))} {svg.number(y - 2)} v16"
        title = f"{lane.name} · gradients ready at {time(lane.ready)}"
        body.append(f'<path d="{path}" stroke="var(--ink)" stroke-width="1.5"><title>{svg.escape(title)}</title></path>')
    if lane.start is None or lane.end is None:
        body.append(svg.text(x(lane.ready or 0) + 8, y + 10, "its communication is not in the trace", "m"))
        return body
    title = f"{lane.name}{held} · in communication {time(lane.end - lane.start)}, from {time(lane.start)} to {time(lane.end)}"
    w = max((lane.end - lane.start) * per_ns, 1.0)
    body.append(svg.rect(x(lane.start), y, w, HIGH, svg.fill("comm_transfer_ns"), title))
    words = f"{size(lane.bytes) if lane.bytes is not None else ''}, {time(lane.end - lane.start)}".strip(", ")
    first, wide = min(lane.start, lane.start if lane.ready is None else lane.ready), svg.width_of(words)
    if x(lane.end) + 6 < mark < x(lane.end) + 6 + wide and x(first) - 8 - wide > left:
        body.append(svg.text(x(first) - 8, y + 10, words, "m", "end"))
    else:
        body.append(svg.text(x(lane.end) + 6, y + 10, words, "m"))
    return body
