"""Kineto traces: a file, or a folder with one file per rank, as a Run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtprof.errors import DtprofError, NotATrace
from dtprof.ingest import cache
from dtprof.ingest.kineto.build import PartData, build_part
from dtprof.ingest.kineto.files import FileHint, find, hint_of, trace_files
from dtprof.ingest.kineto.recordings import keep_apart
from dtprof.ingest.kineto.scan import scan_file, what_is
from dtprof.ingest.kineto.scan import sniff as sniff_file
from dtprof.ingest.match import match
from dtprof.ingest.side_by_side import read_all
from dtprof.ingest.store import IngestStore
from dtprof.run import Format, Manifest, Part, Run, quality_rows
from dtprof.table import Table

# files that are passed over and named one by one
_NAMED = 5


@dataclass(frozen=True)
class Ingested:
    """One file after ingest: its tables, or the cache folder that holds them."""

    path: Path
    part: Part
    tables: dict[str, Table]
    folder: Path | None


def ingest_file(path: Path, keep: bool = True, use_cache: bool = True) -> Ingested:
    """Read one trace file, through the cache. ``keep=False`` returns the folder alone where there is one."""
    folder = cache.folder_for(path) if use_cache else None
    if folder is not None and (part := cache.load_part(folder)) is not None:
        return Ingested(path, part, {}, folder)
    data: PartData = build_part(scan_file(path), path.name)
    saved = folder is not None and cache.save(folder, data.part, data.tables)
    return Ingested(path, data.part, data.tables if keep or not saved else {}, folder if saved else None)


class KinetoReader:
    """The reader of torch.profiler traces."""

    name = "kineto"

    def sniff(self, path: Path) -> bool:
        """A Kineto file, or a folder that holds one."""
        if path.is_file():
            return sniff_file(path)
        try:
            return bool(trace_files(path))
        except DtprofError:
            return False

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a file or folder.

        Options: ``executor`` (a ``concurrent.futures.Executor``; default threads, one per core), ``cache`` (default
        true), ``progress`` (called with file name, files done, files in all). Raises InputError where nothing can be read.
        """
        looked = find(path)
        files = looked.traces
        if not files:
            raise NotATrace(
                f"{path}: no torch.profiler trace in this folder", "give the folder that holds the *.json or *.json.gz traces"
            )
        found, failed = read_all(
            files, ingest_file, options.get("executor"), options.get("cache", True), options.get("progress")
        )
        if not found:
            raise failed[0][1]
        extra = [(f.name, f"cannot be read: {error.message}", 1, "left out of everything") for f, error in failed]
        extra += _passed_over(looked.passed_over)
        return assemble(path, found, extra)


def _passed_over(files: Sequence[Path]) -> list[tuple[str, str, int, str]]:
    """JSON and gzip files of the folder that are no traces: a rank may hide behind an empty file or a dead link."""
    rows = []
    for file in files[:_NAMED]:
        try:
            what = what_is(file)
        except (DtprofError, OSError) as error:
            what = error.message if isinstance(error, DtprofError) else f"cannot be read ({error.strerror})"
        rows.append((file.name, what, 1, "passed over"))
    if len(files) > _NAMED:
        more = len(files) - _NAMED
        rows.append((files[_NAMED].name, "other files that are no traces", more, "passed over"))
    return rows


def assemble(
    path: Path,
    found: list[Ingested],
    extra: list[tuple[str, str, int, str]],
    settled: Mapping[int, list[tuple[str, str, int, str]]] | None = None,
    format: Format = "kineto",
) -> Run:
    """A Run of the files read: ranks settled, parts numbered, what is odd reported.

    ``settled`` are quality rows, by place in ``found``, of a reader that has settled the ranks itself: names say nothing then.
    """
    quality: dict[int, list[tuple[str, str, int, str]]] = defaultdict(list)
    for i, rows in (settled or {}).items():
        quality[i] += rows
    hints = [hint_of(f.path) if settled is None else FileHint() for f in found]
    parts = settle_ranks([(f.part, hint) for f, hint in zip(found, hints, strict=True)], quality)
    keep_apart(parts, quality)
    order = sorted(
        range(len(found)), key=lambda i: (parts[i].rank is None, parts[i].rank or 0, parts[i].attempt, parts[i].window, i)
    )
    held: dict[int, dict[str, Table]] = {}
    folders: dict[int, Path] = {}
    for ordinal, i in enumerate(order):
        parts[i].ordinal = ordinal
        held[ordinal] = dict(found[i].tables)
        folder = found[i].folder
        if folder is not None:
            folders[ordinal] = folder
    manifest = Manifest(
        run_id=path.name,
        parts=[parts[i] for i in order],
        hosts=sorted({p.host for p in parts if p.host}),
        devices=sorted({p.device for p in parts if p.device}),
    )
    store = IngestStore(held, folders)
    run = Run(manifest, store, str(path), format)
    store.derive = lambda: match(run)
    for ordinal, i in enumerate(order):
        rows = quality[i] + (extra if ordinal == 0 else [])
        if rows:
            store.put(ordinal, "quality", Table.concat([run.table("quality", ordinal), quality_rows(rows)]))
    return run


def settle_ranks(named: list[tuple[Part, FileHint]], quality: dict[int, list[tuple[str, str, int, str]]]) -> list[Part]:
    """Rank, attempt and window of every file; nothing is dropped, what is odd goes into ``quality`` (by index).

    The trace's own rank counts before the file name's, unless several files claim one rank and their names tell them
    apart. Files of one process are its capture windows; files of one rank and several processes, in time order, its
    attempts.
    """
    parts = [part for part, _ in named]
    hints = [hint for _, hint in named]
    for part, hint in named:
        part.pid = hint.pid if hint.pid is not None else part.pid
        part.host = part.host or hint.host
        if part.rank is None and hint.rank is not None:
            part.rank, part.rank_from = hint.rank, "file name"
    _prefer_names(parts, hints, quality)
    claims: dict[str, list[int]] = defaultdict(list)
    for i, part in enumerate(parts):
        if part.rank is not None:
            claims[f"rank {part.rank}"].append(i)
        elif part.pid is not None and hints[i].window_ns is not None:
            claims[f"process {part.pid} of {part.host or 'an unknown host'}"].append(i)
    for who, same in claims.items():
        if len(same) > 1:
            _tell_apart(who, same, parts, hints, quality)
    if len(parts) > 1:
        for i, part in enumerate(parts):
            if part.rank is None:
                quality[i].append(
                    (
                        part.source,
                        "no rank in the trace or its name",
                        1,
                        "kept as a process of its own; not compared with ranks",
                    )
                )
    return parts


def _prefer_names(parts: list[Part], hints: list[FileHint], quality: dict[int, list[tuple[str, str, int, str]]]) -> None:
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i, part in enumerate(parts):
        if part.rank is not None:
            by_rank[part.rank].append(i)
    for rank, same in by_rank.items():
        names = [hints[i].rank for i in same]
        if len(same) > 1 and None not in names and len(set(names)) == len(same):
            for i in same:
                if parts[i].rank != hints[i].rank:
                    quality[i].append(
                        (
                            parts[i].source,
                            f"claims rank {rank}, as other files do; its name says {hints[i].rank}",
                            1,
                            "the name is taken",
                        )
                    )
                    parts[i].rank, parts[i].rank_from = hints[i].rank, "file name"


def _tell_apart(
    who: str, same: list[int], parts: list[Part], hints: list[FileHint], quality: dict[int, list[tuple[str, str, int, str]]]
) -> None:
    """Several files of one rank or process: windows of one process, or attempts."""
    pids = {parts[i].pid for i in same}
    ordered = sorted(same, key=lambda i: (hints[i].window_ns or 0, parts[i].extra.get("first_ns", 0), parts[i].source))
    if len(pids) == 1:
        for window, i in enumerate(ordered):
            parts[i].window = window
            quality[i].append(
                (
                    parts[i].source,
                    f"{who} has {len(same)} files: this is capture window {window}",
                    1,
                    "kept apart; windows are not compared",
                )
            )
        return
    spans = [(parts[i].extra.get("first_ns", 0), parts[i].extra.get("last_ns", 0)) for i in ordered]
    apart = all(a[1] <= b[0] for a, b in pairwise(spans))
    for attempt, i in enumerate(ordered):
        parts[i].attempt = attempt
        what = "attempt" if apart else "claimant"
        quality[i].append(
            (
                parts[i].source,
                f"{who} is claimed by {len(same)} files of different processes: this is {what} {attempt}",
                1,
                "kept apart; they are not compared" if apart else "kept apart; give each rank its own file name",
            )
        )
