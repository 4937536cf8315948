"""What a report is read from: tables by name, rows in batches, whatever the container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dtprof.errors import InputError, NotATrace
from dtprof.ingest.nsys.cells import Ints, Kind, empty

# rows of any of these make a report worth opening
EVENT_TABLES = (
    "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "GPU_METRICS", "COMPOSITE_EVENTS", "OSRT_API",
)  # fmt: skip
KNOWN_TABLES = (*EVENT_TABLES, "StringIds", "ThreadNames", "PROCESSES", "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME")
EXPORT = "nsys export --type sqlite --output REPORT.sqlite REPORT.nsys-rep"


@dataclass(frozen=True)
class Loss:
    """Something that could not be read: what, how often, and what it changes."""

    what: str
    count: int
    effect: str


class Source(Protocol):
    """One exported report: ``tables`` maps each table to its columns; ``losses`` is filled while reading."""

    path: Path
    tables: Mapping[str, tuple[str, ...]]
    losses: list[Loss]

    def batches(self, table: str, kinds: Mapping[str, Kind]) -> Iterator[dict[str, Any]]:
        """Rows of a table in pieces: int64 (MISSING), float64 (NaN), lists of str or bytes (None); only columns that exist."""

    def close(self) -> None:
        """Let go of the file."""


@dataclass
class Batch:
    """One piece of a table: an absent column reads as one without values."""

    columns: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(next(iter(self.columns.values()))) if self.columns else 0

    def has(self, name: str) -> bool:
        """Does the table have this column?"""
        return name in self.columns

    def __getitem__(self, name: str) -> Any:
        found = self.columns.get(name)
        return empty(self.kinds[name], self.rows) if found is None else found

    def ints(self, name: str) -> Ints:
        """An integer column."""
        found: Ints = self[name]
        return found


def read(source: Source, table: str, **kinds: Kind) -> Iterator[Batch]:
    """The rows of ``table`` in pieces; nothing where the report has no such table, or none of the columns."""
    if table in source.tables:
        for columns in source.batches(table, kinds):
            yield Batch(columns, kinds)


def records(source: Source, table: str, **kinds: Kind) -> Iterator[dict[str, Any]]:
    """The rows of a small table as dicts; what is missing is None."""
    for batch in read(source, table, **kinds):
        columns = {name: _plain(batch[name]) for name in kinds}
        for i in range(batch.rows):
            yield {name: values[i] for name, values in columns.items()}


def _plain(values: Any) -> list[Any]:
    if isinstance(values, list):
        return values
    nothing = np.isnan(values) if values.dtype.kind == "f" else values == empty("int", 1)[0]
    return [None if n else v for v, n in zip(values.tolist(), nothing.tolist(), strict=True)]


def check_known(path: Path, tables: Iterable[str], what: str) -> None:
    """Raise NotATrace where none of these tables is one of an Nsight Systems export, InputError where none holds events."""
    held = list(tables)
    if not set(held) & set(KNOWN_TABLES):
        listed = ", ".join(held[:5]) + (", …" if len(held) > 5 else "") if held else "none"
        raise NotATrace(f"{path}: {what}, but no Nsight Systems export (tables: {listed})", f"give what this writes: {EXPORT}")
    if not set(held) & set(EVENT_TABLES):
        raise InputError(
            f"{path}: an Nsight Systems export without any events (tables: {', '.join(held[:5])}, …)",
            "profile with --trace cuda,nvtx and export again",
        )
