"""Side by side in time: one step of every rank on one clock; host, compute and copy, communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import Operation, StepAccount, settled
from dtprof.intervals import Cover
from dtprof.numbers import counted, listing, time
from dtprof.report import svg
from dtprof.report.budget import budget, shown
from dtprof.report.charts.axes import WIDTH, axis
from dtprof.report.facts import Facts
from dtprof.report.operations import op_words, select
from dtprof.report.palette import PARTS
from dtprof.schema import MISSING

LEFT_LEAST, RIGHT = 56.0, 916.0
PITCH, HOST, DEVICE, COMM = 42.0, 0.0, 6.0, 18.0
DEVICE_HEIGHT, COMM_HEIGHT, LEAST = 9.0, 13.0, 0.8
MERGED_BELOW = 0.7
# operations of one row that are drawn, the longest; a page must stay light
MOST_SPANS = 500
# of operations that end together, runs of numbers that are written out
MOST_NAMED = 5


@dataclass(frozen=True)
class Span:
    """One rank's part in one operation: waits from ``start`` to ``turn`` and moves until ``end``; ``turn`` None if not told."""

    operation: int
    op: str
    start: int
    turn: int | None
    end: int
    last_rank: int | None


@dataclass(frozen=True)
class Row:
    """One process: where its host and device step lie and what runs in them; ns, clocks aligned."""

    label: str
    rank: int | None
    culprit: bool
    host: tuple[int, int] | None
    backward: tuple[tuple[int, int], ...]
    compute: Cover
    copy: Cover
    spans: tuple[Span, ...]
    device: tuple[int, int]
    left_out: int = 0


@dataclass(frozen=True)
class Timeline:
    """One step of several processes; ``ends`` are (operation, end) of the operations worth naming."""

    step: int
    rows: tuple[Row, ...]
    start: int
    end: int
    ends: tuple[tuple[int, int], ...]


def lanes_words(drawn: Timeline) -> str:
    """Markup that says what the lanes of a rank are, and their colours."""
    apart = '<span class="w">waiting</span>, <span class="t">moving data</span>'
    if any(span.turn is None for row in drawn.rows for span in row.spans):
        apart += "; striped: not told apart"
    return (
        "Each rank from the top: <b>host</b> (tick: enters the step; thick: backward), "
        f'<span class="c">compute</span> and copy, communication ({apart}).'
    )


def representative_step(facts: Facts, parts: Collection[int] | None = None) -> int | None:
    """Of the settled steps that most of these parts (all) have, the one of median mean duration; None without any step."""
    durations: dict[int, list[int]] = {}
    for account in facts.accounting.parts:
        for step in settled(account.steps) if parts is None or account.part in parts else ():
            durations.setdefault(step.step, []).append(step.dur_ns)
    if not durations:
        return None
    most = Counter(len(d) for d in durations.values())
    common = max(most)
    by_time = sorted((sum(d) / len(d), step) for step, d in durations.items() if len(d) == common)
    return by_time[len(by_time) // 2][1]


def timeline(facts: Facts) -> Timeline | None:
    """The representative step of the ranks that a report shows; None where no step is marked."""
    bars = [bar for bar in shown(budget(facts)) if bar.part is not None]
    step = representative_step(facts, {bar.part for bar in bars if bar.part is not None})
    if step is None:
        return None
    operations = {o.id: o for o in facts.comm.operations}
    accounts = {a.part: next((s for s in a.steps if s.step == step), None) for a in facts.accounting.parts}
    rows = []
    for bar in bars:
        account = accounts.get(bar.part) if bar.part is not None else None
        if account is not None and bar.part is not None:
            rows.append(_row(facts, bar.part, bar.label, bar.culprit, account, operations))
    start = min(min(r.device[0], r.host[0] if r.host else r.device[0]) for r in rows)
    end = max(max(r.device[1], r.host[1] if r.host else r.device[1]) for r in rows)
    drawn = {s.operation for r in rows for s in r.spans}
    named = select([o for o in facts.comm.operations if o.id in drawn]).operations
    return Timeline(step, tuple(rows), start, end, tuple((o.id, o.end_ns) for o in named))


def _row(facts: Facts, part: int, label: str, culprit: bool, step: StepAccount, operations: dict[int, Operation]) -> Row:
    view, offset = PartView(facts.run, part), facts.parts[part].clock_offset_ns
    lo, hi = step.ts, step.ts + step.dur_ns
    if step.on_device:
        compute, copy = view.device_compute, view.device_copy
    else:
        compute, copy = view.host_compute, intervals.empty()
    steps = facts.run.table("steps", part)
    mine = np.flatnonzero(steps["step"] == step.step)
    host = None
    if len(mine) and steps["host_ts"][mine[0]] != MISSING:
        begin = int(steps["host_ts"][mine[0]]) + offset
        host = (begin, begin + max(int(steps["host_dur"][mine[0]]), 0))
    backward = tuple(
        (p.ts + offset, p.ts + p.dur_ns + offset)
        for p in facts.phases.times
        if p.part == part and p.step == step.step and p.phase == "backward"
    )
    spans = _spans(facts, part, lo + offset, hi + offset, operations)
    rank = facts.parts[part].rank
    drawn = [_shift(intervals.clip(cover, lo, hi), offset) for cover in (compute, copy)]
    longest = sorted(sorted(spans, key=lambda s: s.start - s.end)[:MOST_SPANS], key=lambda s: s.start)
    left_out = len(spans) - len(longest)
    return Row(label, rank, culprit, host, backward, drawn[0], drawn[1], tuple(longest), (lo + offset, hi + offset), left_out)


def _spans(facts: Facts, part: int, lo: int, hi: int, operations: dict[int, Operation]) -> tuple[Span, ...]:
    shares = facts.comm.participations
    start, end = shares["start"], shares["start"] + shares["dur"]
    out = []
    for i in np.flatnonzero((shares["part"] == part) & (end > lo) & (start < hi)).tolist():
        operation = operations.get(int(shares["collective"][i]))
        if operation is None:
            continue
        wait = int(shares["wait"][i])
        begin = int(start[i])
        turn = None if wait == MISSING else begin + wait
        out.append(Span(operation.id, operation.op, begin, turn, int(end[i]), operation.last_rank))
    return tuple(sorted(out, key=lambda s: s.start))


def _shift(cover: Cover, offset: int) -> Cover:
    return cover[0] + offset, cover[1] + offset


def timeline_figure(drawn: Timeline) -> str:
    """The figure: per rank a host line, a compute and copy lane and a communication lane, on one clock from zero."""
    left = max(LEFT_LEAST, 14 + max(svg.width_of(r.label, bold=True) for r in drawn.rows))
    canvas = _Canvas(left, drawn.start, (RIGHT - left) / max(drawn.end - drawn.start, 1), len(drawn.rows))
    top = 46.0
    bottom = top + len(drawn.rows) * PITCH - 8
    body = canvas.operation_ends(drawn, bottom)
    for i, row in enumerate(drawn.rows):
        body += canvas.row(row, drawn.step, top + i * PITCH)
    body += canvas.annotations(drawn, top)
    body += axis(left, RIGHT, bottom + 6, drawn.end - drawn.start)
    label = f"Timeline of step {drawn.step}, {counted(len(drawn.rows), 'rank')}: host, compute and copy, communication"
    return svg.figure(WIDTH, bottom + 28, label, body)


@dataclass(frozen=True)
class _Ends:
    """Operations whose numbers share one text, between their first and their last end."""

    operations: tuple[int, ...]
    first: float
    last: float

    @property
    def words(self) -> str:
        """``2 3``, ``31 to 34``, or ``31 and 11 more``."""
        several = listing(self.operations)
        if several.count(",") >= MOST_NAMED:
            return f"{self.operations[0]} and {len(self.operations) - 1} more"
        return " ".join(map(str, self.operations)) if len(self.operations) < 3 else several

    @property
    def middle(self) -> float:
        """Where the text is centred."""
        return (self.first + self.last) / 2

    @property
    def left(self) -> float:
        """Left end of the text."""
        return self.middle - svg.width_of(self.words, bold=True) / 2

    @property
    def right(self) -> float:
        """Right end of the text."""
        return self.middle + svg.width_of(self.words, bold=True) / 2

    def with_(self, other: _Ends) -> _Ends:
        """Both together."""
        return _Ends(self.operations + other.operations, self.first, other.last)


@dataclass(frozen=True)
class _Canvas:
    left: float
    zero: int
    per_ns: float
    rows: int

    def x(self, ns: int) -> float:
        """Where an instant lies."""
        return self.left + (ns - self.zero) * self.per_ns

    def operation_ends(self, drawn: Timeline, bottom: float) -> list[str]:
        """Hairlines at the ends of the operations, their numbers above; numbers that would meet share one text."""
        groups: list[_Ends] = []
        body = []
        for operation, end in sorted(drawn.ends, key=lambda e: e[1]):
            x = self.x(end)
            body.append(svg.line(x, 36, x, bottom, "hair"))
            group = _Ends((operation,), x, x)
            while groups and groups[-1].right + 3 > group.left:
                group = groups.pop().with_(group)
            groups.append(group)
        body += [svg.text(g.middle, 32, g.words, "b", "middle") for g in groups]
        if groups:
            beside = groups[0].left - 8
            above = beside - svg.width_of("operation ends") < 0
            place = (self.left, 16, "operation ends", "m") if above else (beside, 32, "operation ends", "m", "end")
            body.append(svg.text(*place))
        return body

    def row(self, row: Row, step: int, y: float) -> list[str]:
        """Label and three lanes of one rank."""
        body = [svg.text(self.left - 10, y + 18, row.label, "b" if row.culprit else "", "end")]
        if row.host:
            x, w = self.x(row.host[0]), (row.host[1] - row.host[0]) * self.per_ns
            title = f"{row.label} · host step {step} · {time(row.host[1] - row.host[0])}"
            body.append(svg.rect(x, y + HOST, max(w, LEAST), 2, "var(--line)", title))
            enters = f"{row.label} enters step {step} at {time(row.host[0] - self.zero)}"
            path = f"M{svg.number(x)} {svg.number(y - 3)} v8"
            body.append(f'<path d="{path}" stroke="var(--ink)" stroke-width="1.5"><title>{enters}</title></path>')
        for start, end in row.backward:
            title = f"{row.label} · host backward · {time(end - start)}"
            w = max((end - start) * self.per_ns, LEAST)
            body.append(svg.rect(self.x(start), y - 1, w, 4, "var(--muted)", title, ' opacity=".55"'))
        for key, cover in (("compute_ns", row.compute), ("copy_exposed_ns", row.copy)):
            body += self._lane(row, key, cover, y + DEVICE)
        for span in row.spans:
            body += self._span(row, span, y + COMM)
        return body

    def _lane(self, row: Row, key: str, cover: Cover, y: float) -> list[str]:
        """The intervals of one lane; those closer than 0.7 px are drawn as one (twice that above eight ranks)."""
        if len(cover[0]) == 0:
            return []
        gap = (MERGED_BELOW if self.rows <= 8 else 2 * MERGED_BELOW) / self.per_ns
        first = np.flatnonzero(np.concatenate([[True], cover[0][1:] - cover[1][:-1] > gap]))
        last = np.append(first[1:], len(cover[0])) - 1
        spent = np.concatenate([[0], np.cumsum(cover[1] - cover[0])])
        body = [f'<g fill="{svg.fill(key)}">']
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            start, end = int(cover[0][a]), int(cover[1][b])
            busy = time(int(spent[b + 1] - spent[a]))
            title = f"{row.label} · {PARTS[key].label} {busy}" + (f" in {b - a + 1:,} intervals" if b > a else "")
            body.append(svg.rect(self.x(start), y, max((end - start) * self.per_ns, LEAST), DEVICE_HEIGHT, "", title))
        return [*body, "</g>"]

    def _span(self, row: Row, span: Span, y: float) -> list[str]:
        name = f"{row.label} · operation {span.operation} {op_words(span.op)}"
        if span.turn is None:
            w = max((span.end - span.start) * self.per_ns, LEAST)
            title = f"{name} · {time(span.end - span.start)}, waiting and moving not told apart"
            return [svg.rect(self.x(span.start), y, w, COMM_HEIGHT, svg.fill("comm_unsplit_ns"), title)]
        wait, move = span.turn - span.start, span.end - span.turn
        marks = []
        if wait * self.per_ns >= 0.1:
            whom = "" if span.last_rank in (None, row.rank) else f" for rank {span.last_rank}"
            title = f"{name} · waits {time(wait)}{whom}"
            marks.append(svg.rect(self.x(span.start), y, wait * self.per_ns, COMM_HEIGHT, svg.fill("comm_wait_ns"), title))
        w = max(move * self.per_ns, LEAST)
        marks.append(
            svg.rect(self.x(span.turn), y, w, COMM_HEIGHT, svg.fill("comm_transfer_ns"), f"{name} · moves data {time(move)}")
        )
        return marks

    def annotations(self, drawn: Timeline, top: float) -> list[str]:
        """The longest wait in words inside its span, where it fits, and the one culprit that enters last."""
        body = []
        waits = [(s.turn - s.start, i, s) for i, r in enumerate(drawn.rows) for s in r.spans if s.turn is not None]
        if waits:
            wait, i, span = max(waits, key=lambda w: w[0])
            whom = f" for rank {span.last_rank}" if span.last_rank is not None else ""
            words = f"waiting{whom} in operation {span.operation}, {time(wait)}"
            if svg.width_of(words) + 12 < wait * self.per_ns:
                middle = self.x(span.start) + wait * self.per_ns / 2
                body.append(svg.on_mark(middle, top + i * PITCH + COMM + 10.5, words, "comm_wait_ns"))
        entered = [(r.host[0], i) for i, r in enumerate(drawn.rows) if r.host]
        if len(entered) > 1:
            (before, _), (at, i) = sorted(entered)[-2:]
            words = f"enters step {drawn.step} last, at {time(at - self.zero)}"
            x = self.x(at) - 6
            room = x - svg.width_of(words) > self.left
            if drawn.rows[i].culprit and (at - before) * self.per_ns >= 1 and room and self._free(drawn.rows[i], at):
                body.append(svg.text(x, top + i * PITCH + 4, words, "m", "end"))
        return body

    def _free(self, row: Row, at: int) -> bool:
        """Nothing of the row's own device work lies left of its entry, where the words would stand."""
        return len(row.compute[0]) == 0 or int(row.compute[0][0]) >= at
