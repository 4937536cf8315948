"""One event in words: what it is, its tags and arguments, its operation on every rank, and the findings that name it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtprof.export.common import label
from dtprof.findings import Finding
from dtprof.numbers import NOT_KNOWN, count, size, time
from dtprof.report.operations import op_words
from dtprof.report.palette import SIGNS
from dtprof.schema import MISSING, TABLES
from dtprof.table import Table
from dtprof_dashboards.timeline.opened import Timeline

# columns that are told in words of their own, or only join tables
_TOLD = frozenset({"ts", "dur", "name", "kind", "lane", "event", "launch", "parent", "record", "id"})
MOST_RANKS = 64


def detail(timeline: Timeline, part: int, row: int) -> dict[str, Any] | None:
    """The event as a document of texts; None where the part has no such event, or does not know when it was."""
    events = timeline.run.table("events", part)
    if not 0 <= row < len(events):
        return None
    values = events.row(row)
    if values["ts"] is None:
        return None
    shares = timeline.run.table("participations")
    mine = shares.take((shares["part"] == part) & (shares["event"] == row))
    ids = mine["collective"].tolist()
    start = int(values["ts"]) + timeline.parts[part].clock_offset_ns - timeline.zero
    end = start + max(values["dur"] or 0, 0)
    return {
        "name": values["name"] or "without a name",
        "where": f"{label(timeline.parts[part])} · {_lane(timeline, part, values['lane'])}",
        "part": part,
        "start": start,
        "end": end,
        "facts": [
            ["duration", time(values["dur"]), _ns(values["dur"])],
            ["start", time(start), f"{_ns(start)} after the run’s first event"],
            ["kind", values["kind"] or NOT_KNOWN, ""],
        ],
        "args": [*_args(events, row), *_of_event(timeline, "kernel_args", part, row), *_of_event(timeline, "comm", part, row)],
        "links": _links(timeline, events, part, row),
        "operations": [_operation(timeline, shares, int(i)) for i in dict.fromkeys(ids)],
        "same": [] if ids else _same(timeline, events, row),
        "findings": [_said(f) for f in timeline.facts.findings if _names(f, shares, ids, part, row)],
    }


def _ns(value: int | None) -> str:
    return "" if value is None else f"{count(value)} ns"


def _lane(timeline: Timeline, part: int, lane: int | None) -> str:
    track = next((t for t in timeline.tracks(part) if t.lane == lane), None)
    return "lane not known" if track is None else f"{track.name} ({track.role})" if track.role != "other" else track.name


def _args(table: Table, row: int) -> list[list[str]]:
    """What a row of a table tells beyond the usual, as key, text and exact text."""
    found = []
    for column in TABLES[table.spec.name].columns:
        if column.name in _TOLD or column.name not in table.stored:
            continue
        value = table.row(row)[column.name]
        if value is None or value is False:
            continue
        if column.unit == "bytes":
            text, exact = size(value), f"{count(value)} bytes"
        elif column.unit == "ns":
            text, exact = time(value), _ns(value)
        else:
            text, exact = f"{value:.4g}" if isinstance(value, float) else str(value), ""
        found.append([column.name.replace("_", " "), text, exact])
    return found


def _of_event(timeline: Timeline, name: str, part: int, row: int) -> list[list[str]]:
    """The arguments that another table holds of the event; of a batch those of its first operation."""
    table = timeline.run.table(name, part)
    at = np.flatnonzero(table["event"] == row)
    if not len(at):
        return []
    found = _args(table, int(at[0]))
    if name == "comm" and len(at) > 1:
        found.append(["operations in one launch", count(len(at)), ""])
    return found


def _links(timeline: Timeline, events: Table, part: int, row: int) -> list[dict[str, Any]]:
    """The call that launched the event, and what the event launched, the first few."""
    launch = int(events["launch"][row])
    launched = np.flatnonzero(events["launch"] == row)[:4].tolist()
    pairs = [("launched by", launch)] if 0 <= launch < len(events) else []
    offset = timeline.parts[part].clock_offset_ns - timeline.zero
    names = events.values("name")
    found = []
    for words, other in [*pairs, *(("launches", r) for r in launched)]:
        code, start = int(events["name"][other]), int(events["ts"][other]) + offset
        end = start + max(int(events["dur"][other]), 0)
        found.append({"words": words, "name": names[code] if code >= 0 else "", "row": other, "start": start, "end": end})
    return found


def _operation(timeline: Timeline, shares: Table, number: int) -> dict[str, Any]:
    """One operation over its ranks: waiting and transfer of each, ns."""
    table = timeline.run.table("collectives")
    at = np.flatnonzero(table["id"] == number)
    values = table.row(int(at[0])) if len(at) else {}
    members = shares.take(np.flatnonzero(shares["collective"] == number)[:MOST_RANKS])
    zero = timeline.zero
    ranks = []
    for share in (members.row(i) for i in range(len(members))):
        rank, wait = share["rank"], share["wait"]
        ranks.append(
            {
                "rank": f"rank {rank}" if rank is not None else f"part {share['part']}",
                "part": share["part"],
                "row": share["event"],
                "start": share["start"] - zero,
                "wait": wait,
                "dur": share["dur"],
                "last": rank is not None and rank == values.get("last_rank"),
                "words": f"waits {time(wait)}, moves {time(share['dur'] - wait)}" if wait is not None else time(share["dur"]),
            }
        )
    moved = size(values.get("bytes"))
    title = f"{op_words(values.get('op') or 'unknown')}, {moved}, operation {number}"
    missing = (values.get("n") or 0) - (values.get("n_present") or 0)
    note = "" if values.get("transfer") is not None else "Waiting cannot be told from moving data here."
    if missing > 0:
        note = (
            f"{count(missing)} of {count(values.get('n'))} ranks are not in the run: waiting cannot be told from moving data."
        )
    return {"title": title, "note": note, "ranks": sorted(ranks, key=lambda r: r["part"])}


def _same(timeline: Timeline, events: Table, row: int) -> list[list[str]]:
    """The name in the same step on every rank: rank, how many, time together."""
    values = events.row(row)
    name, step = values["name"], values["step"]
    found = []
    for part in timeline.run.parts[:MOST_RANKS]:
        table = timeline.run.table("events", part.ordinal)
        mine = table["name"] == table.code("name", name) if name is not None else np.zeros(len(table), bool)
        if step is not None:
            mine &= table["step"] == step
        dur = table["dur"][mine]
        total = int(dur[dur != MISSING].sum())
        found.append([label(part), count(int(mine.sum())), time(total) if mine.any() else "none"])
    return [["in all" if step is None else f"in step {step}", "times", "together"], *found]


def _names(finding: Finding, shares: Table, ids: list[int], part: int, row: int) -> bool:
    """Is the event, or its operation on another rank, evidence of the finding?"""
    pairs = {(part, row)}
    if ids:
        members = shares.take(np.isin(shares["collective"], ids))
        pairs |= set(zip(members["part"].tolist(), members["event"].tolist(), strict=True))
    return any(r in e.events.get(p, ()) for e in finding.evidence for p, r in pairs)


def _said(finding: Finding) -> dict[str, str]:
    return {"severity": finding.severity, "sign": SIGNS[finding.severity], "title": finding.title, "why": finding.why}
