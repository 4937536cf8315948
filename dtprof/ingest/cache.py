"""The ingest cache: one folder of Parquet files per trace file, in the user's cache directory.

Keyed by the file's identity (path, inode, size, modification time) and by the versions of schema and ingest, so that a
changed file is read anew. Nothing is ever written beside a foreign file. A cache that cannot be written is not an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dtprof.errors import DamagedRun
from dtprof.run import Part, read_parquet, write_atomic, write_parquet
from dtprof.schema import SCHEMA_VERSION
from dtprof.table import Table

# to be raised whenever the ingest of an unchanged file would give other tables
INGEST_VERSION = 5
# smaller files are read again faster than a cache is kept
LEAST_BYTES = 1_000_000


def root() -> Path:
    """Where the cache lives: ``DTPROF_CACHE``, else ``XDG_CACHE_HOME``/dtprof, else ``~/.cache/dtprof``."""
    given = os.environ.get("DTPROF_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dtprof"


def folder_for(path: Path) -> Path | None:
    """The cache folder of a file; None where the file is too small to be worth it or cannot be looked at."""
    try:
        stat = path.stat()
        where = root()
    except (OSError, RuntimeError):
        return None
    if stat.st_size < LEAST_BYTES:
        return None
    identity = f"{path.resolve()}|{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}|{SCHEMA_VERSION}|{INGEST_VERSION}"
    return where / "ingest" / hashlib.sha256(identity.encode()).hexdigest()[:24]


def save(folder: Path, part: Part, tables: Mapping[str, Table]) -> bool:
    """Write a part; ``part.json`` comes last and makes it valid. False where the cache cannot be written."""
    try:
        for name, table in tables.items():
            write_parquet(table, folder / f"{name}.parquet")
        data = msgspec.json.encode(part)
        write_atomic(folder / "part.json", lambda tmp: tmp.write_bytes(data))
    except OSError:
        return False
    return True


def load_part(folder: Path) -> Part | None:
    """The part of a valid cache folder, or None."""
    try:
        return msgspec.json.decode((folder / "part.json").read_bytes(), type=Part)
    except (OSError, msgspec.MsgspecError):
        return None


def load_table(folder: Path, name: str) -> Table | None:
    """One cached table; None where it is absent. A damaged one makes the folder invalid, so that the next opening reads the
    trace again; DamagedRun says so.
    """
    path = folder / f"{name}.parquet"
    try:
        return read_parquet(name, path) if path.exists() else None
    except DamagedRun as error:
        with contextlib.suppress(OSError):
            (folder / "part.json").unlink()
        raise DamagedRun(f"{path}: damaged in the cache", "run the command again: the trace is then read anew") from error
