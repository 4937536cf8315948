"""Run: the tables of one measured or simulated run, in memory or in a directory, behind one interface."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from dtprof.errors import DamagedRun
from dtprof.schema import SCHEMA_VERSION, TABLES
from dtprof.table import Table

Format = Literal["dtprof", "kineto", "nsys", "simulated", "snapshot", "flight_recorder", "nccl_inspector", "nccl_debug"]


class Part(msgspec.Struct, kw_only=True):
    """One process of the job. A rank may have several parts (restart, several capture windows) or none."""

    ordinal: int
    rank: int | None = None
    attempt: int = 0
    window: int = 0
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    backend: str | None = None
    source: str = ""
    rank_from: str = ""
    clock_offset_ns: int = 0
    clock_residual_ns: int | None = None
    extra: dict[str, Any] = {}


class Manifest(msgspec.Struct, kw_only=True):
    """What is known of the run as a whole; see docs/run_format.md."""

    schema: int = SCHEMA_VERSION
    run_id: str = ""
    job: str | None = None
    command: list[str] = []
    world_size: int | None = None
    mesh: dict[str, int] = {}
    coordinates: dict[str, dict[str, int]] = {}
    groups: list[dict[str, Any]] = []
    knobs: dict[str, Any] = {}
    hosts: list[str] = []
    devices: list[str] = []
    versions: dict[str, str] = {}
    collectors: list[dict[str, Any]] = []
    own_cost: dict[str, float] | None = None
    parts: list[Part] = []


class Store(Protocol):
    """Where the tables are."""

    def load(self, name: str, part: int | None) -> Table | None:
        """The table, or None where it does not exist."""


class MemoryStore:
    """Tables held in memory; ``part`` is None for tables of scope run."""

    def __init__(self, tables: Mapping[tuple[str, int | None], Table]) -> None:
        self._tables = dict(tables)

    def load(self, name: str, part: int | None) -> Table | None:
        """The table, or None."""
        return self._tables.get((name, part))


class ParquetStore:
    """Tables in a directory: ``<root>/<table>/part00000.parquet`` or ``<root>/<table>.parquet``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: dict[tuple[str, int | None], Table] = {}

    def load(self, name: str, part: int | None) -> Table | None:
        """The table, read on first use, or None."""
        key = (name, part)
        if key not in self._cache:
            path = table_path(self.root, name, part)
            if not path.exists():
                return None
            self._cache[key] = read_parquet(name, path)
        return self._cache[key]


class Run:
    """One run. ``run.table(name, part)`` reads a table; ``run.parts`` lists the processes."""

    def __init__(self, manifest: Manifest, store: Store, path: str, format: Format) -> None:
        self.manifest, self.store, self.path, self.format = manifest, store, path, format

    @property
    def parts(self) -> list[Part]:
        """The processes of the run, by ordinal."""
        return self.manifest.parts

    @property
    def ranks(self) -> list[int]:
        """Ranks present, ascending, each once."""
        return sorted({p.rank for p in self.parts if p.rank is not None})

    @property
    def world_size(self) -> int | None:
        """World size as the job states it, or None."""
        sizes = [p.world_size for p in self.parts if p.world_size]
        return self.manifest.world_size or (max(sizes) if sizes else None)

    def table(self, name: str, part: int | None = None) -> Table:
        """Table ``name`` of a part (None for run scope); an absent table is empty."""
        scope = TABLES[name].scope
        if (part is None) != (scope == "run"):
            raise ValueError(f"table {name} has scope {scope}; part={part}")
        return self.store.load(name, part) or Table.empty(name)


def table_path(root: Path, name: str, part: int | None) -> Path:
    """Where a table's Parquet file lies."""
    return root / f"{name}.parquet" if part is None else root / name / f"part{part:05d}.parquet"


def write_atomic(path: Path, write: Any) -> None:
    """Create ``path`` by writing a temporary file beside it and renaming it; ``write`` takes the temporary Path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.fchmod(handle, 0o666 & ~_umask())
    os.close(handle)
    try:
        write(Path(temporary))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    """The process's umask; reading it means setting it for a moment."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_parquet(table: Table, path: Path) -> None:
    """Write a table as Parquet, zstd level 1, never leaving a half-written file."""
    import pyarrow.parquet as pq

    arrow = table.to_arrow().replace_schema_metadata({"dtprof.rows": str(table.rows), "dtprof.schema": str(SCHEMA_VERSION)})
    write_atomic(path, lambda tmp: pq.write_table(arrow, tmp, compression="zstd", compression_level=1))


def read_parquet(name: str, path: Path) -> Table:
    """Read a table back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # pq.read_table would bring in data sets, and pandas with them
        with pq.ParquetFile(path) as file:
            arrow = file.read()
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedRun(
            f"{path}: not a readable Parquet file ({error})", "delete it; it is rebuilt from the raw files"
        ) from error
    table = Table.from_arrow(name, arrow)
    rows = int((arrow.schema.metadata or {}).get(b"dtprof.rows", b"-1"))
    return Table(table.spec, rows, {}, {}) if rows >= 0 and not table.stored else table


def write_tables(root: Path, tables: Mapping[tuple[str, int | None], Table]) -> None:
    """Write all tables below ``root``."""
    for (name, part), table in tables.items():
        write_parquet(table, table_path(root, name, part))


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    data = json.dumps(value, indent=1, default=str).encode()
    write_atomic(path, lambda tmp: tmp.write_bytes(data))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` whole or not at all."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_atomic(path, lambda tmp: tmp.write_bytes(data))


def read_manifest(path: Path) -> Manifest:
    """Read ``manifest.json``; a damaged one raises DamagedRun naming file and place."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedRun(
            f"{path}: {error}", "the part folders are still readable; move manifest.json away and open the run again"
        ) from error


def quality_rows(rows: Iterable[tuple[str, str, int, str]]) -> Table:
    """A quality table from (source, what, count, effect)."""
    keys = ("source", "what", "count", "effect")
    return Table.from_rows("quality", [dict(zip(keys, row, strict=True)) for row in rows])
