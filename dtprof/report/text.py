"""The report in the terminal: three lines first, then the budget, the worst operations, the findings, what was missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, Literal

from rich.console import Console
from rich.text import Text

from dtprof.analyse.results import ACCOUNTING, Operation
from dtprof.numbers import MILLISECONDS, NOT_KNOWN, Scale, fixed, percent, time
from dtprof.report import goodput, memory, parallel
from dtprof.report import text_bars as bars
from dtprof.report.budget import MANY, basis, budget, left_out, mean, no_steps, short_note, shown, totals
from dtprof.report.facts import Facts
from dtprof.report.missing import missing
from dtprof.report.operations import detail, longest_wait, op_words, select, size_words, wait_sum, weight, why_unsplit
from dtprof.report.palette import PARTS, SIGNS
from dtprof.report.text_layout import Column, command, hanging, plain, table, wrap
from dtprof.report.wording import cost, cost_scale, emphasis, evidence, is_command, place, price, share

NARROWEST, WIDEST = 40, 120
WORST_HERE = 8
MARGIN = 9
UNSPLIT = "Waits are not known where an operation is one-sided or incomplete ({}); ≤ is an upper bound."
_SEVERITY = {"high": "bold red", "medium": "bold yellow", "low": "dim"}
_MEANING = {"wait": "comm_wait_ns", "transfer": "comm_transfer_ns", "compute": "compute_ns"}


def print_report(facts: Facts, file: IO[str] | None = None, width: int | None = None, colour: bool | None = None) -> None:
    """Print to ``file`` (stdout); width and colour are found out unless given."""
    system: Literal["auto", "truecolor"] = "truecolor" if colour else "auto"
    console = Console(file=file, width=width, force_terminal=colour, color_system=system, highlight=False)
    coloured = colour if colour is not None else console.color_system in ("256", "truecolor") and not console.no_color
    if colour is False:
        console.no_color = True
    with console.capture() as capture:
        for line in render(facts, console.width, coloured, dark_terminal()):
            console.print(line, soft_wrap=True)
    (file or sys.stdout).write(capture.get())


def dark_terminal() -> bool:
    """Is the background dark? Only some terminals say so (COLORFGBG ends in its colour number); dark is the common case."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] not in ("7", "15")


def render(facts: Facts, width: int, colour: bool, dark: bool = True) -> list[Text]:
    """All lines, none wider than ``width`` (at least 40, at most 120 cells are used)."""
    width = max(NARROWEST, min(width, WIDEST))
    sections = [
        _verdict(facts, width, colour, dark),
        _budget(facts, width, colour, dark),
        _operations(facts, width),
        _findings(facts, width),
        _memory(facts, width),
        _goodput(facts, width),
        _parallel(facts, width),
        _record(facts, width),
        _missing(facts, width),
    ]
    lines: list[Text] = []
    for section in filter(None, map(list, sections)):
        lines += [*([Text()] if lines else []), *section]
    return lines


def _verdict(facts: Facts, width: int, colour: bool, dark: bool) -> Iterable[Text]:
    verdict, room = facts.verdict, width - MARGIN
    yield from _muted(verdict.header, width)
    lead, meaning, _ = emphasis(verdict.verdict)
    shade = PARTS[_MEANING[meaning]] if meaning and colour else None
    for line in hanging("VERDICT", wrap(verdict.verdict, room), MARGIN, "bold"):
        if shade:
            end = MARGIN + len(lead)
            line.stylize(shade.dark if dark else shade.light, MARGIN, min(end, len(line)))
            lead = lead[max(0, len(line) - MARGIN + 1) :]
            shade = shade if lead else None
        yield line
    yield from hanging("WHY", wrap(verdict.why, room), MARGIN)
    for i, sentence in enumerate(verdict.next):
        yield from hanging("" if i else "NEXT", wrap(sentence, room), MARGIN)
    for typed in verdict.commands:
        yield from hanging("", command(typed, room), MARGIN, "cyan")


def _budget(facts: Facts, width: int, colour: bool, dark: bool) -> Iterable[Text]:
    if facts.run.format == "snapshot":
        return
    every = budget(facts)
    yield _title("Where the step goes")
    if not every:
        yield from _muted(f"{no_steps(facts)} The whole capture, ms; idle includes whatever lay between steps.", width)
        names, parts = totals(facts)
        cells = [[label for label, _ in parts], *([MILLISECONDS.text(v[i]) for _, v in parts] for i in range(len(names)))]
        yield from table([Column(h, c, i > 0, i) for i, (h, c) in enumerate(zip(["ms", *names], cells, strict=True))], width)
        return
    rows, scale = shown(every), Scale.of(r.total for r in every)
    yield from _muted(f"{basis(facts)}, {scale.unit}; the parts of each bar sum to its step.", width)
    if len(every) > 1:
        rows = [mean(every), *rows]
    longest = max(r.total for r in rows)
    margin = max(len(r.label) for r in rows) + 2
    roles = max((2 + len(short_note(r)) for r in rows), default=0) if len(every) > MANY else 0
    room = max(width - margin - 1 - len(scale.text(longest)) - roles, 10)
    for row in rows:
        per_ns = room / longest
        bar = bars.blocks(row.parts, per_ns, scale, dark) if colour else bars.letters(row.parts, per_ns)
        style = "bold" if row.culprit or row.part is None else ""
        line = Text.assemble((f"{row.label:>{margin - 2}}  ", style), bar, (f" {scale.text(row.total)}", style))
        note = next((n for n in (row.note, short_note(row)) if n and line.cell_len + 2 + len(n) <= width), "")
        if note:
            line.append(f"  {note}", "dim")
        yield line
    shares = facts.accounting.mean_shares()
    yield from _key([(key, shares[key]) for key in ACCOUNTING if shares[key] > 0], margin, width, colour, dark)
    if left_out(every):
        yield from _muted(left_out(every), width)


def _key(shares: list[tuple[str, float]], margin: int, width: int, colour: bool, dark: bool) -> Iterable[Text]:
    """Names of the parts with their mean share, as many to a line as fit."""
    line = Text(" " * margin)
    for key, part in shares:
        entry = Text.assemble(bars.swatch(key, dark, colour), f" {PARTS[key].label} {percent(part)}")
        gap = 0 if line.cell_len == margin else 3
        if gap and line.cell_len + gap + entry.cell_len > width:
            yield line
            line, gap = Text(" " * margin), 0
        line = Text.assemble(line, " " * gap, entry)
    line.truncate(width)
    yield line


def _operations(facts: Facts, width: int) -> Iterable[Text]:
    chosen = select(facts.comm.operations, WORST_HERE)
    if not chosen.total:
        return
    operations = sorted(chosen.operations, key=weight, reverse=True)
    yield _title("Worst operations: waiting against moving")
    yield from table(_columns(operations, facts), width)
    reasons = sorted({why_unsplit(o) for o in operations} - {""})
    if reasons:
        yield from _muted(UNSPLIT.format(", ".join(reasons)), width)
    waits = [w for o in facts.comm.operations if (w := wait_sum(o)) is not None]
    moves = [o.transfer_ns for o in facts.comm.operations if o.transfer_ns is not None]
    if waits:
        total = f"All {chosen.total:,} together: waiting {time(sum(waits))} over all ranks, moving data {time(sum(moves))}."
        yield from _muted(f"{total} {chosen.left_out:,} are not shown." if chosen.left_out else total, width)


def _columns(operations: list[Operation], facts: Facts) -> list[Column]:
    longest = [longest_wait(o) for o in operations]
    sums = [wait_sum(o) for o in operations]
    moving = [o.transfer_ns if o.transfer_ns is not None else o.transfer_upper_ns for o in operations]
    by_wait, by_sum, by_move = Scale.of(w[1] if w else None for w in longest), Scale.of(sums), Scale.of(moving)
    waits = [f"{by_wait.text(w[1])} rank {w[0]}" if w else NOT_KNOWN for w in longest]
    names = [", ".join(filter(None, [op_words(o.op), detail(o, facts)])) for o in operations]
    columns = [
        Column("#", [str(o.id) for o in operations], goes=3),
        Column("operation", names, right=False, flexible=True),
        Column("size", [size_words(o) for o in operations], goes=5),
        Column(f"longest\nwait, {by_wait.unit}", waits, goes=1),
        Column(f"wait sum\n{by_sum.unit}", [by_sum.text(s) for s in sums]),
        Column(f"moving\n{by_move.unit}", [_moving(o, by_move) for o in operations]),
        Column("last\narriver", [_last(o) for o in operations], right=False, goes=2),
        Column("busbw\nGB/s", [NOT_KNOWN if o.busbw_gb_s is None else fixed(o.busbw_gb_s, 2) for o in operations], goes=3),
    ]
    return [c for c in columns if not c.goes or set(c.cells) != {NOT_KNOWN}]


def _moving(operation: Operation, scale: Scale) -> str:
    """Transfer in the unit of its column, a bound where only that is known."""
    if operation.transfer_ns is not None or operation.transfer_upper_ns is None:
        return scale.text(operation.transfer_ns)
    return f"≤ {scale.text(operation.transfer_upper_ns)}"


def _last(operation: Operation) -> str:
    return NOT_KNOWN if operation.last_rank is None else f"rank {operation.last_rank}"


def _findings(facts: Facts, width: int) -> Iterable[Text]:
    yield _title("Findings")
    if not facts.findings:
        yield from _muted("None. What this report could not see is listed below.", width)
        return
    scale, margin = cost_scale(facts.findings), 10
    room = width - margin
    for i, finding in enumerate(facts.findings):
        if i:
            yield Text()
        sign = f"{SIGNS[finding.severity]} {finding.severity}"
        yield from hanging(sign, wrap(finding.title, room), margin, "bold", _SEVERITY[finding.severity])
        costs = f"costs {cost(finding, scale)} per step" if finding.seconds_per_step is not None else f"costs {NOT_KNOWN}"
        facts_line = " · ".join([", ".join(filter(None, [costs, share(finding)])), finding.rule, place(finding)])
        yield from hanging("", wrap(facts_line, room), margin, "dim")
        for item in finding.evidence:
            for j, line in enumerate(wrap(evidence(item), room - 2)):
                yield Text(" " * margin + ("· " if j == 0 else "  ") + plain(line))
        for label, text in (("price", price(finding, scale)), ("apply", finding.apply), ("verify", finding.verify)):
            yield from _labelled(label, text, margin, room)


def _labelled(label: str, text: str, margin: int, room: int) -> Iterable[Text]:
    first = True
    for part in (text or NOT_KNOWN).splitlines():
        typed = is_command(part)
        lines = command(part, room - 8) if typed else wrap(part, room - 8)
        for line in hanging(label if first else "", lines, 8, "cyan" if typed else "", "dim"):
            yield Text.assemble(" " * margin, line)
        first = False


def _memory(facts: Facts, width: int) -> Iterable[Text]:
    if not memory.rows(facts):
        return
    yield _title("Memory")
    yield from _muted(memory.lead(facts), width)
    heads, body = memory.cells(facts)
    columns = zip(heads, zip(*body, strict=True), strict=True)
    yield from table([Column(h, c, right=i > 0, goes=max(0, i - 1)) for i, (h, c) in enumerate(columns)], width)
    for sentence in memory.sentences(facts):
        for i, line in enumerate(wrap(sentence, width - 2)):
            yield Text(("· " if i == 0 else "  ") + plain(line))


def _goodput(facts: Facts, width: int) -> Iterable[Text]:
    """The whole run, and not only its captured steps."""
    if said := goodput.sentence(facts.goodput):
        yield from hanging("GOODPUT", wrap(said, width - MARGIN), MARGIN)


def _parallel(facts: Facts, width: int) -> Iterable[Text]:
    """What pipelines, experts and workers did."""
    for label, said in parallel.sentences(facts.parallel):
        yield from hanging(label, wrap(said, width - MARGIN), MARGIN)


def _record(facts: Facts, width: int) -> Iterable[Text]:
    """What was verified of this run: predicted beside achieved."""
    if not facts.verdicts:
        return
    yield _title("The record: what was verified")
    for row in facts.verdicts:
        for i, line in enumerate(wrap(row.text, width - 2)):
            yield Text(("· " if i == 0 else "  ") + plain(line))


def _missing(facts: Facts, width: int) -> Iterable[Text]:
    yield _title("What this report could not see")
    rows = missing(facts)
    if not rows:
        yield from _muted("Nothing was found missing or damaged.", width)
    for row in rows:
        many = "" if row.count == "1" else f" ({row.count})"
        for i, line in enumerate(wrap(f"{row.who}, {row.source}: {row.what}{many}; {row.effect}", width - 2)):
            yield Text(("· " if i == 0 else "  ") + plain(line))


def _title(text: str) -> Text:
    return Text(text, "bold underline")


def _muted(text: str, width: int) -> Iterable[Text]:
    for line in wrap(text, width):
        yield Text(plain(line), "dim")
