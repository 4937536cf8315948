"""Chrome JSON in the form of torch.profiler: what chrome://tracing, the Perfetto UI, HTA and dtprof itself open.

One file per part, as HTA wants it, and one of all ranks together (``all_ranks/``) with arrows between the parts of
one matched operation. Times are microseconds with three decimals from ``baseTimeNanoseconds`` on, the same on all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtprof.export.chrome_events import allocations, arguments, counters, flows, forward_backward, metadata, steps, tracks
from dtprof.export.common import Progress, Written, aligned, clock_zero, compressed, label, part_names, run_name, silent
from dtprof.intervals import Ints
from dtprof.run import Part, Run, write_atomic
from dtprof.table import Table

_CATEGORIES = {
    "kernel": "kernel", "comm": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset", "cpu_op": "cpu_op",
    "runtime": "cuda_runtime", "range": "user_annotation", "sync": "cuda_sync", "python": "python_function",
    "overhead": "overhead", "other": "Trace",
}  # fmt: skip
# events that are turned into text at a time
_CHUNK = 20_000

Event = dict[str, Any]


class ChromeExporter:
    """Compressed JSON traces of every part, and of all together."""

    name = "chrome"

    def export(self, run: Run, folder: Path) -> list[Path]:
        """Write below ``folder`` and return the files."""
        return [w.path for w in self.write(run, folder)]

    def write(self, run: Run, folder: Path, progress: Progress = silent) -> list[Written]:
        """One file per part; with several parts also one of all."""
        zero, names = clock_zero(run), part_names(run)
        written: list[Written] = []
        for done, part in enumerate(run.parts):
            progress(label(part), done, len(run.parts))
            path = folder / f"{names[part.ordinal]}.json.gz"
            written.append(_file(path, _head(run, part, zero), _events(run, part, zero, 0)))
        if len(run.parts) > 1:
            progress("all ranks", len(run.parts), len(run.parts))
            path = folder / "all_ranks" / "merged" / f"{run_name(run)}_all_ranks.json.gz"
            head = {**_head(run, run.parts[0], zero), "distributedInfo": None}
            written.append(_file(path, {k: v for k, v in head.items() if v is not None}, _merged(run, zero)))
        return written


def _head(run: Run, part: Part, zero: int) -> dict[str, Any]:
    world = part.world_size or run.world_size
    groups = run.table("groups", part.ordinal)
    config = []
    for i in range(len(groups)):
        row = groups.row(i)
        ranks = list(row["ranks"]) if row["ranks"] else None
        about = {"pg_name": row["name"], "pg_desc": row["description"], "backend_config": row["backend"]}
        config.append({**about, "ranks": ranks, "pg_size": row["size"]})
    # without a rank the file names none, and readers take it as a process of its own
    rank = part.rank
    info = {"backend": part.backend or "nccl", "rank": rank, "world_size": world, "pg_count": len(config), "pg_config": config}
    devices = run.table("lanes", part.ordinal)["device"]
    properties = [{"id": int(d), "name": part.device or "unknown"} for d in np.unique(devices[devices >= 0]).tolist()]
    return {
        "schemaVersion": 1,
        "deviceProperties": properties,
        **({"distributedInfo": info} if rank is not None else {}),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": zero,
    }


def _file(path: Path, head: dict[str, Any], events: Iterable[list[Event]]) -> Written:
    """``head`` with the events as ``traceEvents``, one event per line, compressed; whole or not at all."""
    count = 0
    encode = msgspec.json.Encoder().encode

    def write(temporary: Path) -> None:
        nonlocal count
        with compressed(temporary) as file:
            # HTA finds the rank by a pattern that wants a blank after the colon
            file.write(json.dumps(head).encode()[:-1] + b',"traceEvents":[')
            for chunk in events:
                if chunk:
                    file.write((b",\n" if count else b"\n") + b",\n".join(map(encode, chunk)))
                    count += len(chunk)
            file.write(b"\n]}\n")

    write_atomic(path, write)
    return Written(path, count)


def _merged(run: Run, zero: int) -> Iterator[list[Event]]:
    """Events of all parts; process numbers of each part apart from the others', then the arrows between ranks."""
    for number, part in enumerate(run.parts, 1):
        yield from _events(run, part, zero, number)
    yield flows(run, zero)


def _events(run: Run, part: Part, zero: int, number: int) -> Iterator[list[Event]]:
    """Metadata, spans, launch arrows and counters of a part; ``number`` is 0 in a file of its own."""
    events = run.table("events", part.ordinal)
    where = tracks(run, part, number)
    yield metadata(run, part, where, number)
    start = aligned(part, events["ts"], zero)
    args = arguments(run, part)
    for lo in range(0, len(events), _CHUNK):
        hi = min(lo + _CHUNK, len(events))
        yield _spans(events, lo, hi, start, where, args)
        yield _launches(events, lo, hi, start, where, number)
    yield steps(run, part, zero, where)
    yield forward_backward(run, part, start, where, number)
    yield allocations(run, part, zero, where.host)
    yield counters(run, part, zero, where.host)


def _spans(events: Table, lo: int, hi: int, start: Any, where: Any, args: Any) -> list[Event]:
    piece = events.take(np.arange(lo, hi))
    names, kinds = piece.text("name"), piece.text("kind")
    times, durations, lanes = microseconds(start[lo:hi]), microseconds(piece["dur"]), piece["lane"].tolist()
    out: list[Event] = []
    for i, (name, kind, ts, dur, lane) in enumerate(zip(names, kinds, times, durations, lanes, strict=True)):
        pid, tid, on_device = where.of(lane)
        out.append({
            "ph": "X", "cat": _category(kind or "other", on_device), "name": name or "", "pid": pid, "tid": tid, "ts": ts,
            "dur": dur, "args": args(lo + i, on_device, lane),
        })  # fmt: skip
    return out


def microseconds(times: Ints) -> list[int] | list[float]:
    """Times in microseconds: whole numbers where all of them are (HTA rounds others down)."""
    whole = not np.any(times % 1000)
    plain: list[int] | list[float] = (times // 1000).tolist() if whole else (times / 1000).tolist()
    return plain


def _category(kind: str, on_device: bool) -> str:
    if not on_device and kind == "comm":
        return "user_annotation"
    if on_device and kind == "range":
        return "gpu_user_annotation"
    return _CATEGORIES[kind]


def _launches(events: Table, lo: int, hi: int, start: Any, where: Any, number: int) -> list[Event]:
    """Arrows from launch calls to what they launched."""
    launch = events["launch"]
    rows = np.arange(lo, hi)[launch[lo:hi] >= 0]
    out: list[Event] = []
    lanes = events["lane"]
    for row, call in zip(rows.tolist(), launch[rows].tolist(), strict=True):
        key = number << 32 | row
        for phase, at, more in (("s", call, {}), ("f", row, {"bp": "e"})):
            pid, tid, _ = where.of(int(lanes[at]))
            arrow = {"ph": phase, "id": key, "pid": pid, "tid": tid, "ts": float(start[at] / 1000)}
            out.append({**arrow, "cat": "ac2g", "name": "ac2g", **more})
    return out
