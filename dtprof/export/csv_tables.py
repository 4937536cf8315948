"""Tables as CSV: one file per table with the rows of all parts, and ``columns.csv`` with every column's unit."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.export.common import Progress, Written, silent
from dtprof.run import Part, Run, write_atomic
from dtprof.schema import TABLES, TableSpec
from dtprof.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

# rows that are turned into text at a time
_CHUNK = 65536


class CsvExporter:
    """``OUT/TABLE.csv`` in UTF-8 with a header; a missing value is an empty field, times are integers in ns.

    Tables of scope part begin with the columns ``part`` and ``rank``, and ``row`` for events, which other tables name.
    Texts stand as recorded, quoted where they hold commas, quotes or line breaks.
    """

    name = "csv"

    def export(self, run: Run, folder: Path) -> list[Path]:
        """Write below ``folder`` and return the files."""
        return [w.path for w in self.write(run, folder)]

    def write(self, run: Run, folder: Path, progress: Progress = silent) -> list[Written]:
        """All tables that have rows."""
        folder.mkdir(parents=True, exist_ok=True)
        written = [_columns(folder / "columns.csv")]
        for done, spec in enumerate(TABLES.values(), 1):
            progress(f"{spec.name}.csv", done, len(TABLES))
            parts: list[Part | None] = [None] if spec.scope == "run" else list(run.parts)
            if any(len(run.table(spec.name, p.ordinal if p else None)) for p in parts):
                written.append(_table(run, spec, parts, folder / f"{spec.name}.csv"))
        return written


def header(spec: TableSpec) -> list[str]:
    """Column names of a table's file."""
    own = [c.name for c in spec.columns]
    if spec.scope == "run":
        return own
    return ["part", "rank", *(["row"] if spec.name == "events" else []), *own]


def _columns(path: Path) -> Written:
    rows = [(s.name, c.name, c.kind, c.unit, c.doc) for s in TABLES.values() for c in s.columns]
    return _file(path, ["table", "column", "kind", "unit", "meaning"], rows)


def _table(run: Run, spec: TableSpec, parts: list[Part | None], path: Path) -> Written:
    def rows() -> Iterator[tuple[object, ...]]:
        for part in parts:
            table = run.table(spec.name, part.ordinal if part else None)
            for start in range(0, len(table), _CHUNK):
                yield from zip(*_chunk(table, part, start, min(start + _CHUNK, len(table))), strict=True)

    return _file(path, header(spec), rows())


def _file(path: Path, head: list[str], rows: Iterable[tuple[object, ...]]) -> Written:
    """Write one file, whole or not at all."""
    count = 0

    def write(temporary: Path) -> None:
        nonlocal count
        with temporary.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(head)
            for row in rows:
                out.writerow(row)
                count += 1

    write_atomic(path, write)
    return Written(path, count)


def _chunk(table: Table, part: Part | None, lo: int, hi: int) -> list[list[object]]:
    """The file's columns for rows ``lo`` to ``hi``."""
    import numpy as np

    arrow: pa.Table = table.take(np.arange(lo, hi)).to_arrow()
    columns: list[list[object]] = []
    if part is not None:
        columns += [[part.ordinal] * (hi - lo), [part.rank] * (hi - lo)]
        if table.spec.name == "events":
            columns.append(list(range(lo, hi)))
    for column in table.spec.columns:
        known = column.name in arrow.column_names
        values = arrow.column(column.name).to_pylist() if known else [None] * (hi - lo)
        columns.append([" ".join(map(str, v)) for v in map(_some, values)] if column.kind in ("ints", "strs") else values)
    return columns


def _some(value: object) -> list[object]:
    return value if isinstance(value, list) else []
