"""nsys tables into one sqlite file and the folder of Parquet files that multi-report recipes read."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dtprof.export.nsys.schema import TABLES
from dtprof.export.nsys.sheet import Sheet

# rows that are turned into Python values at a time
CHUNK = 50_000
_ARROW = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64()}


def create(database: sqlite3.Connection) -> None:
    """All tables, empty."""
    for table, columns in TABLES.items():
        body = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        database.execute(f"CREATE TABLE {table} ({body})")


def insert(database: sqlite3.Connection, sheet: Sheet) -> None:
    """Add the rows of a sheet."""
    marks = ", ".join("?" * len(TABLES[sheet.table]))
    for columns in sheet.chunks(CHUNK):
        database.executemany(f"INSERT INTO {sheet.table} VALUES ({marks})", zip(*columns, strict=True))


def plan(database: sqlite3.Connection) -> None:
    """Have SQLite's planner go from device operations over their API calls to ranges, whatever its version and the sizes.

    ``nvtxgpuproj`` joins the three. SQLite by itself begins with the ranges and compares each with every operation (nsys
    2022.4 has SQLite 3.36). It does not where calls are found by an index, and statistics (sqlite_stat1) say that device
    operations are few and calls many.
    """
    database.execute("CREATE INDEX dtprof_call_of_correlation ON CUPTI_ACTIVITY_KIND_RUNTIME (correlationId)")
    database.execute("ANALYZE dtprof_call_of_correlation")
    database.execute("DELETE FROM sqlite_stat1")
    told = [
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "dtprof_call_of_correlation", "1000000000 1"),
        *((f"CUPTI_ACTIVITY_KIND_{kind}", None, "1") for kind in ("KERNEL", "MEMCPY", "MEMSET")),
    ]
    database.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", told)


@contextlib.contextmanager
def new_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A database that appears at ``path`` when it is whole; nothing is left there when writing fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    database = sqlite3.connect(temporary)
    try:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        yield database
        database.commit()
        database.execute("PRAGMA journal_mode=DELETE")
        database.close()
        os.replace(temporary, path)
    finally:
        database.close()
        temporary.unlink(missing_ok=True)


class ParquetFolder:
    """``folder/TABLE.parquet`` for every table, empty ones too; takes the place of an earlier folder when it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._temporary = folder, folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(parents=True)
        self._writers = {table: pq.ParquetWriter(self._temporary / f"{table}.parquet", _schema(table)) for table in TABLES}

    def __enter__(self) -> ParquetFolder:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()
        if kind is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.replace(self._temporary, self._folder)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, sheet: Sheet) -> None:
        """Add the rows of a sheet."""
        schema = _schema(sheet.table)
        for values in sheet.chunks(CHUNK):
            arrays = [pa.array(v, field.type) for v, field in zip(values, schema, strict=True)]
            self._writers[sheet.table].write_table(pa.Table.from_arrays(arrays, schema=schema))


def _schema(table: str) -> pa.Schema:
    return pa.schema([(name, _ARROW[kind.split()[0]]) for name, kind in TABLES[table].items()])
