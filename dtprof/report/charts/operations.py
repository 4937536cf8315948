"""One communication operation: thin lines of all ranks on a shared scale, and waiting against moving."""

from __future__ import annotations

from collections.abc import Sequence

from dtprof.analyse.results import Operation
from dtprof.numbers import Scale, percent, ticks, time
from dtprof.report import svg
from dtprof.report.operations import op_words

STRIP, STRIP_LEFT = 270.0, 12.0


def strip(operation: Operation, ranks: Sequence[tuple[int, str]], top_ns: float) -> str:
    """One operation as thin lines, a line per rank on a scale shared by all strips: waiting, then moving."""
    per_ns = (STRIP - STRIP_LEFT) / top_ns
    name = f"operation {operation.id}"
    pitch = 5.2
    height = max(len(ranks) * pitch + 2.4, 14)
    body = [svg.line(STRIP_LEFT, 0, STRIP_LEFT, height, "ax")]
    for i, (rank, word) in enumerate(ranks):
        y = 2 + i * pitch
        who = f"{name} · rank {rank}" + (f", {word}" if word else "")
        body += _strip_line(operation, rank, who, y, per_ns)
        if rank == operation.last_rank:
            y += 2
            path = f"M2 {svg.number(y - 3.6)} l8 3.6 l-8 3.6 z"
            body.append(f'<path d="{path}" fill="var(--ink)"><title>rank {rank} arrives last</title></path>')
    label = f"{name}, {op_words(operation.op)}: {len(ranks)} ranks, waiting then moving"
    return svg.figure(STRIP, height, label, body, fixed=True)


def _strip_line(operation: Operation, rank: int, who: str, y: float, per_ns: float) -> list[str]:
    whole, wait, transfer = operation.dur_ns[rank], operation.wait_ns.get(rank), operation.transfer_ns
    if wait is None or transfer is None:
        title = f"{who} · {time(whole)}, waiting and moving not told apart"
        return [svg.rect(STRIP_LEFT, y, max(whole * per_ns, 1.2), 4, svg.fill("comm_unsplit_ns"), title)]
    marks = []
    x = STRIP_LEFT + wait * per_ns
    if wait > 0:
        title = f"{who} · waits {time(wait)}, then moves data {time(transfer)}"
        marks.append(svg.rect(STRIP_LEFT, y, wait * per_ns, 4, svg.fill("comm_wait_ns"), title))
    title = f"{who} · moves data {time(transfer)}" + ("" if wait > 0 else ", waits for nobody")
    marks.append(svg.rect(x, y, max(transfer * per_ns, 1.2), 4, svg.fill("comm_transfer_ns"), title))
    return marks


def strip_axis(top_ns: float) -> str:
    """The scale of all strips, for the head of their column."""
    scale = Scale.of([top_ns])
    values = ticks(top_ns / scale.size)
    body = []
    for value in values:
        x = STRIP_LEFT + (STRIP - STRIP_LEFT) * value * scale.size / top_ns
        last = value == values[-1]
        words = f"{value:g}" + (f" {scale.unit}" if last else "")
        end = last and x + svg.width_of(words) / 2 > STRIP
        body.append(svg.text(STRIP if end else x, 11, words, "m", "end" if end else "middle"))
    return svg.figure(STRIP, 14, f"scale from 0 to {time(top_ns)}", body, fixed=True)


def wait_against_move(wait_ns: float, move_ns: float) -> str:
    """Waiting and moving of one operation, summed over the ranks, as shares of a short bar."""
    whole, wide = wait_ns + move_ns, 72.0
    if whole <= 0:
        return ""
    w = wait_ns / whole * wide
    body = []
    if w >= 1:
        body.append(svg.rect(0, 0, w - 1, 12, svg.fill("comm_wait_ns"), f"waiting {percent(wait_ns / whole)}"))
    if wide - w >= 1:
        body.append(svg.rect(w, 0, wide - w, 12, svg.fill("comm_transfer_ns"), f"moving data {percent(move_ns / whole)}"))
    return svg.figure(wide, 12, f"waiting {percent(wait_ns / whole)} of the time in it", body, fixed=True)
