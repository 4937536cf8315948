"""What nsys has no column for: dtprof's own tables, in two tables of the same file that no other tool reads.

DTPROF_ABOUT    key, value: schema, manifest and part as JSON
DTPROF_TABLES   name, scope (part or run), chunk, rows, parquet: a table of the run in pieces, each a Parquet file

``dtprof.ingest.exported`` opens them again, so that a run that went through this format is the run that it was.
"""

from __future__ import annotations

import io
import sqlite3

import msgspec
import numpy as np
import pyarrow.parquet as pq

from dtprof.run import Part, Run
from dtprof.schema import SCHEMA_VERSION, TABLES
from dtprof.table import Table

# rows of a table in one piece
_CHUNK = 500_000


def write(database: sqlite3.Connection, run: Run, part: Part, with_run_tables: bool) -> int:
    """Add both tables; tables of scope run only where asked for. Returns the rows stored."""
    database.execute("CREATE TABLE DTPROF_ABOUT (key TEXT NOT NULL, value TEXT NOT NULL)")
    database.execute(
        "CREATE TABLE DTPROF_TABLES (name TEXT NOT NULL, scope TEXT NOT NULL, chunk INTEGER NOT NULL, rows INTEGER NOT NULL,"
        " parquet BLOB NOT NULL)"
    )
    about = {
        "schema": str(SCHEMA_VERSION),
        "manifest": msgspec.json.encode(run.manifest).decode(),
        "part": msgspec.json.encode(part).decode(),
        "format": run.format,
    }
    database.executemany("INSERT INTO DTPROF_ABOUT VALUES (?, ?)", about.items())
    stored = 0
    for spec in TABLES.values():
        if spec.scope == "part" or with_run_tables:
            table = run.table(spec.name, part.ordinal if spec.scope == "part" else None)
            stored += len(table)
            _store(database, spec.scope, table)
    return stored


def _store(database: sqlite3.Connection, scope: str, table: Table) -> None:
    for chunk, start in enumerate(range(0, len(table), _CHUNK)):
        piece = table.take(np.arange(start, min(start + _CHUNK, len(table))))
        data = io.BytesIO()
        pq.write_table(piece.to_arrow(), data, compression="zstd", compression_level=1)
        database.execute(
            "INSERT INTO DTPROF_TABLES VALUES (?, ?, ?, ?, ?)", (table.spec.name, scope, chunk, len(piece), data.getvalue())
        )
