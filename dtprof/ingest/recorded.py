"""Our own run directories: raw files of every part, as the collectors wrote them, to tables.

A run that was killed at any instant still opens: manifest.json and part.json are rebuilt from what is there, and what is
missing is named in ``quality``. Tables are kept in RUN/tables for as long as the raw files stay as they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dtprof.errors import DamagedRun, DtprofError, NotATrace
from dtprof.ingest.attempts import mark_attempts
from dtprof.ingest.axes import with_axes
from dtprof.ingest.issued import join_issued
from dtprof.ingest.lines import IssuedLine, MetricsLine, StepLine
from dtprof.ingest.match import match
from dtprof.ingest.part_traces import job_metrics, read_traces, step_metrics, trace_files
from dtprof.ingest.store import IngestStore, all_tables
from dtprof.jsonl import read_lines
from dtprof.plugins import attempt, loaded
from dtprof.run import Manifest, ParquetStore, Part, Run, quality_rows, read_manifest, write_json, write_tables
from dtprof.schema import SCHEMA_VERSION, STEP_KINDS
from dtprof.table import Table

_PART = re.compile(r"^part(\d{5})$")
# to be raised whenever the same raw files would give other tables
_INGEST_VERSION = 8

Quality = list[tuple[str, str, int, str]]


class RecordedReader:
    """The reader of run directories."""

    name = "dtprof"

    def sniff(self, path: Path) -> bool:
        """A folder with part folders of ours, or with our manifest."""
        if not path.is_dir():
            return False
        return bool(_part_folders(path)) or _is_manifest(path / "manifest.json")

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a run directory; options as for Kineto traces. Raises NotATrace where no part is left."""
        folders = _part_folders(path)
        if not folders and (path / "tables").is_dir():
            return _tables_only(path)
        if not folders:
            raise NotATrace(
                f"{path}: a manifest but no part folder", "the job wrote nothing: see its log for lines that begin with dtprof"
            )
        manifest, parts = _describe(path, folders)
        key = {**_key(path, folders), "manifest": parts[0].extra.get("manifest_problem")}
        if options.get("cache", True) and _current(path, key):
            return _kept(path, manifest, parts)
        held = _ingest(folders, parts, options.get("executor"), options.get("progress"))
        for tables in held.values():
            tables["groups"] = with_axes(tables.get("groups", Table.empty("groups")), manifest.groups)
        mark_attempts(parts, held)
        store = IngestStore(held, {})
        run = Run(manifest, store, str(path), "dtprof")
        store.derive = lambda: match(run)
        _keep(path, run, key)
        return run


def _part_folders(path: Path) -> dict[int, Path]:
    """Part folders by ordinal that hold anything of ours."""
    found = {int(m.group(1)): p for p in sorted(path.iterdir()) if (m := _PART.match(p.name)) and p.is_dir()}
    names = ("part.json", "steps.jsonl")
    return {n: p for n, p in found.items() if _may_read(p) and (any((p / name).exists() for name in names) or trace_files(p))}


def _may_read(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _is_manifest(path: Path) -> bool:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and {"run_id", "parts", "schema"} <= set(value)


def _describe(path: Path, folders: dict[int, Path]) -> tuple[Manifest, list[Part]]:
    """The manifest and every part; what is damaged is rebuilt and said in the part's ``extra``."""
    manifest, problem = Manifest(run_id=path.name), ""
    if (path / "manifest.json").exists():
        try:
            manifest = read_manifest(path / "manifest.json")
        except DtprofError as error:
            problem = error.message
    else:
        problem = f"{path / 'manifest.json'}: missing"
    parts = []
    for ordinal, folder in folders.items():
        part = _read_part(folder)
        if part is None:
            part = Part(ordinal=ordinal, source=folder.name, extra={"rebuilt": True})
        part.ordinal = ordinal
        parts.append(part)
    if problem:
        parts[0].extra["manifest_problem"] = problem
    if closed := [p.name for p in sorted(path.glob("part[0-9]*")) if _PART.match(p.name) and p.is_dir() and not _may_read(p)]:
        parts[0].extra["closed_parts"] = closed
    if manifest.own_cost is None and isinstance(cost := parts[0].extra.get("own_cost"), dict):
        manifest.own_cost = {k: float(v) for k, v in cost.items() if isinstance(v, int | float)}
    _number(parts, manifest)
    manifest.parts = parts
    manifest.hosts = sorted({p.host for p in parts if p.host})
    manifest.devices = sorted({p.device for p in parts if p.device})
    return manifest, parts


def _read_part(folder: Path) -> Part | None:
    """The part as it described itself; None where that is missing, damaged, or no process can be (a rank below 0)."""
    try:
        part = msgspec.json.decode((folder / "part.json").read_bytes(), type=Part)
    except (OSError, msgspec.MsgspecError):
        return None
    numbers = (part.rank or 0, part.attempt, part.window, part.world_size or 0)
    return part if all(0 <= n < 2**31 for n in numbers) else None


def _number(parts: list[Part], manifest: Manifest) -> None:
    """Parts without a part.json: the folder's number is the rank while it is below the world size."""
    world = manifest.world_size or max((p.world_size or 0 for p in parts), default=0)
    taken = {p.rank for p in parts if p.rank is not None and p.attempt == 0}
    for part in parts:
        if part.extra.get("rebuilt") and part.ordinal not in taken and (not world or part.ordinal < world):
            part.rank, part.rank_from = part.ordinal, "folder name"


def _key(path: Path, folders: dict[int, Path]) -> dict[str, Any]:
    """Identity of the raw files."""
    files = sorted(f for folder in folders.values() for f in folder.iterdir() if f.is_file() and not f.name.startswith("."))
    stats = [(str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return {"schema": SCHEMA_VERSION, "ingest": _INGEST_VERSION, "files": [list(s) for s in stats]}


def _current(path: Path, key: dict[str, Any]) -> bool:
    """Were the tables made from these raw files, and is every file of them there in its full size?"""
    try:
        kept = json.loads((path / "tables" / "key.json").read_bytes())
        return bool(kept["key"] == key and kept["tables"] == _sizes(path / "tables"))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sizes(tables: Path) -> dict[str, int]:
    """Bytes of every Parquet file below ``tables``, by relative path."""
    return {str(f.relative_to(tables)): f.stat().st_size for f in sorted(tables.rglob("*.parquet"))}


def _kept(path: Path, manifest: Manifest, parts: list[Part]) -> Run:
    clocks = json.loads((path / "tables" / "key.json").read_bytes()).get("clocks", {})
    for part in parts:
        part.clock_offset_ns, part.clock_residual_ns = clocks.get(str(part.ordinal), (0, None))
    return Run(manifest, ParquetStore(path / "tables"), str(path), "dtprof")


def _tables_only(path: Path) -> Run:
    manifest = read_manifest(path / "manifest.json")
    held = {int(m[1]) for p in (path / "tables").glob("*/part*.parquet") if (m := _PART.match(p.stem))}
    if lost := held - {part.ordinal for part in manifest.parts}:
        raise DamagedRun(
            f"{path}: its part folders are gone, and of {len(held)} processes in its tables the manifest lacks {len(lost)}",
            "copy the run again, with every folder part00000, part00001, …",
        )
    simulated = manifest.knobs.get("simulated") is True
    return Run(manifest, ParquetStore(path / "tables"), str(path), "simulated" if simulated else "dtprof")


def _keep(path: Path, run: Run, key: dict[str, Any]) -> None:
    """Write the tables; a run that is still being written, or that lies on a read-only disk, is simply read again."""
    if any(p.extra.get("ended_ns") is None for p in run.parts):
        return
    try:
        (path / "tables" / "key.json").unlink(missing_ok=True)
        for old in _sizes(path / "tables"):
            (path / "tables" / old).unlink(missing_ok=True)
        write_tables(path / "tables", all_tables(run))
        clocks = {str(p.ordinal): (p.clock_offset_ns, p.clock_residual_ns) for p in run.parts}
        write_json(path / "tables" / "key.json", {"key": key, "clocks": clocks, "tables": _sizes(path / "tables")})
    except OSError:
        return


def _ingest(
    folders: dict[int, Path], parts: list[Part], executor: Executor | None, progress: Callable[[str, int, int], None] | None
) -> dict[int, dict[str, Table]]:
    own = executor is None
    pool = executor if executor is not None else ThreadPoolExecutor(max(1, min(len(parts), os.cpu_count() or 1)))
    held: dict[int, dict[str, Table]] = {}
    try:
        futures = [(part, pool.submit(ingest_part, folders[part.ordinal], part)) for part in parts]
        for done, (part, future) in enumerate(futures, 1):
            held[part.ordinal] = future.result()
            if progress:
                progress(folders[part.ordinal].name, done, len(parts))
    finally:
        if own:
            pool.shutdown(cancel_futures=True)
    return held


def ingest_part(folder: Path, part: Part) -> dict[str, Table]:
    """All tables of one part folder."""
    quality: Quality = _life(folder, part)
    named = len(quality)
    rows = _lines(folder / "steps.jsonl", StepLine, quality, "those steps are not known")
    lost = len(quality) > named or part.extra.get("ended_ns") is None
    tables, theirs = read_traces(folder, part, rows, quality)
    for row in rows:
        row["captured"] = row["captured"] or row["step"] in theirs
    numbers = job_metrics(_lines(folder / "metrics.jsonl", MetricsLine, quality, "those metrics are not known"))
    tables["metrics"] = Table.concat([tables.get("metrics", Table.empty("metrics")), step_metrics(rows), numbers])
    tables["steps"] = merge_steps(tables.get("steps", Table.empty("steps")), rows, lost, inferred=_inferred(part))
    _merge_collectors(folder, tables, quality)
    issued = _lines(folder / "collectives.jsonl", IssuedLine, quality, "those operations keep what the trace says")
    if issued:
        tables.update(join_issued(tables, issued, part, quality))
    tables["quality"] = Table.concat([tables.get("quality", Table.empty("quality")), quality_rows(quality)])
    return tables


def _lines(path: Path, kind: type[msgspec.Struct], quality: Quality, effect: str) -> list[dict[str, Any]]:
    """The whole lines of a file; what is torn or may not be read goes into ``quality``."""
    try:
        rows, bad = read_lines(path, kind)
    except OSError as error:
        quality.append((path.name, f"cannot be read: {error.strerror}", 1, effect))
        return []
    if bad:
        quality.append((path.name, "torn lines", bad, effect))
    return [msgspec.structs.asdict(row) for row in rows]


def _inferred(part: Part) -> bool:
    """Were the steps found by a launcher, not marked by the script?"""
    return str(part.extra.get("steps", "")).startswith("inferred")


def _life(folder: Path, part: Part) -> Quality:
    """What part.json says was lost."""
    out: Quality = []
    if part.extra.get("rebuilt"):
        out.append(
            (
                f"{folder.name}/part.json",
                "missing or unreadable",
                1,
                "rank from the folder's name; host and versions are not known",
            )
        )
    elif part.extra.get("ended_ns") is None:
        out.append(
            (
                folder.name,
                "the process did not end its session: it is running or was killed",
                1,
                "the last second of lines may be missing",
            )
        )
    if _inferred(part):
        launch = part.extra.get("launch")
        pattern = launch.get("optimizers") if isinstance(launch, dict) else None
        what = f"steps are {part.extra['steps']}" + (f" ({pattern})" if pattern else "")
        out.append(("steps", what, 1, "a step ends with the last optimizer step of its iteration"))
    for name in part.extra.get("closed_parts") or []:
        out.append((str(name), "the folder may not be read", 1, "that process is missing"))
    if problem := part.extra.get("manifest_problem"):
        out.append(("manifest.json", str(problem), 1, "job, command and mesh are not known"))
    for failure in part.extra.get("failures") or []:
        what = f"{failure.get('name')} failed in {failure.get('hook')} at step {failure.get('step')}: {failure.get('error')}"
        out.append((str(failure.get("name")), what, 1, "switched off from there on; training went on"))
    for state in part.extra.get("collectors") or []:
        out += [(str(state.get("name")), str(m), 1, "not in any table") for m in state.get("missing") or []]
    out += [("session", str(note), 1, "as said") for note in part.extra.get("notes") or []]
    return out


def merge_steps(traced: Table, rows: list[dict[str, Any]], lost: bool = False, inferred: bool = False) -> Table:
    """Steps of the step clock, with the trace's own borders where a step was traced (they share its events' clock).

    A traced step without a line is kept as the trace has it where lines were ``lost`` (the process was killed); else the
    loop left it unfinished, and it is no step.
    """
    if not rows:
        return traced
    seen = {int(s): i for i, s in enumerate(traced["step"].tolist())}
    known = {row["step"] for row in rows}
    out = [traced.row(i) for step, i in seen.items() if lost and step not in known]
    for row in rows:
        at = seen.get(row["step"])
        captured = bool(row.get("captured")) and at is not None
        kind = row.get("kind")
        out.append({
            "step": row["step"],
            "host_ts": int(traced["host_ts"][at]) if captured else row.get("host_ts"),
            "host_dur": int(traced["host_dur"][at]) if captured else row.get("host_dur"),
            "complete": bool(traced["complete"][at]) if captured else True,
            "kind": kind if kind in STEP_KINDS else "train",
            "marked": "inferred" if inferred else "marked",
            "captured": captured,
            "tokens": row.get("tokens"), "samples": row.get("samples"), "loss": row.get("loss"),
        })  # fmt: skip
    return Table.from_rows("steps", sorted(out, key=lambda row: row["host_ts"]))


def _merge_collectors(folder: Path, tables: dict[str, Table], quality: Quality) -> None:
    """Add what the collectors' raw files give; a collector that cannot read its files costs only its own tables."""
    for plugin in loaded("collectors"):
        if plugin.value is None:
            continue
        got, error = attempt(partial(_tables_of, plugin.value, folder))
        if error:
            quality.append((plugin.name, f"its raw files cannot be read: {error}", 1, "its tables are missing"))
            continue
        for name, table in got.items():
            if len(table):
                tables[name] = Table.concat([tables[name], table]) if name in tables and len(tables[name]) else table


def _tables_of(collector: Any, folder: Path) -> dict[str, Table]:
    return dict(collector().tables(folder))
