"""The memory section, for terminal and page alike: one table over the ranks, a few sentences under it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dtprof.analyse.memory import CATEGORIES, NO_SERIES, MemoryResult, Owner, PartMemory
from dtprof.numbers import counted, memory, percent
from dtprof.report.facts import Facts

MOST_ROWS = 8
MOST_OWNERS = 3
LISTED_OWNERS = 50
HEADS = {
    "parameter": "parameters", "gradient": "gradients", "optimizer": "optimizer", "activation": "activations",
    "temporary": "temporaries", "communication": "buckets", "input": "inputs",
}  # fmt: skip
_BASIS = {"allocated": "allocated on the device", "resident": "resident in the process"}
_SERIES = {"memory_allocated": "allocated", "memory_rss": "resident"}


def rows(facts: Facts) -> list[PartMemory]:
    """Processes that the table shows: all, or those with the highest peaks."""
    found = facts.memory.parts if facts.memory is not None else ()
    if len(found) <= MOST_ROWS:
        return list(found)
    return sorted(found, key=lambda p: -(p.peak.bytes if p.peak else 0))[:MOST_ROWS]


def cells(facts: Facts) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table; categories that nobody knows have no column."""
    shown = rows(facts)
    used = [c for c in CATEGORIES if any(p.categories[c] is not None for p in shown)]
    heads = ["", "peak", *(HEADS[c] for c in used)]
    body = [[label(p), memory(p.peak.bytes if p.peak else None), *(memory(p.categories[c]) for c in used)] for p in shown]
    return heads, body


def label(part: PartMemory) -> str:
    """``rank 3``, or ``part 5`` where the rank is not known."""
    return f"part {part.part}" if part.rank is None else f"rank {part.rank}"


def lead(facts: Facts) -> str:
    """What the table's numbers are."""
    bases = sorted({_BASIS[p.peak.basis] for p in rows(facts) if p.peak})
    peak = f"Peak: {' or '.join(bases)}. " if bases else ""
    total = len(facts.memory.parts) if facts.memory else 0
    left = f" The {MOST_ROWS} highest of {total} processes." if total > MOST_ROWS else ""
    return f"{peak}Categories: the most of each at once; they need not peak together.{left}"


def sentences(facts: Facts) -> list[str]:
    """Owners, fragmentation, failed requests, creep, and what is not known; equal ones of several ranks once."""
    told: dict[str, list[str]] = {}
    for part in rows(facts):
        for sentence in _of_part(part):
            told.setdefault(sentence, []).append(label(part))
    everyone = len(rows(facts))
    return [text if len(who) == everyone > 1 or everyone == 1 else f"{', '.join(who)}: {text}" for text, who in told.items()]


def _of_part(part: PartMemory) -> Iterable[str]:
    peak, fragmentation, creep = part.peak, part.fragmentation, part.creep
    if peak and not peak.exact:
        before = f" at least {memory(peak.held_before)} were held as it began;" if peak.held_before else ""
        yield f"The recording lost its beginning:{before} a higher peak before it is not known."
    known = [o for o in (peak.owners if peak else ()) if o.name or o.category][:MOST_OWNERS]
    if known:
        yield f"Largest at the peak: {'; '.join(owner_words(o) for o in known)}."
    if fragmentation:
        yield _fragmentation_words(part)
    if part.failed:
        yield f"{counted(len(part.failed), 'request')} failed for want of memory, of up to {memory(max(part.failed))}."
    elif part.failures:
        yield f"{counted(part.failures, 'request')} failed for want of memory."
    if creep and creep.grows:
        bounds = f"{memory(round(creep.low))} to {memory(round(creep.high))}"
        yield (
            f"Creep: {_SERIES[creep.metric]} memory grows by {memory(round(creep.bytes_per_step))} per step "
            f"({bounds}, {creep.steps} steps)."
        )
    elif creep:
        most = memory(max(round(creep.high), 0))
        yield f"No steady growth in {creep.steps} steps: at most {most} per step."
    elif part.why.get("creep", NO_SERIES) != NO_SERIES:
        yield f"Growth is not judged: {part.why['creep']}."
    unknown = [HEADS[c] for c in ("activation", "temporary") if part.categories[c] is None]
    if unknown and any(v is not None for v in part.categories.values()):
        yield f"Not known, {' and '.join(unknown)}: {part.why['activation' if 'activations' in unknown else 'temporary']}."


def _fragmentation_words(part: PartMemory) -> str:
    found = part.fragmentation
    if found is None:
        return ""
    text = f"The allocator holds {memory(found.reserved)}; {memory(found.free)} of it ({percent(found.share)}) is free"
    if found.held is not None:
        text += f", {memory(found.held)} of that in segments that are in use"
    if found.largest is not None:
        text += f"; the largest free block has {memory(found.largest)}"
    if found.pending:
        text += f"; {memory(found.pending)} wait to be freed"
    return f"{text}."


def owner_words(owner: Owner) -> str:
    """``blocks.0, gradient, 12.0 MiB``."""
    where = owner.name or f"{owner.phase} phase" if owner.name or owner.phase else "owner not known"
    return f"{where}, {owner.category or 'kind not known'}, {memory(owner.bytes)}"


def document(found: MemoryResult | None) -> list[dict[str, Any]]:
    """The key ``memory`` of the JSON report: one entry per process, bytes throughout, null with a reason in ``why``."""
    entries = []
    for part in found.parts if found else ():
        entry = asdict(part)
        entry["modules"] = entry["modules"][:LISTED_OWNERS]
        entries.append(entry)
    return entries
