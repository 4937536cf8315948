"""Memory: the level over time, categories and their owners, fragmentation, creep."""

from __future__ import annotations

from html import escape

from dtprof.analyse.memory import PartMemory
from dtprof.numbers import NOT_KNOWN, counted, percent
from dtprof.numbers import memory as bytes_words
from dtprof.report import memory as words
from dtprof.report.charts.memory import level_figure
from dtprof.report.charts.plain_bars import Bar, bars_figure
from dtprof_dashboards import selection, show
from dtprof_dashboards.memory_series import step_marks
from dtprof_dashboards.opened import memory_over_time
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

MOST_MARKS = 12


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Memory", view.meta)
    found = facts.memory.parts if facts.memory is not None else ()
    if not found:
        show.nothing(
            "Memory was not recorded",
            "Neither the memory collector’s counts, nor allocator events, nor an allocator snapshot are in this run.",
            "A run records it, and the doctor says what this machine can give:\n"
            "dtprof run -- torchrun --nproc_per_node=2 train.py\ndtprof doctor",
        )
        return
    said = words.sentences(facts)
    highest = max(found, key=lambda p: p.peak.bytes if p.peak else 0)
    peak = highest.peak
    text = f"The peak is {bytes_words(peak.bytes)}, on {words.label(highest)}" if peak else "no peak is known"
    show.verdict_of(view.found("memory."), text, said[0] if said else "")
    ordinals = [p.part for p in found]
    names = {p.part: words.label(p) for p in found}
    start = next((p.part for p in found if p.rank == selection.number("rank")), highest.part)
    chosen = selection.choose("part", "Process", ordinals, lambda n: names.get(n or 0, ""), start)
    part = next(p for p in found if p.part == chosen)
    if part.rank is not None:
        selection.keep("rank", str(part.rank))
    show.tiles(_tiles(part))
    _level(view, part)
    _categories(part)
    heads, body = words.cells(facts)
    notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in said)
    table = show.table(heads, body, range(1, len(heads)))
    show.section("All processes", escape(words.lead(facts)), f"{table}<ul>{notes}</ul>")


def _tiles(part: PartMemory) -> list[Tile]:
    peak, loose, creep = part.peak, part.fragmentation, part.creep
    tiles = [
        Tile("Peak", bytes_words(peak.bytes), f"{peak.basis}; {peak.phase or 'phase not known'}")
        if peak
        else Tile("Peak", None, part.why.get("peak", ""))
    ]
    owner = peak.owners[0] if peak and peak.owners else None
    if owner is None:
        tiles.append(Tile("Largest owner", None, "nothing tells whose the bytes are"))
    else:
        tiles.append(Tile("Largest owner", bytes_words(owner.bytes), words.owner_words(owner)))
    if loose is None:
        tiles.append(Tile("Fragmentation", None, part.why.get("fragmentation", "reserved memory was not recorded")))
    else:
        tiles.append(
            Tile("Fragmentation", percent(loose.share), f"{bytes_words(loose.free)} free of {bytes_words(loose.reserved)}")
        )
    if creep is None:
        tiles.append(Tile("Creep", None, part.why.get("creep", "")))
    else:
        value = bytes_words(max(round(creep.bytes_per_step), 0)) if creep.grows else "none"
        tiles.append(
            Tile("Creep", value, f"{counted(creep.steps, 'step')}; at most {bytes_words(max(round(creep.high), 0))} per step")
        )
    return tiles


def _level(view: View, part: PartMemory) -> None:
    title = "Over time"
    found = memory_over_time(view.path, view.stamp, part.part, view.facts.run)
    if found is None:
        show.nothing(title, "Memory was not read often enough to draw it over time.")
        return
    inside = step_marks(view.facts.run, part.part, found.ts)
    marks = inside[:: -(-len(inside) // MOST_MARKS) or 1]
    label = f"{words.label(part)}: {found.what}"
    figure = level_figure(found.ts, found.held, marks, show.FULL, label, found.layers, found.top)
    sub = f"{label}; dot: the {found.top}. {show.sentences([found.why] if found.why else [])}"
    show.section(title, escape(sub), show.figure(figure))


def _categories(part: PartMemory) -> None:
    known = {words.HEADS[c]: v for c, v in part.categories.items() if v is not None}
    unknown = {words.HEADS[c]: part.why.get(c, "") for c, v in part.categories.items() if v is None}
    title = "What it holds"
    if known:
        bars = [Bar(name, value, bytes_words(value)) for name, value in sorted(known.items(), key=lambda i: -i[1])]
        reasons: dict[str, list[str]] = {}
        for name, why in unknown.items():
            reasons.setdefault(why, []).append(name)
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
        missing = f" Not known, {told}." if told else ""
        sub = f"The most of each category at once; they need not peak together.{missing}"
        show.section(title, escape(sub), show.figure(bars_figure(bars, "var(--muted)", 760.0, title)))
    owners = [o for o in part.modules if o.name or o.category][:12]
    if owners:
        rows = [[o.name or NOT_KNOWN, o.category or NOT_KNOWN, o.phase or "", bytes_words(o.bytes)] for o in owners]
        show.section("Whose it is", "The largest owners.", show.table(["owner", "category", "phase", "bytes"], rows, {3}))


def _note(view: View) -> str:
    found = view.facts.memory
    return "" if found is not None and found.parts else "not recorded"


PAGE = Page("memory", "Memory", "Analyse", render, _note)
