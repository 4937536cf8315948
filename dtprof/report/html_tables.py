"""The tables of the page: operations, findings, kernels, what was missing, the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from dtprof.analyse.results import ACCOUNTING, KernelRow, Operation
from dtprof.findings import Finding
from dtprof.numbers import MILLISECONDS, NOT_KNOWN, Scale, count, fixed, named, percent, spelled, time
from dtprof.report.budget import MANY, MOST_ROWS, BudgetRow, mean, shown, totals
from dtprof.report.charts.operations import strip, strip_axis, wait_against_move
from dtprof.report.facts import Facts
from dtprof.report.missing import missing
from dtprof.report.operations import (
    Selection,
    detail,
    longest_wait,
    op_words,
    participants,
    size_words,
    transfer_words,
    wait_sum,
    why_unsplit,
)
from dtprof.report.palette import LAST, PARTS, SIGNS
from dtprof.report.wording import cost, cost_scale, evidence, is_command, place, price, share

TOP_KERNELS = 10
LONGEST_NAME = 160


def operations_table(facts: Facts, chosen: Selection) -> str:
    """One row per operation: strip of all ranks, longest wait, sum, transfer, last arriver, bus bandwidth."""
    top = max(max(o.dur_ns.values(), default=0) for o in chosen.operations) or 1
    many = max(len(o.dur_ns) for o in chosen.operations)
    if many <= MANY:
        lines = (
            f"{spelled(many)} line{'' if many == 1 else 's'}: {named('rank', [r for o in chosen.operations for r in o.dur_ns])}"
        )
    else:
        lines = f"shortest, median, longest of {count(many)} ranks, and the last"
    split = any(wait_sum(o) is not None for o in chosen.operations)
    last = f". {LAST} arrives last" if split else ""
    waits = _WAIT_HEADS if split else _UNSPLIT_HEADS
    head = (
        '<tr><th class="n">#</th><th>operation</th><th class="n">size</th>'
        f'<th><span class="key">{lines}{last}</span>{strip_axis(top)}</th>{waits}</tr>'
    )
    rows = "".join(_operation(o, facts, top, split) for o in chosen.operations)
    return f'<table class="ops"><thead>{head}</thead><tbody>{rows}{_operations_total(facts)}</tbody></table>'


_WAIT_HEADS = (
    '<th class="n">longest<br>wait</th><th class="n">wait, sum<br>over ranks</th><th class="n">moving<br>data</th>'
    '<th>last<br>arriver</th><th class="n">busbw<br>GB/s</th>'
)
_UNSPLIT_HEADS = '<th class="n">longest<br>time</th><th class="n">waiting</th><th class="n">moving<br>data</th>'


def _operation(operation: Operation, facts: Facts, top: int, split: bool) -> str:
    note = escape(detail(operation, facts))
    drawn = strip(operation, participants(operation, facts.culprits), top)
    lead = (
        f'<td class="n idx">{operation.id}</td><td class="op"><b>{escape(op_words(operation.op))}</b>'
        f'{f"""<br><span class="muted">{note}</span>""" if note else ""}</td>'
        f'<td class="n">{size_words(operation)}</td><td class="strip">{drawn}</td>'
    )
    return f"<tr>{lead}{_waits(operation) if split else _no_waits(operation)}</tr>"


def _no_waits(operation: Operation) -> str:
    """Cells of an operation in a table where no wait is known: its longest time, and why."""
    rank, longest = max(operation.dur_ns.items(), key=lambda d: (d[1], -d[0]), default=(0, 0))
    return (
        f'<td class="n">{time(longest)}<br><span class="muted">rank {rank}</span></td>'
        f'<td class="n">{_unknown(why_unsplit(operation))}</td><td class="n">{transfer_words(operation)}</td>'
    )


def _waits(operation: Operation) -> str:
    """Cells of an operation: longest wait, sum, transfer, last arriver, bus bandwidth."""
    worst, waits, reason = longest_wait(operation), wait_sum(operation), why_unsplit(operation)
    longest = f'{time(worst[1])}<br><span class="muted">rank {worst[0]}</span>' if worst else _unknown(reason)
    summed, last, bus = _unknown(reason), _unknown(), _unknown()
    if waits is not None and operation.transfer_ns is not None:
        mini = wait_against_move(waits, operation.transfer_ns * len(operation.dur_ns))
        summed = f'{time(waits)}<br><span class="mini">{mini}</span>'
    if operation.last_rank is not None:
        by = "" if operation.last_by_ns is None else f'<br><span class="muted">by {time(operation.last_by_ns)}</span>'
        last = f"<b>rank {operation.last_rank}</b>{by}"
    if operation.busbw_gb_s is not None:
        bus = fixed(operation.busbw_gb_s, 2)
    return (
        f'<td class="n">{longest}</td><td class="n">{summed}</td><td class="n">{transfer_words(operation)}</td>'
        f'<td>{last}</td><td class="n">{bus}</td>'
    )


def _unknown(reason: str = "") -> str:
    """``not known``, muted, with the reason beneath."""
    return f'<span class="muted">{NOT_KNOWN}{f"<br>{escape(reason)}" if reason else ""}</span>'


def _operations_total(facts: Facts) -> str:
    operations = facts.comm.operations
    waits = [w for o in operations if (w := wait_sum(o)) is not None]
    moves = [o.transfer_ns for o in operations if o.transfer_ns is not None]
    if len(operations) < 2 or not waits:
        return ""
    known = "" if len(waits) == len(operations) else f" (known of {count(len(waits))})"
    blank = '<td colspan="3"></td>'
    return (
        f'<tr class="tot"><td></td><td colspan="2">all {spelled(len(operations))}{known}</td><td></td><td></td>'
        f'<td class="n">{time(sum(waits))}</td><td class="n">{time(sum(moves))}</td>{blank.replace("3", "2")}</tr>'
    )


def findings_list(findings: Sequence[Finding]) -> str:
    """All findings, each with its place, its cost, its evidence, price, remedy and proof."""
    scale = cost_scale(findings)
    return "".join(_finding(f, scale) for f in findings)


def _finding(finding: Finding, scale: Scale) -> str:
    part = share(finding)
    small = f"<small>{part}</small>" if part else ""
    items = "".join(f"<li>{inline(evidence(e))}</li>" for e in finding.evidence)
    proof = f"<dt>Evidence</dt><dd><ul>{items}</ul></dd>" if items else ""
    body = "".join(
        f"<dt>{label}</dt><dd>{prose(text)}</dd>"
        for label, text in (
            ("Price", price(finding, scale)),
            ("Apply", finding.apply or NOT_KNOWN),
            ("Verify", finding.verify or NOT_KNOWN),
        )
    )
    sign = f'<span class="sev {finding.severity}">{SIGNS[finding.severity]} {finding.severity}</span>'
    meta = f'<div class="meta"><code>{escape(finding.rule)}</code> · {escape(place(finding))}</div>'
    costs = f'<span class="price"><i>costs</i> {cost(finding, scale)}{small}</span>'
    head = f"<header>{sign}<div><h3>{inline(finding.title)}</h3>{meta}</div>{costs}</header>"
    return f'<article class="finding">{head}<dl>{proof}{body}</dl></article>'


def inline(text: str) -> str:
    """Escaped text; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def prose(text: str) -> str:
    """Paragraph text in which lines that are commands stand in a box of their own."""
    out: list[str] = []
    for line in text.splitlines():
        if is_command(line):
            out.append(f'<span class="cmd">{escape(line)}</span>')
        else:
            out.append(inline(line) + ("<br>" if out and not out[-1].startswith("<span") else ""))
    return " ".join(out)


def kernels_table(facts: Facts) -> str:
    """Top ten kernels by total time and all others in one row; empty where there is no kernel."""
    rows = sorted(facts.kernels.rows, key=lambda k: -k.total_ns)
    if not rows:
        return ""
    top, others = rows[:TOP_KERNELS], rows[TOP_KERNELS:]
    rest = KernelRow(
        f"other: {count(len(others))} names", "other", sum(k.count for k in others), sum(k.total_ns for k in others), 0,
        sum(k.share for k in others),
    )  # fmt: skip
    total, median = Scale.of(k.total_ns for k in [*top, rest]), Scale.of(k.median_ns for k in top)
    body = "".join(
        _kernel(k, total, f'<td class="n" title="{count(k.median_ns)} ns">{median.text(k.median_ns)}</td>') for k in top
    )
    if others:
        body += _kernel(rest, total, '<td class="n muted">many</td>')
    head = (
        '<th>kernel</th><th>kind</th><th class="n">count</th>'
        f'<th class="n">total<br>{total.unit}</th><th class="n">median<br>{median.unit}</th><th class="n">share</th>'
    )
    return f'<table class="kernels"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _kernel(kernel: KernelRow, scale: Scale, median: str) -> str:
    name = f'<code title="{escape(kernel.name)}">{escape(_short(kernel.name))}</code>'
    total = f'<td class="n" title="{count(kernel.total_ns)} ns">{scale.text(kernel.total_ns)}</td>'
    cells = f'<td>{name}</td><td>{kernel.kind}</td><td class="n">{count(kernel.count)}</td>{total}{median}'
    return f'<tr>{cells}<td class="n">{percent(kernel.share)}</td></tr>'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def missing_table(facts: Facts) -> str:
    """What is missing or approximate, and what it changes; empty where nothing is."""
    rows = missing(facts)
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{escape(r.ranks)}</td><td>{_breaking(r.source)}</td><td>{inline(r.what)}</td>"
        f'<td class="n">{escape(r.count)}</td><td>{inline(r.effect)}</td></tr>'
        for r in rows
    )
    head = '<tr><th>rank</th><th>source</th><th>what</th><th class="n">count</th><th>effect on this report</th></tr>'
    return f'<table class="missing"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _breaking(name: str) -> str:
    """A name, such as a file's, that may be broken at its dots and underscores."""
    return re.sub(r"([._])", r"\1<wbr>", escape(name))


def totals_table(facts: Facts) -> str:
    """Where no step is known: the whole capture of every part, in ms."""
    names, rows = totals(facts)
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    body = ""
    for label, values in rows:
        cells = "".join(f'<td class="n" title="{v:,} ns">{MILLISECONDS.text(v)}</td>' for v in values)
        body += f"<tr><td>{escape(label)}</td>{cells}</tr>"
    return f"<table><thead><tr><th>ms</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def numbers_table(rows: Sequence[BudgetRow]) -> str:
    """The budget in ms to the microsecond, one row per rank (up to 64) and the mean; only parts that occur."""
    drawn = list(rows) if len(rows) <= MOST_ROWS else shown(rows)
    keys = [k for k in ACCOUNTING if any(r.parts[k] for r in rows)]
    head = "".join(f'<th class="n">{PARTS[k].label}</th>' for k in keys)
    body = "".join(_numbers_row(r, keys) for r in drawn)
    if len(rows) > 1:
        body += _numbers_row(mean(rows), keys, ' class="tot"')
    return (
        f'<table><thead><tr><th>ms</th>{head}<th class="n">step</th><th class="n">hidden comm.</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _numbers_row(row: BudgetRow, keys: Iterable[str], css: str = "") -> str:
    cells = "".join(f'<td class="n" title="{row.parts[k]:,.0f} ns">{MILLISECONDS.text(row.parts[k])}</td>' for k in keys)
    step = f'<td class="n" title="{row.total:,.0f} ns"><b>{MILLISECONDS.text(row.total)}</b></td>'
    hidden = f'<td class="n muted">{MILLISECONDS.text(row.hidden)}</td>'
    return f"<tr{css}><td>{escape(row.label)}</td>{cells}{step}{hidden}</tr>"
