"""The traces in one part folder: ours, one per capture window, or what the job's own profiler exported in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtprof.errors import DtprofError
from dtprof.ingest.kineto.reader import ingest_file
from dtprof.ingest.windows import join_windows, renumber
from dtprof.run import Part
from dtprof.schema import PHASES
from dtprof.table import Table

Quality = list[tuple[str, str, int, str]]
LONG_STALL_MS = 1000.0
Lines = Sequence[Mapping[str, Any]]

_OURS = re.compile(r"^trace(?:-\d{4})?\.json(?:\.gz)?$")
_JOBS = re.compile(r"^trace-job-\d{4}\.json(?:\.gz)?$")


def trace_files(folder: Path) -> list[Path]:
    """Traces of our own, by window; one window counts once (compressed before plain)."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if _OURS.match(path.name) and (path.suffix == ".gz" or path.name.partition(".")[0] not in found):
            found[path.name.partition(".")[0]] = path
    return [found[name] for name in sorted(found)]


def read_traces(folder: Path, part: Part, lines: Lines, quality: Quality) -> tuple[dict[str, Table], set[int]]:
    """Tables of all windows as one, and the steps that a trace of the job's own profiler saw whole.

    ``lines`` are the rows of steps.jsonl. Traces of the job are read where they show steps that ours do not.
    """
    quality += _stalls(folder.name, part)
    read = [(path, tables) for path in trace_files(folder) if (tables := _tables(folder, path, part, quality)) is not None]
    traced = {int(step) for _, tables in read for step in tables["steps"]["step"].tolist()}
    theirs: set[int] = set()
    for path in sorted(p for p in folder.iterdir() if _JOBS.match(p.name)):
        tables = _tables(folder, path, part, quality)
        if tables is None:
            continue
        tables, steps = renumber(tables, lines)
        new = set(steps.values()) - traced - theirs
        if not new or new != set(steps.values()):
            why = "its steps are in another trace" if steps else "no step of it is one of ours"
            quality.append((f"{folder.name}/{path.name}", f"left out: {why}", 1, "as said"))
            continue
        theirs |= new
        read.append((path, tables))
        what = "written by the job's own torch.profiler; its steps are counted as in steps.jsonl"
        quality.append((f"{folder.name}/{path.name}", what, 1, "what it recorded is as the job chose"))
    if not read:
        if not any("cannot be read" in what for _, what, _, _ in quality):
            quality.append((folder.name, "no trace", 1, "steps and losses are known, but nothing inside a step"))
        return {}, theirs
    read.sort(key=lambda one: _begin(one[1]))
    return join_windows([tables for _, tables in read]), theirs


def _tables(folder: Path, path: Path, part: Part, quality: Quality) -> dict[str, Table] | None:
    try:
        read = ingest_file(path, use_cache=False)
    except DtprofError as error:
        quality.append((f"{folder.name}/{path.name}", f"cannot be read: {error.message}", 1, "nothing inside a step is known"))
        return None
    part.device, part.backend = part.device or read.part.device, part.backend or read.part.backend
    return dict(read.tables)


def _stalls(name: str, part: Part) -> Quality:
    """What ending a capture kept the loop waiting for, where that was long: rows of ``quality``."""
    states = [s for s in part.extra.get("collectors") or [] if isinstance(s, dict) and s.get("name") == "torch_profiler"]
    facts = [f for s in states if isinstance(f := s.get("facts"), dict)]
    windows = [w for f in facts if isinstance(of := f.get("windows"), list) for w in of if isinstance(w, dict)]
    told: Quality = []
    for window in windows:
        took = sum(ms for key in ("stop_ms", "export_ms") if isinstance(ms := window.get(key), int | float))
        if took >= LONG_STALL_MS:
            step = window.get("exported_at_step")
            what = f"the loop stood still for {took / 1e3:.1f} s after step {step}, while torch.profiler stopped and exported"
            told.append((name, what, 1, "no step's time has it; other ranks waited in their next collective"))
    return told


def _begin(tables: Mapping[str, Table]) -> int:
    ts = tables["events"]["ts"]
    return int(ts[0]) if len(ts) else 0


def step_metrics(lines: Lines) -> Table:
    """``metrics`` of steps.jsonl: own_time, input_wait and phase_<name>, each in ns, where they were recorded."""
    rows = []
    for line in lines:
        known = {"own_time": line.get("own_ns"), "input_wait": line.get("input_ns")}
        known |= {f"phase_{name}": ns for name, ns in (line.get("phases") or {}).items() if name in PHASES}
        rows += [
            {"step": line["step"], "metric": metric, "value": float(value), "unit": "ns"}
            for metric, value in known.items()
            if value is not None
        ]
    return Table.from_rows("metrics", rows)


def job_metrics(lines: Lines) -> Table:
    """``metrics`` of metrics.jsonl: what the job recorded with ``dtprof.metric``."""
    rows = [
        {
            "step": line["step"], "metric": one.name, "value": one.value, "unit": one.unit,
            "layer": one.layer, "expert": one.expert, "bucket": one.bucket,
        }
        for line in lines
        for one in line["metrics"]
    ]  # fmt: skip
    return Table.from_rows("metrics", rows)
