"""Operations matched across ranks: the ``collectives`` and ``participations`` tables, with clocks aligned.

Rows are joined by members of the group, sequence number and operation; where the source has no sequence number, by
their order in the group, step by step where the whole sequences differ. ``matched_by`` says which.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from dtprof.catalogue.collectives import SYNCHRONISING, busbw_factor, size_bytes
from dtprof.ingest.clock import Ends, align
from dtprof.run import Run
from dtprof.schema import MISSING, MISSING32, POINT_TO_POINT
from dtprof.table import Table

# an operation whose ends differ by more than this share of its longest participation does not end together
_LOOSE_END = 0.5
# group of rows whose source names no group at all
ASSUMED_WORLD = "all ranks (assumed)"


@dataclass
class Entry:
    """One rank's row in one operation."""

    part: int
    rank: int
    row: int
    event: int
    op: str
    seq: int | None
    size: int | None
    start: int
    dur: int
    step: int | None
    n: int | None

    @property
    def end(self) -> int:
        """End of the row."""
        return self.start + self.dur


Matched = tuple[str, str, list[Entry]]  # group, matched_by, entries


def match(run: Run) -> dict[str, Table]:
    """Both run-level tables; also sets ``clock_offset_ns`` and ``clock_residual_ns`` of the run's parts."""
    matched: list[Matched] = []
    for entries_of in _sessions(run):
        for group, by_part in sorted(entries_of.items()):
            matched += _join(group, by_part)
    together = [
        Ends({e.part: e.end for e in entries})
        for _, _, entries in matched
        if len(entries) > 1 and entries[0].op in SYNCHRONISING
    ]
    offsets = align(run.parts, together)
    for part in run.parts:
        part.clock_offset_ns, part.clock_residual_ns = offsets.get(part.ordinal, (0, None))
    for _, _, entries in matched:
        for entry in entries:
            entry.start += offsets.get(entry.part, (0, None))[0]
    matched.sort(key=lambda m: min(e.start for e in m[2]))
    rows, parts = [], []
    for number, (group, by, entries) in enumerate(matched):
        row = _collective(number, group, by, entries)
        rows.append(row)
        wait = row["transfer"]
        parts += [
            {
                "collective": number, "part": e.part, "rank": e.rank, "event": e.event, "row": e.row, "start": e.start,
                "dur": e.dur, "wait": None if wait is None else e.dur - wait,
            }
            for e in sorted(entries, key=lambda e: e.rank)
        ]  # fmt: skip
    return {"collectives": Table.from_rows("collectives", rows), "participations": Table.from_rows("participations", parts)}


def _sessions(run: Run) -> list[dict[str, dict[int, list[Entry]]]]:
    """Rows by group and part, apart for every attempt and capture window: those never match each other."""
    sessions: dict[tuple[int, int], dict[str, dict[int, list[Entry]]]] = {}
    for part in run.parts:
        found = sessions.setdefault((part.attempt, part.window), defaultdict(dict))
        for group, entries in _entries(run, part.ordinal, part.rank if part.rank is not None else -1 - part.ordinal).items():
            found[group][part.ordinal] = entries
    return list(sessions.values())


def _entries(run: Run, ordinal: int, rank: int) -> dict[str, list[Entry]]:
    comm, events, groups = (run.table(name, ordinal) for name in ("comm", "events", "groups"))
    members = {int(i): r for i, r in enumerate(groups["ranks"].tolist())}
    names, sizes = groups.text("name"), groups["size"].tolist()
    ops = comm.text("op")
    ts, dur, step = events["ts"], events["dur"], events["step"]
    out: dict[str, list[Entry]] = defaultdict(list)
    columns = (comm[c].tolist() for c in ("event", "group", "seq", "bytes_in", "bytes_out", "batch"))
    seen_batches: set[int] = set()
    for row, (event, group, seq, bytes_in, bytes_out, batch) in enumerate(zip(*columns, strict=True)):
        op = ops[row] or "unknown"
        if batch != MISSING32:
            if batch in seen_batches and op in POINT_TO_POINT:
                continue
            seen_batches.add(batch)
        known = group >= 0 and group in members
        ranks = members[group] if known else None
        n = int(sizes[group]) if known and sizes[group] > 0 else len(ranks) if ranks else run.world_size if not known else None
        key = ",".join(map(str, ranks)) if ranks else (names[group] or ASSUMED_WORLD) if known else ASSUMED_WORLD
        size = size_bytes(op, _value(bytes_in), _value(bytes_out), n)
        out[key].append(
            Entry(ordinal, rank, row, event, op, _value(seq), size, int(ts[event]), int(dur[event]), _value32(step[event]), n)
        )
    return {key: sorted(entries, key=lambda e: e.start) for key, entries in out.items()}


def _value(value: int) -> int | None:
    return None if value == MISSING else int(value)


def _value32(value: Any) -> int | None:
    return None if value == MISSING32 else int(value)


def _join(group: str, by_part: dict[int, list[Entry]]) -> list[Matched]:
    """Operations of one group."""
    everything = [e for entries in by_part.values() for e in entries]
    collective = {p: [e for e in entries if e.op not in POINT_TO_POINT] for p, entries in by_part.items()}
    out: list[Matched] = [(group, "single", [e]) for e in everything if e.op in POINT_TO_POINT]
    collective = {p: entries for p, entries in collective.items() if entries}
    if not collective:
        return out
    rows = [e for entries in collective.values() for e in entries]
    if all(e.seq is not None for e in rows) and all(_unique(entries) for entries in collective.values()):
        return out + _by_key(group, "seq", {p: {(e.seq, e.op): e for e in entries} for p, entries in collective.items()})
    kinds = [[(e.op, e.size) for e in entries] for entries in collective.values()]
    if all(k == kinds[0] for k in kinds):
        return out + _by_key(group, "order", {p: dict(enumerate(entries)) for p, entries in collective.items()})
    return out + _by_step(group, collective)


def _unique(entries: list[Entry]) -> bool:
    return len({(e.seq, e.op) for e in entries}) == len(entries)


def _by_key(group: str, by: str, keyed: dict[int, dict[Any, Entry]]) -> list[Matched]:
    joined: dict[Any, list[Entry]] = defaultdict(list)
    for entries in keyed.values():
        for key, entry in entries.items():
            joined[key].append(entry)
    return [(group, by if len(entries) > 1 else "single", entries) for entries in joined.values()]


def _by_step(group: str, by_part: dict[int, list[Entry]]) -> list[Matched]:
    """Join by (step, op, bytes, occurrence).

    Rows outside any step stay alone, and so do those of a kind that parts have in different numbers in one step: which of
    them is missing cannot be told.
    """
    counts: dict[Any, set[int]] = defaultdict(set)
    for entries in by_part.values():
        for kind, count in Counter(map(_kind, entries)).items():
            counts[kind].add(count)
    keyed: dict[int, dict[Any, Entry]] = {}
    for part, entries in by_part.items():
        seen: Counter[Any] = Counter()
        keyed[part] = {}
        for entry in entries:
            kind = _kind(entry)
            alone = entry.step is None or len(counts[kind]) > 1
            keyed[part][("alone", part, entry.row) if alone else (*kind, seen[kind])] = entry
            seen[kind] += 1
    return _by_key(group, "order", keyed)


def _kind(entry: Entry) -> tuple[int | None, str, int | None]:
    return entry.step, entry.op, entry.size


def _collective(number: int, group: str, by: str, entries: list[Entry]) -> dict[str, Any]:
    first = entries[0]
    n = first.n
    present = len({e.rank for e in entries})
    shortest, longest = min(e.dur for e in entries), max(e.dur for e in entries)
    end_skew = max(e.end for e in entries) - min(e.end for e in entries)
    one_sided = first.op not in SYNCHRONISING and first.op not in ("other", "unknown")
    whole = n is not None and present == n
    told = whole and first.op in SYNCHRONISING and end_skew <= max(_LOOSE_END * longest, 1000)
    sizes = {e.size for e in entries}
    size = sizes.pop() if len(sizes) == 1 else max((s for s in sizes if s is not None), default=None)
    steps = {e.step for e in entries}
    last = [e for e in entries if e.dur == shortest] if told and n != 1 else []
    algbw = size / shortest if told and n != 1 and size and shortest > 0 and first.op != "barrier" else None
    factor = busbw_factor(first.op, n) if n else None
    return {
        "id": number, "op": first.op, "group": group, "seq": first.seq, "bytes": size, "n": n, "n_present": present,
        "first_start": min(e.start for e in entries), "last_start": max(e.start for e in entries),
        "end": max(e.end for e in entries), "transfer": shortest if told else None,
        "transfer_upper": None if one_sided else shortest, "algbw": algbw,
        "busbw": algbw * factor if algbw is not None and factor is not None else None, "matched_by": by,
        "one_sided": one_sided, "last_rank": last[0].rank if len(last) == 1 else None,
        "start_skew": max(e.start for e in entries) - min(e.start for e in entries), "end_skew": end_skew,
        "step": steps.pop() if len(steps) == 1 else None,
    }  # fmt: skip
