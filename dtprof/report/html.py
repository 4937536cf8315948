"""The report as one self-contained page: inline style and figures, no script, no request to anywhere."""

from __future__ import annotations

from collections import Counter
from html import escape
from importlib.resources import files

from dtprof.numbers import Scale, listing, percent, time
from dtprof.report import memory, svg
from dtprof.report.budget import MANY, BudgetRow, basis, budget, left_out, mean, no_steps, shown
from dtprof.report.charts.budget import budget_figure, undrawn
from dtprof.report.charts.timeline import MOST_SPANS, lanes_words, timeline, timeline_figure
from dtprof.report.facts import Facts
from dtprof.report.html_tables import (
    findings_list,
    inline,
    kernels_table,
    missing_table,
    numbers_table,
    operations_table,
    totals_table,
)
from dtprof.report.operations import select
from dtprof.report.palette import PARTS, tokens
from dtprof.report.wording import emphasis

SUMS = "The parts of each rank sum to its step exactly: nothing is counted twice, nothing is left over."
ENDS_TOGETHER = (
    "An operation ends on all ranks together, so the shortest participation is the transfer and the rest of a rank’s "
    'time is <span class="w">waiting</span>; the <span class="t">transfer</span> is the thin end of each line.'
)
UNSPLIT = "Waiting and moving data cannot be told apart here, so every line is striped; ≤ marks an upper bound of the transfer."
STRIPED = " Striped: waiting and moving cannot be told apart; ≤ marks an upper bound."
_EMPHASIS = {"wait": "w", "compute": "c", "transfer": "t"}


def page(facts: Facts) -> str:
    """The whole page."""
    rows = budget(facts)
    body = "".join(
        (
            _head(facts),
            _budget(facts, rows),
            _operations(facts),
            _timeline(facts),
            _findings(facts),
            _kernels(facts),
            _memory(facts),
            _record(facts),
            _missing(facts),
            _numbers(facts, rows),
        )
    )
    title = f"dtprof report: {escape(facts.name)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title>'
        f"<style>{style()}</style></head><body>{svg.DEFS}<main>{body}</main></body></html>\n"
    )


def style() -> str:
    """The style sheet: tokens of both themes, the light ones again for print, then the rules."""
    light, dark = (";".join(f"--{name}:{colour}" for name, colour in tokens(d).items()) for d in (False, True))
    rules = files("dtprof.report").joinpath("style.css").read_text(encoding="utf-8")
    themes = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}@media print{{:root{{{light}}}}}"
    return f"{themes}\n{rules}"


def _section(title: str, sub: str, body: str, extra: str = "") -> str:
    """One section; an empty one keeps its place and says why."""
    words = f'<p class="sub">{sub}</p>' if sub else ""
    return f"<section{extra}><h2>{escape(title)}</h2>{words}{body}</section>"


def _head(facts: Facts) -> str:
    verdict = facts.verdict
    steps = facts.settled_steps
    which = f", step {steps[0]}" if len(steps) == 1 else ""
    lead, meaning, rest = emphasis(verdict.verdict)
    marked = f'<span class="{_EMPHASIS[meaning]}">{escape(lead)}</span>' if meaning else ""
    commands = "".join(f'<span class="cmd">{escape(c)}</span>' for c in verdict.commands)
    following = "".join(f"<p>{inline(sentence)}</p>" for sentence in verdict.next)
    return (
        f'<div class="head"><div class="eyebrow">dtprof report</div><h1>{escape(facts.name)}{which}</h1>'
        f'<div class="meta">{escape(" · ".join(filter(None, [verdict.header, *_provenance(facts)])))}</div></div>'
        f'<dl class="verdict"><dt class="v">VERDICT</dt><dd class="v">{marked}{escape(rest)}</dd>'
        f"<dt>WHY</dt><dd>{inline(verdict.why)}</dd><dt>NEXT</dt><dd>{following}{commands}</dd></dl>"
    )


def _provenance(facts: Facts) -> list[str]:
    """Devices, hosts and kind of the source, as far as they are known and not in the header already."""
    devices = Counter(p.device for p in facts.run.parts if p.device)
    hosts = len({p.host for p in facts.run.parts if p.host})
    told = all(device in facts.verdict.header for device in devices)
    machines = [] if told else [f"{number} × {device}" for device, number in devices.items()]
    where = {0: "", 1: "one host"}.get(hosts, f"{hosts} hosts")
    return [*machines, where, {"kineto": "Kineto traces", "nsys": "Nsight Systems"}.get(facts.run.format, "")]


def _budget(facts: Facts, rows: list[BudgetRow]) -> str:
    title = "Where the step goes"
    if not rows:
        clock = "Device" if facts.accounting.on_device else "Host"
        words = f"{_no_steps(facts)} {clock} time of the whole capture; idle includes whatever lay between steps."
        return _section(title, words, f'<div class="wide">{totals_table(facts)}</div>')
    drawn, scale = shown(rows), Scale.of(r.total for r in rows)
    average = mean(rows) if len(rows) > 1 else None
    shares = facts.accounting.mean_shares()
    thin = [f"{PARTS[k].label} {percent(shares[k])}" for k in undrawn([*drawn, *([average] if average else [])])]
    sub = [f"{basis(facts)} in {scale.unit}. {SUMS}"]
    if len(rows) > 1:
        sub.append("Percentages are means over the ranks.")
    if thin:
        sub.append(f"Too thin to draw: {', '.join(thin)}.")
    sub.append(left_out(rows))
    figure = f'<div class="wide"><figure>{budget_figure(drawn, average, shares, scale)}</figure></div>'
    after = '<p class="after"><a href="#numbers">The numbers, to the microsecond</a></p>'
    return _section(title, escape(" ".join(filter(None, sub))), figure + after)


def _operations(facts: Facts) -> str:
    chosen = select(facts.comm.operations)
    if not chosen.total:
        return _section("Communication", "No communication operation is in this run.", "")
    known = [o.transfer_ns is not None for o in chosen.operations]
    sub = (ENDS_TOGETHER if all(known) else ENDS_TOGETHER + STRIPED) if any(known) else UNSPLIT
    if chosen.sentence:
        sub += " " + escape(chosen.sentence)
    return _section(chosen.heading, sub, f'<div class="wide">{operations_table(facts, chosen)}</div>')


def _no_steps(facts: Facts) -> str:
    return escape(no_steps(facts)).replace("prof.step()", "<code>prof.step()</code>")


def _timeline(facts: Facts) -> str:
    title = "Side by side in time"
    drawn = timeline(facts)
    if drawn is None:
        return _section(title, _no_steps(facts), "")
    which = f"step {drawn.step}" if len(facts.settled_steps) == 1 else f"step {drawn.step} (of median length)"
    sub = f"One clock, zero when the first rank enters {which}; {time(drawn.end - drawn.start)} in all. {lanes_words(drawn)}"
    if len(facts.accounting.parts) > MANY:
        sub += f" Drawn: {escape(', '.join(r.label for r in drawn.rows))}."
    if any(r.left_out for r in drawn.rows):
        sub += f" Of the operations of a rank the {MOST_SPANS} longest are drawn."
    return _section(title, sub, f'<div class="wide"><figure>{timeline_figure(drawn)}</figure></div>', ' class="keep"')


def _findings(facts: Facts) -> str:
    if not facts.findings:
        return _section("Findings", "", '<p><span class="ok">✓ none</span> What this report could not see is listed below.</p>')
    return _section(
        "Findings",
        "What the fault takes is its cost; what a change would save is a prediction, or none.",
        findings_list(facts.findings),
    )


def _kernels(facts: Facts) -> str:
    table = kernels_table(facts)
    if not table:
        return _section("Kernels", "No device kernel is in this run.", "")
    whole = sum(facts.kernels.classes.values()) or 1
    classes = sorted(facts.kernels.classes.items(), key=lambda c: -c[1])[:6]
    words = ", ".join(f"{kind} {percent(spent / whole)}" for kind, spent in classes if spent)
    sub = "All ranks together, by total time, top ten and other." + (f" By kind: {words}." if words else "")
    return _section("Kernels", escape(sub), f'<div class="wide">{table}</div>')


def _memory(facts: Facts) -> str:
    if not memory.rows(facts):
        return ""
    heads, body = memory.cells(facts)
    head = "".join(f"<th{' class=n' if i else ''}>{h}</th>" for i, h in enumerate(heads))
    lines = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td class=n>{v}</td>' for v in values)}</tr>" for name, *values in body
    )
    told = "".join(f"<li>{escape(sentence)}</li>" for sentence in memory.sentences(facts))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return _section("Memory", escape(memory.lead(facts)), f'<div class="wide">{table}</div><ul>{told}</ul>')


def _record(facts: Facts) -> str:
    """What was verified of this run: predicted beside achieved."""
    if not facts.verdicts:
        return ""
    items = "".join(f"<li>{inline(row.text)}</li>" for row in facts.verdicts)
    return _section("The record", "What was verified of this run by measuring.", f"<ul>{items}</ul>")


def _missing(facts: Facts) -> str:
    title = "What this report could not see"
    table = missing_table(facts)
    if not table:
        return _section(title, "Nothing was found missing or damaged.", "")
    return _section(title, "Data quality: what is missing or approximate, and what it changes.", table)


def _numbers(facts: Facts, rows: list[BudgetRow]) -> str:
    if not rows:
        return _section("The numbers", _no_steps(facts), "", ' id="numbers"')
    steps = facts.settled_steps
    which = f"Step {steps[0]}" if len(steps) == 1 else f"Mean of steps {listing(steps)}"
    sub = f"{which}, ms. The parts sum to the step; hidden communication ran under compute or copies and is beside the sum."
    return _section("The numbers", escape(sub), f'<div class="wide">{numbers_table(rows)}</div>', ' class="keep" id="numbers"')
