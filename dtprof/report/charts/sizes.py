"""Size and time of operations: bytes on a logarithmic axis, time on a linear one, a fitted line for each operation.

The line is the Hockney model, t = alpha + bytes / bandwidth (R. Hockney, "The communication challenge for MPP", 1994), by
least squares on relative errors over the transfer times of one group.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.results import Operation
from dtprof.numbers import Scale, bandwidth, size, ticks, time
from dtprof.report import svg
from dtprof.report.operations import op_words

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 280.0, 18.0, 40.0, 58.0, 150.0
LEAST_SIZES, MOST_POINTS = 2, 800


@dataclass(frozen=True)
class Fit:
    """t = ``alpha_ns`` + bytes / ``gb_s`` over ``points`` operations from ``low`` to ``high`` bytes."""

    op: str
    alpha_ns: float
    gb_s: float
    points: int
    low: int
    high: int

    def at(self, count: float) -> float:
        """ns of an operation of this many bytes."""
        return self.alpha_ns + count / self.gb_s

    @property
    def words(self) -> str:
        """``23 us + 23.5 GB/s``."""
        return f"{time(self.alpha_ns)} + {bandwidth(self.gb_s)}"


def known(operations: Iterable[Operation]) -> list[Operation]:
    """Operations whose size and transfer are both known and above 0."""
    return [o for o in operations if o.bytes and o.transfer_ns and o.bytes_known == "exact"]


def fits(operations: Sequence[Operation]) -> list[Fit]:
    """A line for each operation that was seen with two sizes or more; none where it would fall with size."""
    by_op: dict[str, list[Operation]] = defaultdict(list)
    for operation in known(operations):
        by_op[operation.op].append(operation)
    found = []
    for op, mine in sorted(by_op.items()):
        sizes = np.array([o.bytes for o in mine], float)
        if len(np.unique(sizes)) < LEAST_SIZES:
            continue
        times = np.array([o.transfer_ns for o in mine], float)
        design = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
        (alpha, slope), *_ = np.linalg.lstsq(design, np.ones_like(times), rcond=None)
        if slope > 0:
            found.append(Fit(op, max(float(alpha), 0.0), 1 / float(slope), len(mine), int(sizes.min()), int(sizes.max())))
    return found


def sizes_figure(operations: Sequence[Operation], lines: Sequence[Fit], width: float) -> str:
    """Points and lines; the operations are those of ``known``, not empty."""
    drawn = sorted(operations, key=lambda o: -(o.transfer_ns or 0))[:MOST_POINTS]
    low = math.floor(math.log10(min(o.bytes or 1 for o in drawn)))
    high = max(math.ceil(math.log10(max(o.bytes or 1 for o in drawn))), low + 1)
    top = max(o.transfer_ns or 0 for o in drawn) * 1.05
    right, bottom = width - RIGHT, HEIGHT - BOTTOM

    def x(count: float) -> float:
        return LEFT + (math.log10(count) - low) / (high - low) * (right - LEFT)

    def y(ns: float) -> float:
        return bottom - (bottom - TOP) * ns / top

    scale = Scale.of([top])
    body = []
    values = ticks(top / scale.size)
    for value in values:
        words = f"{value:g}" + (f" {scale.unit}" if value == values[-1] else "")
        at = y(value * scale.size)
        body += [svg.line(LEFT, at, right, at, "hair"), svg.text(LEFT - 8, at + 4, words, "m", "end")]
    for decade in range(low, high + 1):
        body.append(
            svg.text(x(10.0**decade), bottom + 17, size(10**decade).replace(".00", "").replace(".0", ""), "m", "middle")
        )
    body.append(svg.text((LEFT + right) / 2, HEIGHT - 4, "bytes of the operation", "m", "middle"))
    body += [mark for operation in drawn for mark in _point(operation, x(operation.bytes or 1), y(operation.transfer_ns or 0))]
    body += _lines(lines, x, y, right, bottom)
    return svg.figure(width, HEIGHT, f"Transfer time by size of {len(drawn)} operations", body)


def _point(operation: Operation, x: float, y: float) -> list[str]:
    title = f"operation {operation.id} {op_words(operation.op)} · {size(operation.bytes)} in {time(operation.transfer_ns)}"
    paint = svg.fill("comm_transfer_ns")
    if operation.op == "all_to_all":
        return [svg.rect(x - 3, y - 3, 6, 6, paint, title)]
    place = f'cx="{svg.number(x)}" cy="{svg.number(y)}" r="3.2"'
    return [f'<circle {place} fill="{paint}"><title>{svg.escape(title)}</title></circle>']


def _lines(lines: Sequence[Fit], x: svg.Place, y: svg.Place, right: float, bottom: float) -> list[str]:
    """The lines, each with its words at its end: between the top and the axis, none on another."""
    body, taken = [], [-100.0]
    for fit in lines:
        along = np.geomspace(max(fit.low, 1), max(fit.high, 2), 40).tolist()
        points = " ".join(f"{svg.number(x(v))},{svg.number(y(fit.at(v)))}" for v in along)
        body.append(f'<polyline points="{points}" fill="none" stroke="{svg.fill("comm_transfer_ns")}" stroke-width="1.4"/>')
        at = min(max(y(fit.at(fit.high)), 14.0), bottom - 14)
        away = 6 if at < bottom / 2 else -6
        while any(abs(at - other) < 30 for other in taken):
            at += away
        taken.append(at)
        beside = min(x(fit.high) + 8, right + 8)
        body += [svg.text(beside, at - 3, op_words(fit.op), "b halo"), svg.text(beside, at + 11, fit.words, "m halo")]
    return body
