"""Buckets of gradients under the backward pass: when each became ready, when its communication ran, what stuck out."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.numbers import size, time
from dtprof.report import svg
from dtprof.report.charts.axes import axis
from dtprof.report.charts.pipeline import FORWARD
from dtprof.report.palette import PARTS

PITCH, HIGH, TOP = 20.0, 12.0, 40.0


@dataclass(frozen=True)
class Lane:
    """One bucket, or one operation: ready, and in communication from ``start`` to ``end``; ns from the step's start, or None.

    ``turn``: it waits for other ranks up to there and moves data from there on; None: that cannot be told.
    """

    name: str
    bytes: int | None
    ready: int | None
    start: int | None
    end: int | None
    turn: int | None = None


@dataclass(frozen=True)
class Lanes:
    """One step of one rank: its end, its backward pass, the lanes in their order, and all passes (phase, start, end) where they
    are marked; ns from its start.
    """

    label: str
    end: int
    backward: tuple[int, int] | None
    lanes: tuple[Lane, ...]
    passes: tuple[tuple[str, int, int], ...] = ()

    @property
    def exposed_ns(self) -> int:
        """From the end of the backward pass to the last end of a lane; 0 where either is not known."""
        if self.backward is None:
            return 0
        return max([0, *(lane.end - self.backward[1] for lane in self.lanes if lane.end is not None)])


def overlap_figure(found: Lanes, width: float) -> str:
    """The figure: the passes as bands, a lane for each bucket: ready as a tick, a thin line until it is handed over, its
    communication parted into waiting and moving, or striped.
    """
    left = 14 + max(svg.width_of(lane.name) for lane in found.lanes)
    right = width - 120
    per_ns = (right - left) / max(found.end, 1)

    def x(ns: float) -> float:
        return left + ns * per_ns

    bottom = TOP + PITCH * len(found.lanes)
    body = []
    body += _passes(found, x, bottom)
    for i, lane in enumerate(found.lanes):
        body += _lane(lane, left, TOP + i * PITCH, x, per_ns, x(found.backward[1] if found.backward else found.end))
    body += axis(left, right, bottom + 4, found.end, width=width)
    return svg.figure(width, bottom + 28, f"{found.label}: {len(found.lanes)} lanes of communication under the step", body)


def _passes(found: Lanes, x: svg.Place, bottom: float) -> list[str]:
    """The passes as bands above the lanes, forward ones faint, each kind named once; and the end of the backward pass."""
    body, free = [], 0.0
    bands = found.passes or ((("backward", *found.backward),) if found.backward else ())
    for phase, a, b in bands:
        look = f' fill-opacity="{FORWARD}"' if phase == "forward" else ""
        title = f"{found.label} · {phase} pass · {time(b - a)}"
        body.append(svg.rect(x(a), TOP - 22, max(x(b) - x(a), 1), 12, svg.fill("compute_ns"), title, look))
    for phase in dict.fromkeys(band[0] for band in bands):
        mine = [(a, b) for kind, a, b in bands if kind == phase]
        words = f"{phase} {time(sum(b - a for a, b in mine))}" + (f" in {len(mine)} passes" if len(mine) > 1 else "")
        start = max(x(mine[0][0]) + 4, free)
        body.append(svg.text(start, TOP - 26, words, "b"))
        free = start + svg.width_of(words, bold=True) + 12
    if found.backward:
        body.append(svg.line(x(found.backward[1]), TOP - 22, x(found.backward[1]), bottom, "lead"))
    return body


def _lane(lane: Lane, left: float, y: float, x: svg.Place, per_ns: float, mark: float) -> list[str]:
    """One lane; its words lie at the left of the bar where at the right they would meet the line at ``mark``."""
    body = [svg.text(left - 10, y + 10, lane.name, "", "end")]
    held = "" if lane.bytes is None else f" · {size(lane.bytes)}"
    if lane.ready is not None and lane.start is not None and lane.start > lane.ready:
        title = f"{lane.name} · ready, handed over {time(lane.start - lane.ready)} later"
        body.append(svg.rect(x(lane.ready), y + 5, (lane.start - lane.ready) * per_ns, 2, "var(--muted)", title))
    if lane.ready is not None:
        path = f"M{svg.number(x(lane.ready))} {svg.number(y - 2)} v16"
        title = f"{lane.name} · gradients ready at {time(lane.ready)}"
        body.append(f'<path d="{path}" stroke="var(--ink)" stroke-width="1.5"><title>{svg.escape(title)}</title></path>')
    if lane.start is None or lane.end is None:
        body.append(svg.text(x(lane.ready or 0) + 8, y + 10, "its communication is not in the trace", "m"))
        return body
    title = f"{lane.name}{held} · in communication {time(lane.end - lane.start)}, from {time(lane.start)} to {time(lane.end)}"
    turn = lane.end if lane.turn is None else lane.turn
    spans = [
        ("comm_unsplit_ns" if lane.turn is None else "comm_wait_ns", lane.start, turn),
        ("comm_transfer_ns", turn, lane.end),
    ]
    for part, begin, stop in spans:
        if stop > begin:
            told = title if lane.turn is None else f"{title} · {PARTS[part].label} {time(stop - begin)}"
            body.append(svg.rect(x(begin), y, max((stop - begin) * per_ns, 1.0), HIGH, svg.fill(part), told))
    words = f"{size(lane.bytes) if lane.bytes is not None else ''}, {time(lane.end - lane.start)}".strip(", ")
    first, wide = min(lane.start, lane.start if lane.ready is None else lane.ready), svg.width_of(words)
    if x(lane.end) + 6 < mark < x(lane.end) + 6 + wide and x(first) - 8 - wide > left:
        body.append(svg.text(x(first) - 8, y + 10, words, "m", "end"))
    else:
        body.append(svg.text(x(lane.end) + 6, y + 10, words, "m"))
    return body
