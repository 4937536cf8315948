"""Runs that ``dtprof export --to nsys`` wrote, opened again as they were.

Such a database holds dtprof's own tables beside those of nsys (``DTPROF_ABOUT``, ``DTPROF_TABLES``; see docs/nsys.md).
Without them it is read like any other Nsight Systems export.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dtprof.errors import DamagedRun
from dtprof.ingest.match import match
from dtprof.ingest.store import IngestStore
from dtprof.run import Manifest, Part, Run
from dtprof.schema import SCHEMA_VERSION, TABLES
from dtprof.table import Table

_MAGIC = b"SQLite format 3\0"


@dataclass
class _File:
    """What one database holds of ours."""

    path: Path
    manifest: Manifest
    part: Part
    tables: dict[str, Table] = field(default_factory=dict)
    run_tables: dict[str, Table] = field(default_factory=dict)


class ExportedReader:
    """The reader of nsys databases that dtprof wrote."""

    name = "exported"

    def sniff(self, path: Path) -> bool:
        """A database with our tables, or a folder with one."""
        return bool(_files(path))

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open it; option ``progress`` as for other traces. Raises DamagedRun that names the file."""
        paths = _files(path)
        progress: Callable[[str, int, int], None] | None = options.get("progress")
        files = []
        for done, file in enumerate(paths, 1):
            files.append(_read(file))
            if progress:
                progress(file.name, done, len(paths))
        files.sort(key=lambda f: f.part.ordinal)
        return _assemble(path, files)


def _files(path: Path) -> list[Path]:
    """Databases with our tables: ``path`` itself, or those directly in it."""
    try:
        candidates = sorted(path.glob("*.sqlite")) if path.is_dir() else [path]
        return [p for p in candidates if p.is_file() and _is_ours(p)]
    except OSError:
        return []


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(16) != _MAGIC:
            return False
    try:
        with contextlib.closing(_open(path)) as database:
            return database.execute("SELECT 1 FROM sqlite_master WHERE name = 'DTPROF_ABOUT'").fetchone() is not None
    except (sqlite3.Error, UnicodeDecodeError):
        return False


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _read(path: Path) -> _File:
    try:
        with contextlib.closing(_open(path)) as database:
            about = dict(database.execute("SELECT key, value FROM DTPROF_ABOUT"))
            if about.get("schema") != str(SCHEMA_VERSION):
                raise DamagedRun(
                    f"{path}: dtprof's tables in it have schema {about.get('schema')}, this dtprof reads {SCHEMA_VERSION}",
                    "export the run again with this dtprof",
                )
            file = _File(
                path,
                msgspec.json.decode(about["manifest"], type=Manifest),
                msgspec.json.decode(about["part"], type=Part),
            )
            pieces: dict[tuple[str, str], list[Table]] = defaultdict(list)
            query = "SELECT name, scope, rows, parquet FROM DTPROF_TABLES ORDER BY name, chunk"
            for name, scope, rows, data in database.execute(query):
                if name in TABLES and TABLES[name].scope == scope:
                    pieces[(scope, name)].append(_table(name, rows, data))
    except (sqlite3.Error, msgspec.MsgspecError, pa.ArrowInvalid, KeyError, TypeError, OSError) as error:
        raise DamagedRun(f"{path}: dtprof's tables in it cannot be read ({error})", "export the run again") from error
    for (scope, name), found in pieces.items():
        (file.tables if scope == "part" else file.run_tables)[name] = Table.concat(found)
    return file


def _table(name: str, rows: int, data: bytes) -> Table:
    table = Table.from_arrow(name, pq.read_table(io.BytesIO(data)))
    return table if table.stored else Table(TABLES[name], rows, {}, {})


def _assemble(path: Path, files: list[_File]) -> Run:
    """One run; operations over its ranks as they were where all parts are here, else matched again."""
    for a, b in pairwise(files):
        if a.part.ordinal == b.part.ordinal:
            raise DamagedRun(
                f"{path}: {a.path.name} and {b.path.name} are the same process of a run, or of two runs",
                "give each run a folder of its own",
            )
    manifest = files[0].manifest
    whole = [p.ordinal for p in manifest.parts] == [f.part.ordinal for f in files]
    manifest.parts = [f.part for f in files]
    store = IngestStore({f.part.ordinal: f.tables for f in files}, {})
    run = Run(manifest, store, str(path), "nsys")
    kept = next((f.run_tables for f in files if f.run_tables), None)
    store.derive = (lambda: dict(kept)) if whole and kept else (lambda: match(run))
    return run
