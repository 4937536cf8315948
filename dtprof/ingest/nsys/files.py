"""Which exports lie under a path, and what their names say about ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtprof.errors import InputError
from dtprof.ingest.kineto.files import hint_of
from dtprof.ingest.nsys.export import is_report
from dtprof.ingest.nsys.folder import ENDINGS, table_files
from dtprof.ingest.nsys.pages import MAGIC

_DATABASES = (".sqlite", ".sqlite3", ".db")
_FOLDERS = ("_pqtdir", "_arwdir", "_arrowdir", "_parquetdir")
_SHORT_RANK = re.compile(r"(?:^|[._-])(?:r|p|proc|mpi)[-_=.]?(\d+)(?=[._-]|$)", re.I)


@dataclass(frozen=True)
class Report:
    """One report: the file or folder to read; ``stale`` where the report it was exported from is newer."""

    path: Path
    stale: bool = False


def is_sqlite(path: Path) -> bool:
    """An SQLite database by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def stem_of(path: Path) -> str:
    """Name of a report without what its containers add."""
    for ending in (*_DATABASES, ".nsys-rep", ".qdrep", *_FOLDERS):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    return path.name


def find(path: Path) -> list[Report]:
    """The reports under a path, one for each name: SQLite before Parquet or Arrow before nsys's own file.

    Raises InputError where the path cannot be read.
    """
    if path.is_file():
        return [Report(path)]
    if table_files(path):
        return [Report(path)]
    try:
        every = _walk(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})", "check the path and its permissions") from error
    by_stem: dict[Path, list[Path]] = {}
    for entry in every:
        if order_of(entry) is not None:
            by_stem.setdefault(entry.parent / stem_of(entry), []).append(entry)
    found = [sorted(entries, key=lambda e: (order_of(e) or 0, e.name)) for entries in by_stem.values()]
    reports = [Report(entries[0], _stale(entries)) for entries in found]
    return sorted(reports, key=lambda r: _natural(r.path))


def order_of(entry: Path) -> int | None:
    """Preference among the containers of one report; None for what is no export."""
    if entry.is_dir():
        return 1 if table_files(entry) else None
    if is_report(entry):
        return 2
    return 0 if is_sqlite(entry) or (entry.suffix in _DATABASES and not entry.stat().st_size) else None


def _walk(folder: Path) -> list[Path]:
    """Entries of a folder and of the folders in it that are no exports themselves; hidden ones left out."""
    found: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or not os.access(entry, os.R_OK):
            continue
        found.append(entry)
        if entry.is_dir() and os.access(entry, os.X_OK) and not table_files(entry):
            found += [p for p in sorted(entry.iterdir()) if not p.name.startswith(".") and os.access(p, os.R_OK)]
    return [p for p in found if p.suffix not in ENDINGS]


def _stale(entries: list[Path]) -> bool:
    reports = [e for e in entries if is_report(e) and e.stat().st_size]
    return bool(reports) and not is_report(entries[0]) and entries[0].stat().st_mtime < reports[0].stat().st_mtime


def _natural(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.split(r"(\d+)", stem_of(path))
    return str(path.parent), [(int(p), "") if p.isdigit() else (-1, p) for p in parts]


def ranks_by_name(paths: Sequence[Path]) -> list[int | None]:
    """Rank that each name states, in the order of ``paths``.

    That is a number labelled as a rank, or, where several names differ in a number that counts them from 0, that number;
    hosts and process ids in the names do not matter, nor does padding.
    """
    labelled = [_labelled(path) for path in paths]
    if None not in labelled or len(paths) < 2:
        return labelled
    numbers = [[int(n) for n in re.findall(r"\d+", stem_of(path)) if len(n) < 19] for path in paths]
    # from the left and from the right: host names may hold numbers of their own
    for side in (1, -1):
        for place in range(min(len(n) for n in numbers)):
            column = [n[place] if side > 0 else n[-1 - place] for n in numbers]
            if sorted(column) == list(range(len(paths))):
                return list(column)
    return labelled


def _labelled(path: Path) -> int | None:
    found = hint_of(path.with_name(stem_of(path)))
    if found.rank is not None:
        return found.rank
    short = _SHORT_RANK.search(stem_of(path))
    return int(short[1]) if short else None
