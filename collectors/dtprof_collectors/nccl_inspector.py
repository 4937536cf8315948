"""NCCL Inspector: what NCCL's own profiler plug-in wrote about every operation, one JSON object a line, one file a process.

The lines (NCCL, ext-profiler/inspector, README): ``header`` with the communicator's id, this rank in it and its size;
``metadata`` with host, process and the instant of writing; ``coll_perf`` with operation, number in the communicator, message
size, time and bandwidths. Another record ending in ``_perf`` (such as that of sends and receives) has the same fields under
its own prefix. Unknown fields are ignored.

Raw file
    nccl_inspector.jsonl    the newest 64 MiB that the plug-in wrote for this process, copied when the session ends
The plug-in is NCCL's and is switched on by NCCL_PROFILER_PLUGIN and NCCL_INSPECTOR_ENABLE=1, before the job starts.
Facts in part.json: ``bytes`` copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtprof.catalogue.collectives import operation
from dtprof.jsonl import Int64, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "nccl_inspector.jsonl"
CAP_BYTES = 64 << 20
_ENDINGS = (".log", ".json", ".jsonl")
_LONGEST_US = 10**12
MOST_RANKS = 2**20


class Operation(msgspec.Struct, frozen=True):
    """One line. ``end`` is Unix ns: that of the operation where the plug-in traces events, else when it was written.

    ``size`` is the larger side's bytes (nccl-tests' convention), ``side`` the smaller one's; times in ns, bandwidths in GB/s.
    """

    op: str
    name: str
    communicator: str
    rank: int
    n_ranks: int
    seq: int | None
    size: int | None
    side: int | None
    start: int
    dur: int | None
    algbw: float | None
    busbw: float | None
    timed_by: str
    traced: bool
    host: str | None
    pid: int | None


class Header(msgspec.Struct):
    """The communicator."""

    id: str | int = ""
    rank: Int64 = -1
    n_ranks: Int64 = 0


class Metadata(msgspec.Struct):
    """Where and when a line was written."""

    dump_timestamp_us: Int64 | None = None
    hostname: str | None = None
    pid: Int64 | None = None


class Line(msgspec.Struct):
    """What is common to all lines."""

    header: Header
    metadata: Metadata


def operations(path: Path) -> tuple[list[Operation], int]:
    """The operations of a file in its order, and the number of lines that are none."""
    rows, bad = read_lines(path)
    found = []
    for row in rows:
        one = operation_of(row)
        if one is None:
            bad += 1
        else:
            found.append(one)
    return found, bad


def operation_of(row: Mapping[str, Any]) -> Operation | None:
    """One line as an operation; None where it holds none."""
    try:
        line = msgspec.convert(row, Line)
    except msgspec.ValidationError:
        return None
    prefix, perf = next(((k[:-5], v) for k, v in row.items() if k.endswith("_perf") and isinstance(v, dict)), ("", {}))
    name, written, header = perf.get(prefix), _whole(line.metadata.dump_timestamp_us), line.header
    traced = perf.get("event_trace_ts")
    start_us = _whole(traced.get(f"{prefix}_start_ts")) if isinstance(traced, dict) else None
    in_range = 0 <= header.rank < header.n_ranks <= MOST_RANKS
    if not isinstance(name, str) or not in_range or (written is None and start_us is None):
        return None
    took = _number(perf.get(f"{prefix}_exec_time_us"))
    dur = round(took * 1000) if took is not None and 0 < took < _LONGEST_US else None
    algbw = _number(perf.get(f"{prefix}_algobw_gbs", perf.get(f"{prefix}_algbw_gbs")))
    op = operation(name)
    size, side = _sides(op, _whole(perf.get(f"{prefix}_msg_size_bytes")), header.n_ranks, algbw, dur)
    start = start_us * 1000 if start_us is not None else (written or 0) * 1000 - (dur or 0)
    return Operation(
        op=op, name=name, communicator=str(header.id), rank=header.rank, n_ranks=header.n_ranks,
        seq=_whole(perf.get(f"{prefix}_sn")), size=size, side=side, start=start, dur=dur, algbw=algbw,
        busbw=_number(perf.get(f"{prefix}_busbw_gbs")), timed_by=str(perf.get(f"{prefix}_timing_source") or ""),
        traced=start_us is not None, host=line.metadata.hostname, pid=line.metadata.pid,
    )  # fmt: skip


def _sides(op: str, told: int | None, n: int, algbw: float | None, dur: int | None) -> tuple[int | None, int | None]:
    """Bytes of the larger and of the smaller side from the message size.

    For all-gather and reduce-scatter versions differ in which side they write; the line's own algbw = S / t tells.
    """
    if told is None or op not in ("all_gather", "reduce_scatter"):
        return told, told
    if told * n >= 2**62:
        return None, None
    moved = algbw * dur if algbw and dur else told * n
    return (told, told // n) if abs(moved - told) <= abs(moved - told * n) else (told * n, told)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


class NcclInspectorCollector:
    """Takes what the plug-in wrote for this process into the run."""

    name = "nccl_inspector"

    def __init__(self) -> None:
        self._context: Context | None = None

    def start(self, context: Context) -> None:
        """Note the folder, which is relative to the present working directory."""
        self._context = context
        context.status.idle = True
        self._folder = dump_folder(os.environ).absolute()
        self._on = os.environ.get("NCCL_INSPECTOR_ENABLE", "0") not in ("", "0") and "NCCL_PROFILER_PLUGIN" in os.environ

    def on_step(self, step: int) -> None:
        """Nothing: the plug-in writes by itself."""

    def stop(self) -> None:
        """Copy the newest part of this process's files."""
        context, self._context = self._context, None
        if context is None or not self._on:
            return
        files = own_files(self._folder, os.getpid())
        if not files:
            context.status.miss(f"NCCL Inspector is on, and wrote nothing for this process into {self._folder}")
            return
        copied = 0
        with (context.folder / FILE).open("wb") as out:
            for file in files:
                with file.open("rb") as source:
                    source.seek(max(file.stat().st_size - CAP_BYTES // len(files), 0))
                    copied += out.write(source.read(CAP_BYTES // len(files)))
                    out.write(b"\n")
        context.status.facts["bytes"] = copied

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``samples``: time and bus bandwidth of every operation, when it ended or was written."""
        found, bad = operations(folder / FILE)
        tables = {"samples": Table.from_rows("samples", sorted(_samples(found), key=lambda row: row["ts"]))}
        if bad:
            tables["quality"] = quality_rows([(FILE, "lines that are no operation", bad, "those operations are missing")])
        return tables


def _samples(found: list[Operation]) -> Iterator[dict[str, Any]]:
    for o in found:
        for what, value, unit in (("time", o.dur, "ns"), ("busbw", o.busbw, "GB/s")):
            if value is not None:
                metric = f"nccl_{o.op}_{what}"
                yield {"ts": o.start + (o.dur or 0), "metric": metric, "value": float(value), "unit": unit, "device": -1}


def dump_folder(environment: Mapping[str, str]) -> Path:
    """Where the plug-in writes: NCCL_INSPECTOR_DUMP_DIR, or its default below the working directory."""
    job = environment.get("SLURM_JOBID") or environment.get("SLURM_JOB_ID") or "unknown-jobid"
    return Path(environment.get("NCCL_INSPECTOR_DUMP_DIR") or f"nccl-inspector-{job}")


def own_files(folder: Path, pid: int) -> list[Path]:
    """The plug-in's files of one process, HOST-pidPID.log."""
    names = tuple(f"pid{pid}{ending}" for ending in _ENDINGS)
    return sorted(f for f in folder.glob("*") if f.is_file() and f.name.endswith(names))
