"""Writes docs/tables.md from dtprof/schema.py; run it after changing the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dtprof.schema import SCHEMA_VERSION, TABLES, Column, TableSpec

PAGE = Path(__file__).with_name("tables.md")
INTRO = f"""# The tables

Schema version {SCHEMA_VERSION}. This page is made from `dtprof/schema.py` by `docs/make_tables.py`; a test fails when it is
stale.

Times are int64 nanoseconds on the Unix clock and durations are int64 nanoseconds: never float, never rounded.
A value that is not known is missing, never 0. In memory, missing is the smallest integer of the column's size, NaN, the
code -1, or None; in Parquet it is null. A column that a source does not know at all is not stored, and then reads as
missing in every row.

A table of scope *part* exists once per process of the job; a table of scope *run* exists once. A column that names an
event (`event`, `src`, `parent`, `launch`, …) holds the row number of that event in `events` of the same part.

| kind | in memory | in Parquet |
|---|---|---|
| i64, i32, f64, bool | numpy array of that type (a bool is never missing) | the same type |
| str | int32 codes and a tuple of texts | dictionary of strings |
| enum | int8 codes of the listed values | dictionary of strings |
| ints, strs | a tuple per row | list |

Read one with `run.table("events", part=0)`; `table["dur"]` is the numpy column, `table.text("name")` the decoded texts,
`table.known("bytes")` the rows that have a value.
"""


def cell(column: Column) -> str:
    """What a column means, with the values of an enum."""
    values = ": " + ", ".join(f"`{v}`" for v in column.values) if column.values else ""
    return (column.doc + values).replace("|", "\\|")


def section(spec: TableSpec) -> Iterator[str]:
    """The lines of one table."""
    yield f"\n## {spec.name}\n"
    yield f"{spec.doc[0].upper()}{spec.doc[1:]}. Scope: {spec.scope}.\n"
    yield "| column | kind | unit | meaning |"
    yield "|---|---|---|---|"
    for column in spec.columns:
        yield f"| {column.name} | {column.kind} | {column.unit} | {cell(column)} |"


def page() -> str:
    """The whole page."""
    return INTRO + "\n".join(line for spec in TABLES.values() for line in section(spec)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
