"""Which run an opened one is: one text for as long as its tables are the same."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from dtprof.ingest.store import IngestStore
from dtprof.run import ParquetStore, Run


def identity(run: Run) -> str | None:
    """A digest of what the tables were made from, what is known of the run, and the files beside it; 64 hexadecimal digits.

    None where some tables are on no disk, or where its files vanish meanwhile: nothing then tells it from a later state.
    """
    try:
        return _digest(run)
    except OSError:
        return None


def _digest(run: Run) -> str | None:
    if isinstance(run.store, IngestStore):
        folders = run.store.folders
        if not run.parts or set(folders) != {p.ordinal for p in run.parts}:
            return None
        tables = [f"{part} {folder.name}" for part, folder in sorted(folders.items())]
        tables += [repr([t.row(i) for i in range(len(t))]) for t in (run.table("quality", p.ordinal) for p in run.parts)]
    elif isinstance(run.store, ParquetStore):
        tables = _files(run.store.root, deep=True)
    else:
        return None
    path = Path(run.path)
    beside = _files(path, deep=False) if path.is_dir() else []
    known = msgspec.json.encode(run.manifest).decode()
    return hashlib.sha256(
        "\n".join([run.path, os.path.abspath(path), run.format, known, *tables, *beside]).encode()
    ).hexdigest()


def _files(folder: Path, deep: bool) -> list[str]:
    """Path, bytes and modification time (ns) of every file in a folder, or at any depth."""
    found = sorted(f for f in (folder.rglob("*") if deep else folder.iterdir()) if f.is_file())
    return [f"{f.relative_to(folder)} {s.st_size} {s.st_mtime_ns}" for f in found for s in [f.stat()]]
