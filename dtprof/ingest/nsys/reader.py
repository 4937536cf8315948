"""Nsight Systems reports: a file, or a folder with one report per rank or node, as a Run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dtprof.errors import DtprofError, InputError, NotATrace
from dtprof.ingest import cache
from dtprof.ingest.kineto.reader import Ingested, assemble
from dtprof.ingest.nsys.build import build_report, open_source
from dtprof.ingest.nsys.database import looks_exported
from dtprof.ingest.nsys.export import exported, is_report
from dtprof.ingest.nsys.files import Report, find, is_sqlite, ranks_by_name
from dtprof.ingest.nsys.nccl import group_name
from dtprof.ingest.nsys.ranks import Claimant, Claims, members, settle
from dtprof.ingest.nsys.source import EXPORT
from dtprof.ingest.side_by_side import read_all
from dtprof.run import Part, Run, write_json
from dtprof.table import Table

Progress = Callable[[str, int, int], None]
_CLAIMS = "nsys_claims"


@dataclass(frozen=True)
class Opened:
    """One report after ingest: its processes."""

    path: Path
    parts: list[Ingested]


def ingest_report(path: Path, keep: bool = True, use_cache: bool = True) -> Opened:
    """Read one report, through the cache; ``keep=False`` returns cache folders instead of tables where there are some."""
    read = exported(path) if is_report(path) else path
    folder = cache.folder_for(read) if use_cache else None
    if folder is not None and (kept := _kept(path, folder)) is not None:
        return kept
    source = open_source(read)
    found: list[Ingested] = []
    try:
        for number, built in enumerate(build_report(source)):
            part, tables = built.data.part, built.data.tables
            part.source = path.name
            part.extra[_CLAIMS] = msgspec.to_builtins(built.claims)
            place = folder / f"process{number}" if folder is not None else None
            saved = place is not None and cache.save(place, part, tables)
            found.append(Ingested(path, part, tables if keep or not saved else {}, place if saved else None))
    finally:
        source.close()
    if not found:
        raise InputError(f"{path}: no CUDA or NVTX events in it", "profile with --trace cuda,nvtx and export again")
    if folder is not None and all(i.folder is not None for i in found):
        try:
            write_json(folder / "report.json", {"processes": len(found)})
        except OSError:
            return Opened(path, found)
    return Opened(path, found)


def _kept(path: Path, folder: Path) -> Opened | None:
    """What the cache holds of a report, or None where it is not whole."""
    try:
        count = int(msgspec.json.decode((folder / "report.json").read_bytes())["processes"])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None
    parts = [cache.load_part(folder / f"process{number}") for number in range(count)]
    if not parts or None in parts:
        return None
    return Opened(path, [Ingested(path, p, {}, folder / f"process{n}") for n, p in enumerate(parts) if p is not None])


class NsysReader:
    """The reader of Nsight Systems reports."""

    name = "nsys"

    def sniff(self, path: Path) -> bool:
        """An SQLite, Parquet or Arrow export, one of nsys's own files, or a folder that holds one of them."""
        if path.is_file():
            # an empty or damaged file is told from its name
            return is_report(path) or (looks_exported(path) if is_sqlite(path) else path.suffix == ".sqlite")
        try:
            return any(not is_sqlite(r.path) or looks_exported(r.path) for r in find(path))
        except DtprofError:
            return False

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a report or a folder of them.

        Options: ``executor``, ``cache`` (default true) and ``progress`` as for other traces. Raises InputError where nothing
        can be read, MissingExtra where ``nsys`` is needed and not there.
        """
        reports = find(path)
        if not reports:
            raise NotATrace(f"{path}: no Nsight Systems report in this folder", f"export one: {EXPORT}")
        return self._run(path, reports, options)

    def read_files(self, paths: Sequence[Path], options: Mapping[str, Any]) -> Run:
        """Open these reports as one run; options as for ``read``."""
        missing = [p for p in paths if not p.exists()]
        if missing or not paths:
            raise InputError(f"{missing[0]}: no such file" if missing else "no reports are given", "check the paths")
        unlike = [p for p in paths if not self.sniff(p)]
        if unlike:
            raise NotATrace(f"{unlike[0]}: no Nsight Systems report", "give several traces of another kind as a folder")
        return self._run(paths[0].parent, [r for p in paths for r in find(p)], options)

    def _run(self, path: Path, reports: Sequence[Report], options: Mapping[str, Any]) -> Run:
        files = [r.path for r in reports]
        opened, failed = read_all(
            files, ingest_report, options.get("executor"), options.get("cache", True), options.get("progress")
        )
        if not opened:
            raise failed[0][1]
        extra = [(f.name, f"cannot be read: {error.message}", 1, "left out of everything") for f, error in failed]
        extra += [
            (r.path.name, "is older than the report it was exported from", 1, "export it again to see the newer one")
            for r in reports
            if r.stale
        ]
        return _assembled(path, opened, extra)


def _assembled(path: Path, opened: list[Opened], extra: list[tuple[str, str, int, str]]) -> Run:
    """A Run of the reports: ranks settled, parts numbered, communicators with their members."""
    named = ranks_by_name([o.path for o in opened])
    flat = [(number, item) for number, report in enumerate(opened) for item in report.parts]
    claimants = [
        Claimant(item.part, msgspec.convert(item.part.extra.pop(_CLAIMS), Claims), number, named[number])
        for number, item in flat
    ]
    settle(claimants)
    rows = {i: c.quality for i, c in enumerate(claimants)}
    run = assemble(path, [item for _, item in flat], extra, rows, "nsys")
    known = members([(c.part, c.claims) for c in claimants])
    for part in run.parts:
        _name_members(run, part, {group_name(n): ranks for n, ranks in known.items()})
    return run


def _name_members(run: Run, part: Part, known: dict[str, tuple[int, ...]]) -> None:
    """Set the members of the groups that are communicators whose ranks are all known."""
    groups = run.table("groups", part.ordinal)
    rows = [groups.row(i) for i in range(len(groups))]
    changed = False
    for row in rows:
        if row["ranks"] is None and row["name"] in known:
            row["ranks"], row["size"], changed = known[row["name"]], len(known[row["name"]]), True
    if changed:
        run.store.put(part.ordinal, "groups", Table.from_rows("groups", rows))  # type: ignore[attr-defined]
