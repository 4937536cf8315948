"""Recorded operations of any source without a trace, as a Run: lanes, events, groups and comm of every process.

There are no steps and no kernels, only operations with the instant of their issue, and, where the source measured it, how long
they took. Clocks of several hosts are taken as they are: nothing here ends at a known common instant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtprof.catalogue.collectives import SYNCHRONISING, busbw_factor, size_bytes
from dtprof.ingest.store import IngestStore
from dtprof.run import Format, Manifest, Part, Run, quality_rows
from dtprof.schema import OPS, POINT_TO_POINT
from dtprof.table import Table

Quality = list[tuple[str, str, int, str]]


@dataclass(frozen=True)
class Group:
    """A process group: the process's own name for it, and its members and size where they are known."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None
    size: int | None = None


@dataclass(frozen=True)
class Recorded:
    """One operation of one process. ``ts`` is the instant of issue in Unix ns; ``dur`` in ns, None where not measured."""

    op: str
    group: Group
    seq: int | None
    ts: int
    dur: int | None = None
    state: str | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    dtype: str | None = None
    peer: int | None = None
    name: str = ""
    p2p: bool = False


@dataclass
class Process:
    """What one file or several say of one process."""

    part: Part
    operations: list[Recorded]
    quality: Quality = field(default_factory=list)


def run_of(path: Path, format: Format, processes: Sequence[Process], manifest: Manifest | None = None) -> Run:
    """The Run of these processes, ascending by rank; a rank that comes again is another attempt."""
    ordered = sorted(processes, key=lambda p: (p.part.rank is None, p.part.rank or 0, p.part.source))
    seen: Counter[int | None] = Counter()
    held: dict[int, dict[str, Table]] = {}
    for ordinal, process in enumerate(ordered):
        part = process.part
        part.ordinal = ordinal
        if part.rank is not None:
            part.attempt = seen[part.rank]
            seen[part.rank] += 1
        held[ordinal] = {**tables_of(process.operations, part.backend), "quality": quality_rows(process.quality)}
    manifest = manifest or Manifest()
    manifest.run_id = manifest.run_id or path.name
    manifest.parts = [p.part for p in ordered]
    manifest.hosts = sorted({p.part.host for p in ordered if p.part.host})
    run = Run(manifest, IngestStore(held, {}), str(path), format)
    by_part = {p.part.ordinal: _in_time(p.operations) for p in ordered}
    assert isinstance(run.store, IngestStore)
    run.store.derive = lambda: joined(run.parts, by_part)
    return run


def _in_time(operations: Sequence[Recorded]) -> list[Recorded]:
    return sorted(operations, key=lambda o: o.ts)


def tables_of(operations: Sequence[Recorded], backend: str | None) -> dict[str, Table]:
    """Tables of one part: one lane and one group per process group, one event and one comm row per operation."""
    ordered = _in_time(operations)
    groups = list(dict.fromkeys(o.group for o in ordered))
    number = {group: i for i, group in enumerate(groups)}
    lanes = [{"id": i, "device": -1, "name": g.description or g.name, "role": "communication"} for i, g in enumerate(groups)]
    members = [
        {"id": i, "name": g.name, "description": g.description, "ranks": g.ranks, "size": g.size, "backend": backend}
        for i, g in enumerate(groups)
    ]
    events = [{"ts": o.ts, "dur": o.dur or 0, "kind": "comm", "name": o.name or o.op, "lane": number[o.group]} for o in ordered]
    comm = [
        {
            "event": row, "op": o.op if o.op in OPS else "other", "group": number[o.group], "seq": o.seq,
            "bytes_in": o.bytes_in, "bytes_out": o.bytes_out, "dtype": o.dtype, "peer": o.peer, "known_by": "collector",
            "state": o.state,
            "bytes_known": "unknown" if o.bytes_in is None and o.bytes_out is None else "exact",
        }
        for row, o in enumerate(ordered)
    ]  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {"lanes": lanes, "groups": members, "events": events, "comm": comm}
    return {name: Table.from_rows(name, found) for name, found in rows.items()}


Place = tuple[Part, int, Recorded]  # part, row in comm, operation


def joined(parts: Sequence[Part], by_part: Mapping[int, Sequence[Recorded]]) -> dict[str, Table]:
    """``collectives`` and ``participations``: joined by group, sequence number and operation, and among equal ones by order."""
    found: dict[Any, list[Place]] = defaultdict(list)
    for part in parts:
        seen: Counter[Any] = Counter()
        for row, operation in enumerate(by_part[part.ordinal]):
            key: tuple[Any, ...] = (part.attempt, _key(operation.group), operation.seq, operation.op)
            alone = operation.seq is None or operation.p2p or operation.op in POINT_TO_POINT
            found[(part.ordinal, row) if alone else (*key, seen[key])].append((part, row, operation))
            seen[key] += 1
    ordered = sorted(found.values(), key=lambda places: min(o.ts for _, _, o in places))
    rows = [_collective(number, places) for number, places in enumerate(ordered)]
    participations = [
        {
            "collective": number, "part": part.ordinal, "rank": part.rank, "event": row, "row": row, "start": o.ts,
            "dur": o.dur, "wait": _wait(o.dur, rows[number]["transfer"]),
        }
        for number, places in enumerate(ordered)
        for part, row, o in places
    ]  # fmt: skip
    return {
        "collectives": Table.from_rows("collectives", rows),
        "participations": Table.from_rows("participations", participations),
    }


def _wait(dur: int | None, transfer: int | None) -> int | None:
    return None if dur is None or transfer is None else dur - transfer


def _key(group: Group) -> Any:
    return group.ranks or group.name


def _collective(number: int, places: Sequence[Place]) -> dict[str, Any]:
    """One row of collectives; without all ranks and all durations neither transfer nor bandwidth is told."""
    first = places[0][2]
    group, n = first.group, first.group.size
    present = len({part.rank if part.rank is not None else -1 - part.ordinal for part, _, _ in places})
    durations = [o.dur for _, _, o in places if o.dur is not None]
    shortest = min(durations) if durations and len(durations) == len(places) else None
    one_sided = first.p2p or first.op not in SYNCHRONISING
    told = shortest if n is not None and present == n and not one_sided else None
    sizes = [s for _, _, o in places if (s := size_bytes(o.op, o.bytes_in, o.bytes_out, n)) is not None]
    size = max(sizes, default=None)
    algbw = size / told if told and size and n and n > 1 and first.op != "barrier" else None
    factor = busbw_factor(first.op, n) if n else None
    starts = [o.ts for _, _, o in places]
    ends = [o.ts + o.dur for _, _, o in places if o.dur is not None]
    return {
        "id": number, "op": first.op if first.op in OPS else "other",
        "group": ",".join(map(str, group.ranks)) if group.ranks else group.description or group.name,
        "seq": first.seq, "bytes": size, "n": n, "n_present": present, "first_start": min(starts), "last_start": max(starts),
        "end": max(ends) if ends else None, "transfer": told, "transfer_upper": None if one_sided else shortest,
        "algbw": algbw, "busbw": algbw * factor if algbw and factor else None,
        "matched_by": "seq" if len(places) > 1 else "single", "one_sided": one_sided, "start_skew": max(starts) - min(starts),
    }  # fmt: skip
