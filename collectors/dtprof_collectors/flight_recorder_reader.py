"""The format ``flight_recorder``: dumps of torch's flight recorder, one per rank, as ``dtprof.open_run`` takes them.

torch writes them when a NCCL operation times out (to the prefix TORCH_NCCL_DEBUG_INFO_TEMP_FILE, with the rank behind it),
and a job may write them itself (``torch._C._distributed_c10d._dump_nccl_trace``). Every entry becomes a row of ``comm`` with
its state, whose event begins when the operation was issued; durations are there only where torch timed the operations (NCCL
with TORCH_NCCL_ENABLE_TIMING=1). gloo never says ``started``; there a ``retired`` operation is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtprof.errors import InputError, NotATrace
from dtprof.run import Manifest, Part, Run
from dtprof.schema import COMM_STATES
from dtprof_collectors.flight_recorder import operations
from dtprof_collectors.flight_recorder_files import entries_of, is_dump, rank_in, read_dump
from dtprof_collectors.flight_recorder_tables import Group, Process, Quality, Recorded, run_of

_TOO_MANY_BYTES = 2**60


class FlightRecorderReader:
    """The reader of flight-recorder dumps."""

    name = "flight_recorder"

    def sniff(self, path: Path) -> bool:
        """A dump, or a folder that holds one."""
        return bool(_dumps(path))

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open one dump or a folder of them; a dump that cannot be read is named in ``quality``."""
        processes: list[Process] = []
        failed: Quality = []
        errors: list[InputError] = []
        for file in _dumps(path):
            try:
                processes.append(process_of(file))
            except InputError as error:
                errors.append(error)
                failed.append((file.name, f"cannot be read: {error.message}", 1, "that rank is missing"))
        if not processes:
            raise errors[0] if errors else NotATrace(f"{path}: no flight-recorder dump", "give nccl_trace_rank_N files")
        processes[0].quality += failed
        manifest = Manifest(versions=processes[0].part.extra["versions"], world_size=_world(processes))
        return run_of(path, "flight_recorder", processes, manifest)


def _world(processes: list[Process]) -> int | None:
    """Size of the default group, where its members are known."""
    groups = {o.group for process in processes for o in process.operations}
    return max((g.size for g in groups if g.description == "default_pg" and g.size), default=None)


def _dumps(path: Path) -> list[Path]:
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return []
    return [file for file in files if is_dump(file)]


def process_of(file: Path) -> Process:
    """One process from its dump; the rank is that of the file's name."""
    found = read_dump(file)
    entries, bad = entries_of(found)
    found["entries"] = entries
    done = list(recorded(found))
    names = {o.name.partition(":")[0] for o in done if ":" in o.name}
    backend = names.pop() if len(names) == 1 else None
    versions = {"flight recorder": str(found.get("version", "")), backend or "nccl": _library(found)}
    said = found.get("rank")
    known = isinstance(said, int) and 0 <= said < 2**31
    rank = said if known else rank_in(file.name)
    part = Part(
        ordinal=0, rank=rank, source=file.name, backend=backend,
        rank_from="the dump" if known else "file name" if rank is not None else "",
        extra={
            "versions": {k: v for k, v in versions.items() if v}, "pg_status": found.get("pg_status") or {},
            "last_frames": _frames(entries[-1] if entries else {}),
        },
    )  # fmt: skip
    return Process(part, done, quality_of(found, done, bad, file.name))


def _frames(entry: Mapping[str, Any]) -> str:
    """Where an operation was issued, innermost first, three frames: ``train.py:7 in forward``; "" where not recorded."""
    frames = entry.get("frames")
    told = [f for f in frames if isinstance(f, dict)] if isinstance(frames, list) else []
    return ", ".join(f"{f.get('filename')}:{f.get('line')} in {f.get('name')}" for f in told[:3])


def _library(found: Mapping[str, Any]) -> str:
    return str(found.get("comm_lib_version") or found.get("nccl_version") or "")


def recorded(found: dict[str, Any]) -> Iterator[Recorded]:
    """The operations of a dump in the order of issue; entries without an instant of issue are left out."""
    plain = {**found, "pg_config": _config(found), "members": _mapping(found.get("members"))}
    for entry, row in zip(found["entries"], operations(plain), strict=True):
        created = row["created_ns"]
        if created is None:
            continue
        ranks = tuple(row["ranks"]) if row["ranks"] else None
        group = Group(str(row["group"]), str(row["description"]), ranks, len(ranks) if ranks else None)
        same = {key: row[key] for key in ("op", "seq", "dtype", "peer", "name", "p2p")}
        same |= {key: _believable(row[key]) for key in ("bytes_in", "bytes_out")}
        yield Recorded(**same, group=group, ts=created, dur=_duration(entry), state=state_of(entry))


def _believable(size: int | None) -> int | None:
    return size if size is not None and 0 <= size < _TOO_MANY_BYTES else None


def _config(found: Mapping[str, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in _mapping(found.get("pg_config")).items() if isinstance(v, dict)}


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def state_of(entry: Mapping[str, Any]) -> str | None:
    """scheduled, started or completed; what was retired is complete, whatever its state was last seen to be."""
    if entry.get("retired") is True or entry.get("time_discovered_completed_ns"):
        return "completed"
    state = entry.get("state")
    if state == "scheduled" and entry.get("time_discovered_started_ns"):
        return "started"
    return state if state in COMM_STATES else None


def _duration(entry: Mapping[str, Any]) -> int | None:
    took = entry.get("duration_ms")
    return round(took * 1e6) if took is not None and 0 < took < 1e9 else None


def quality_of(found: Mapping[str, Any], done: list[Recorded], bad: int, source: str) -> Quality:
    """What the dump says is unfinished, and what it cannot say."""
    out: Quality = []
    lost = min((e["record_id"] for e in found["entries"] if e["record_id"] is not None), default=0)
    if lost > 0:
        out.append((source, "older operations that the recorder's ring had dropped", lost, "they are not known"))
    bad += len(found["entries"]) - len(done)
    if bad:
        out.append((source, "entries that are damaged or have no instant of issue", bad, "left out"))
    open_ = [o for o in done if o.state in ("scheduled", "started")]
    by_group = Counter(o.group for o in open_)
    for group, count in by_group.items():
        first = next(o for o in open_ if o.group == group)
        what = f"operations of group {group.description or group.name} that were issued and had not ended"
        which = f"the first is {first.op} {first.seq} ({first.state})"
        out.append(
            (source, f"{what}; {which}", count, "the process waited there when the recorder was read, or was on its way")
        )
    if done and not any(o.dur for o in done):
        out.append((source, "operations without a duration", len(done), "neither transfer nor bandwidth is known"))
    return out
