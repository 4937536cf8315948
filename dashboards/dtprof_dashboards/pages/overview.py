"""Overview: the verdict, every step, where the step goes, what else was found, what could not be seen."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from statistics import fmean, median

import streamlit as st

from dtprof.advise.places import timed_steps
from dtprof.analyse.compute_mfu import Mfu
from dtprof.analyse.goodput import CATEGORIES, WORDS, GoodputResult
from dtprof.analyse.results import ACCOUNTING, settled
from dtprof.findings import Finding
from dtprof.numbers import Scale, count, counted, digits, interval, listing, percent, time
from dtprof.report.budget import BudgetRow, basis, left_out, mean, no_steps, shown
from dtprof.report.charts.budget import budget_figure, undrawn
from dtprof.report.charts.steps import MANY, steps_figure
from dtprof.report.facts import Facts
from dtprof.report.html_tables import inline, missing_table, totals_table
from dtprof.report.missing import missing
from dtprof.report.pace import bars, median_of, throughput
from dtprof.report.palette import PARTS, SIGNS
from dtprof.report.wording import cost, cost_scale, place, share
from dtprof_dashboards import show
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

# of the time of a run, what is named beside goodput
LEAST_SHARE = 0.005


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Overview", view.meta if facts.settled_steps else f"{facts.name} · {facts.verdict.header}")
    verdict = facts.verdict
    show.verdict(verdict.verdict, verdict.why, verdict.next, verdict.commands)
    show.tiles(_tiles(view))
    rank, step = _boxes(view)
    _steps(facts, rank, step)
    _budget(view, step)
    _findings(facts)
    _quality(facts)


def _tiles(view: View) -> list[Tile]:
    facts = view.facts
    return [_step_tile(facts), _throughput_tile(facts), _goodput_tile(view), _mfu_tile(view), _cost_tile(facts)]


def _step_tile(facts: Facts) -> Tile:
    """The captured steps, as the verdict's line of facts has them, and those of the step clock beside them."""
    timed = timed_steps(facts.run)
    clock = f"{time(median(timed))} by the step clock, {count(len(timed))} steps" if len(timed) > 1 else ""
    by_step: dict[int, list[int]] = {}
    for account in facts.accounting.parts:
        for step in settled(account.steps):
            by_step.setdefault(step.step, []).append(step.dur_ns)
    if by_step:
        means = [fmean(lengths) for lengths in by_step.values()]
        every = [ns for lengths in by_step.values() for ns in lengths]
        note = f"captured, median of {count(len(means))}" if len(means) > 1 else "one step captured"
        return Tile("Step", time(median(means)), clock or f"{note}; {interval(min(every), max(every))}")
    if timed:
        return Tile("Step", time(median(timed)), f"median of {count(len(timed))}; {interval(min(timed), max(timed))}")
    return Tile("Step", None, "no step is marked")


def _throughput_tile(facts: Facts) -> Tile:
    found = throughput(facts)
    if found is None:
        return Tile("Throughput", None, "the job does not say tokens per step")
    return Tile("Throughput", digits(found.per_second), f"{digits(found.per_step)} {found.unit} per step", f"{found.unit}/s")


def _goodput_tile(view: View) -> Tile:
    """Training that lasted, of the time of the run; what took most of the rest."""
    found: GoodputResult = view.opened.result("goodput")
    if found.share is None:
        return Tile("Goodput", None, found.why)
    rest = {WORDS[key]: share for key, share in found.shares().items() if key != CATEGORIES[0] and share >= LEAST_SHARE}
    named = [f"{words} {percent(share)}" for words, share in sorted(rest.items(), key=lambda r: -r[1])[:2]]
    return Tile("Goodput", percent(found.share), ", ".join(named) or "nothing else took time")


def _mfu_tile(view: View) -> Tile:
    """As the job told it, else by its tokens, its FLOPs and the peak of its devices."""
    values = [
        value
        for part in view.facts.run.parts
        for table in [view.facts.run.table("metrics", part.ordinal)]
        for value in table["value"][table.is_("metric", "mfu")].tolist()
    ]
    if values:
        return Tile("MFU", percent(sum(values) / len(values)), f"mean of {counted(len(values), 'reading')}")
    found: Mfu = view.opened.result("mfu")
    if found.share is None or found.gpu is None:
        return Tile("MFU", None, found.why)
    return Tile("MFU", percent(found.share), f"of {found.gpu.name}’s dense bf16 peak; FLOPs by {found.source}")


def _cost_tile(facts: Facts) -> Tile:
    own = facts.run.manifest.own_cost
    if own is None:
        said = "not measured in this run" if facts.run.format == "dtprof" else "recorded by another program"
        return Tile("Own cost", None, said)
    return Tile("Own cost", percent(own.get("fraction")), f"bound {percent(own.get('high'))} of the step")


def _boxes(view: View) -> tuple[int | None, int | None]:
    left, right, _ = st.columns([1, 1, 4])
    with left:
        rank = view.choose_rank()
    with right:
        step = view.choose_step("mean of all")
    return rank, step


def _steps(facts: Facts, rank: int | None, step: int | None) -> None:
    found = bars(facts, rank)
    if len(found) < 2:
        return
    who = "the process" if rank is None else f"rank {rank}"
    sub = f"Each column is one step of {who} and sums to it."
    if len(found) > MANY:
        sub = f"{count(len(found))} steps of {who} as a line; the parts of a step are drawn up to {MANY} steps."
    elif any(b.parts is None for b in found):
        sub += " Grey columns were timed and not traced: what lies inside them is not known."
    if any(b.parts is not None for b in found) and len(found) <= MANY:
        sub += " A click on a column chooses its step."
    show.section("Every step", escape(sub), show.figure(steps_figure(found, median_of(found), show.FULL, step, leads=True)))


def _of_step(view: View, step: int) -> list[BudgetRow]:
    """The rows of one step: of every process that has it."""
    accounts = {a.part: s for a in view.facts.accounting.parts for s in a.steps if s.step == step}
    return [
        replace(row, parts=dict(accounts[row.part].accounting), hidden=accounts[row.part].comm_hidden_ns, note="")
        for row in view.opened.rows
        if row.part in accounts
    ]


def _budget(view: View, step: int | None) -> None:
    facts, title = view.facts, "Where the step goes"
    rows = view.opened.rows if step is None else _of_step(view, step)
    if not rows:
        if facts.run.format == "snapshot":
            return
        show.section(title, inline(no_steps(facts)) + " The whole capture:", totals_table(facts))
        return
    drawn, scale = shown(rows), Scale.of(r.total for r in rows)
    average = mean(rows) if len(rows) > 1 else None
    shares = facts.accounting.mean_shares() if step is None else _shares(rows)
    what = basis(facts) if step is None else f"Step {step}"
    sub = [f"{what}, {scale.unit}; each bar sums to its step."]
    if len(rows) > 1:
        sub.append("Percentages are means over the ranks.")
    thin = [f"{PARTS[k].label} {percent(shares[k])}" for k in undrawn([*drawn, *([average] if average else [])])]
    if thin:
        sub.append(f"Too thin to draw: {', '.join(thin)}.")
    sub.append(left_out(rows))
    drawing = budget_figure(drawn, average, shares, scale, show.FULL, leads=len(rows) > 1)
    show.section(title, escape(" ".join(filter(None, sub))), show.figure(drawing))


def _shares(rows: list[BudgetRow]) -> dict[str, float]:
    whole = sum(r.total for r in rows) or 1.0
    return {key: sum(r.parts[key] for r in rows) / whole for key in ACCOUNTING}


def _findings(facts: Facts) -> None:
    if not facts.findings:
        show.markup('<section><p><span class="ok">✓ no finding</span></p></section>')
        return
    scale = cost_scale(facts.findings)
    rows = ""
    for finding in facts.findings:
        mark = f'<span class="sev {finding.severity}">{SIGNS[finding.severity]} {finding.severity}</span>'
        costs = _worth(finding, scale)
        where = f'<span class="muted">{escape(place(finding))}</span>'
        rows += f'<tr><td>{mark}</td><td><b>{inline(finding.title)}</b></td><td>{where}</td><td class="n">{costs}</td></tr>'
    show.section("What was found", "", f'<table class="brief"><tbody>{rows}</tbody></table>')


def _worth(finding: Finding, scale: Scale) -> str:
    """What the fault costs; where that is not known, what its repair is predicted to save."""
    if finding.seconds_per_step is None and finding.prediction is not None:
        return f"saves {scale.with_unit(finding.prediction.seconds_per_step * 1e9)}, predicted"
    return f"costs {cost(finding, scale)}" + (f", {share(finding)}" if share(finding) else "")


def _blind(facts: Facts) -> list[int]:
    """Ranks without a step that is accounted for, where others have some."""
    seen = {account.rank for account in facts.accounting.parts if account.steps}
    return sorted(set(facts.run.ranks) - seen) if seen else []


def _quality(facts: Facts) -> None:
    rows = missing(facts)
    run = facts.run
    if run.world_size and 0 < len(run.ranks) < run.world_size:
        absent = sorted(set(range(run.world_size)) - set(run.ranks))
        text = f"<b>{len(absent)} of {run.world_size} ranks are missing</b> ({listing(absent)}): this is true of the others."
        head = show.sign("medium", "! partial", text)
    elif blind := _blind(facts):
        text = f"<b>{len(blind)} of {len(run.ranks)} ranks have no step to account for</b> ({listing(blind)}), as told below."
        head = show.sign("medium", "! partial", text)
    elif rows:
        head = show.sign("low", "● data", f"{counted(len(rows), 'limit')} of what could be seen.")
    else:
        head = show.sign("ok", "✓ data", "Nothing was found missing or damaged.")
    show.section("What could not be seen", "", head + missing_table(facts))


PAGE = Page("overview", "Overview", "", render)
