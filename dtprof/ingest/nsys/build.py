"""From one report to the parts of its processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dtprof.ingest.kineto.build import Hooks, PartData, build_part
from dtprof.ingest.kineto.spans import is_kind
from dtprof.ingest.nsys import backward, nccl, samples, steps
from dtprof.ingest.nsys.ranks import Claims
from dtprof.ingest.nsys.session import LEAST_UNIX_NS, Session, session_of
from dtprof.ingest.nsys.source import Source
from dtprof.ingest.nsys.spans import pid_of
from dtprof.ingest.nsys.trace import Gathered, Process, gather, trace_of
from dtprof.ingest.nsys.waits import join_records
from dtprof.run import quality_rows
from dtprof.schema import DEVICE_KINDS
from dtprof.table import Table

Quality = list[tuple[str, str, int, str]]

# tables of events that are counted and not read further
_LEFT_OUT = (("OSRT_API", "calls of the operating system"), ("CUDA_GRAPH_EVENTS", "graph creations"))
_SAID_RANK = re.compile(r"^rank (\d{1,9}) of \d{1,9}$")


@dataclass(frozen=True)
class Built:
    """One process of a report."""

    data: PartData
    claims: Claims


def build_report(source: Source) -> Iterator[Built]:
    """The parts of a report, one process after the other."""
    name = source.path.name
    session = session_of(source)
    got = gather(source)
    join_records(source, got.spans)
    metrics, sampled = samples.gpu_metrics(source), samples.cpu_samples(source)
    keys = got.processes()
    chosen = [k for k, (device, _) in keys.items() if device] or [k for k, (_, ranges) in keys.items() if ranges] or list(keys)
    about = _about(source, session, got, keys, chosen)
    last = got.spans.last_ns
    base = 0 if last >= LEAST_UNIX_NS else session.start_ns or 0
    end = max(last, session.last_ns or 0) if last < LEAST_UNIX_NS else last
    got.drop(set(keys) - set(chosen))
    for number, key in enumerate(sorted(chosen)):
        process = trace_of(got, key, {"host_name": session.host}, base, end, _threads(got, session, key))
        built = _built(process, session, name, len(chosen), (*about, *_losses(source)) if number == 0 else ())
        device_samples = _of_devices(metrics, session, pid_of(key), _devices(built.data)) if metrics else None
        found = [t for t in (device_samples, sampled.get(key)) if t is not None]
        if found:
            table = Table.concat(found)
            built.data.tables["samples"] = table.with_columns(ts=table["ts"] + base)
        yield built


def _threads(got: Gathered, session: Session, key: int) -> dict[int, str]:
    """Names of a process's threads: the system's, and over them those that the program gave."""
    names = {thread: text for (process, thread), text in session.threads.items() if process == key}
    names.update({t: got.text(n) for (process, t), n in got.nvtx.threads.items() if process == key and got.text(n)})
    return names


def _built(process: Process, session: Session, name: str, count: int, about: tuple[tuple[str, str, int, str], ...]) -> Built:
    known = nccl.communicators(process.payloads)
    hooks = Hooks(
        steps=steps.finder(process.library, process.unclosed),
        members=nccl.members(process.payloads, known),
        lanes=lambda raw, kind: process.lanes,
        backward=backward.links,
    )
    data = build_part(process.raw, name, hooks)
    part, key = data.part, process.key
    part.pid, part.rank, part.rank_from, part.world_size = pid_of(key), None, "", None
    part.extra.pop("world_size_from", None)
    part.extra |= {"process": session.processes.get(key), **session.versions}
    used = _devices(data)
    part.device = next((d for o in used for p in (pid_of(key), 0) if (d := session.devices.get((p, o)))), None)
    rows = list(about)
    if len(process.unclosed):
        what = "ranges whose end is not in the file"
        rows.append((name, what, len(process.unclosed), "taken to last until the end of the recording"))
    data.tables["quality"] = Table.concat([data.tables["quality"], quality_rows(rows)]) if rows else data.tables["quality"]
    rank = session.rank()
    claims = Claims(
        key=key, device=min(used, default=None), alone=count == 1, mpi=session.mpi.get(key),
        ours=said_rank(data.tables["events"]),
        environment=rank[0] if rank else None, variable=rank[2] if rank else "",
        world=(rank[1] if rank and count == 1 else None) or session.launched(),
        communicators=[(c.id, c.size, c.rank) for c in known.values()],
    )  # fmt: skip
    return Built(data, claims)


def said_rank(events: Table) -> int | None:
    """The rank in the range ``rank R of N`` that our collector ``nsys`` leaves, or None."""
    names = events.values("name")
    used = np.unique(events["name"][events.is_("kind", "range")]).tolist()
    found = {int(m[1]) for code in used if code >= 0 and (m := _SAID_RANK.match(names[code]))}
    return found.pop() if len(found) == 1 else None


def _devices(data: PartData) -> list[int]:
    """Devices with work of the process."""
    lanes, events = data.tables["lanes"], data.tables["events"]
    busy = np.zeros(len(lanes), bool)
    busy[events["lane"][is_kind(events["kind"], *DEVICE_KINDS)]] = True
    return sorted({int(d) for d in lanes["device"][busy].tolist() if d >= 0})


def _of_devices(metrics: dict[int, Table], session: Session, pid: int, devices: list[int]) -> Table | None:
    """Readings of the GPUs that a process used, under its own ordinals."""
    found = []
    for ordinal in devices:
        gpu = session.gpus.get((pid, ordinal), session.gpus.get((0, ordinal), ordinal))
        if gpu in metrics:
            found.append(metrics[gpu].with_columns(device=np.full(len(metrics[gpu]), ordinal, np.int32)))
    return Table.concat(found) if found else None


def _about(
    source: Source, session: Session, got: Gathered, keys: dict[int, tuple[bool, bool]], chosen: list[int]
) -> list[tuple[str, str, int, str]]:
    """What the report as a whole lacks."""
    name = source.path.name
    rows: Quality = []
    if session.start_ns is None and got.spans.last_ns < LEAST_UNIX_NS:
        rows.append((name, "no session start is recorded", 1, "times count from the start of the recording"))
    others = sorted(set(keys) - set(chosen))
    if others:
        listed = ", ".join(session.processes.get(k) or f"process {pid_of(k)}" for k in others[:3])
        what = f"processes without device work ({listed}{', …' if len(others) > 3 else ''})"
        rows.append((name, what, len(others), "left out: no rank of the job"))
    for table, what in _LEFT_OUT:
        if table in source.tables and (count := samples.counted(source, table)):
            rows.append((name, f"{what} ({table})", count, "counted, not read"))
    if got.homeless:
        rows.append((name, "events without a process", got.homeless, "left out"))
    return rows


def _losses(source: Source) -> list[tuple[str, str, int, str]]:
    return [(source.path.name, loss.what, loss.count, loss.effect) for loss in source.losses]


def open_source(path: Path) -> Source:
    """The source of a report by what lies at ``path``: a folder of tables, or an SQLite file."""
    from dtprof.ingest.nsys.database import SqliteSource
    from dtprof.ingest.nsys.folder import FolderSource

    return FolderSource(path) if path.is_dir() else SqliteSource(path)
