"""Opening runs: our own directories and other tools' traces, through one function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtprof.errors import InputError, NotATrace, PluginError
from dtprof.ingest.exported import ExportedReader
from dtprof.ingest.kineto.reader import KinetoReader
from dtprof.ingest.memory.reader import SnapshotReader
from dtprof.ingest.nsys.files import is_sqlite
from dtprof.ingest.nsys.reader import NsysReader
from dtprof.ingest.recorded import RecordedReader
from dtprof.plugins import loaded
from dtprof.protocols import Reader
from dtprof.run import Run

READERS: tuple[Reader, ...] = (RecordedReader(), ExportedReader(), KinetoReader(), NsysReader(), SnapshotReader())


def readers() -> list[Reader]:
    """Built-in readers, then those of plugins."""
    return [*READERS, *(plugin.value() for plugin in loaded("readers") if plugin.value is not None)]


def open_run(path: str | Path | Sequence[str | Path], **options: Any) -> Run:
    """Open a run directory, a trace file, a folder of traces, or several Nsight Systems reports of one job.

    Options are passed to the reader (``executor``, ``cache``, ``progress``). Raises InputError (NotATrace) that names
    the path and the remedy where there is nothing to read.
    """
    if not isinstance(path, str | Path):
        return NsysReader().read_files([Path(p) for p in path], options)
    where = Path(path)
    if not where.exists():
        raise InputError(f"{where}: no such file or folder", "check the path")
    if not where.is_file() and not where.is_dir():
        raise InputError(f"{where}: neither a file nor a folder", "save what it delivers to a file, and give that")
    if where.is_dir() and not os.access(where, os.R_OK | os.X_OK):
        raise InputError(f"{where}: the folder may not be read", "check its permissions")
    for reader in readers():
        if reader.sniff(where):
            run = reader.read(where, options)
            if not isinstance(run, Run):
                raise PluginError(f"reader {reader.name} returned {type(run).__name__} for {where}", "it must return a Run")
            return run
    if where.is_dir():
        held = sum(1 for _ in where.iterdir())
        what = "an empty folder" if held == 0 else f"none of its {held} entries is a trace"
        raise NotATrace(
            f"{where}: {what}",
            "give a dtprof run directory, or torch.profiler traces (*.json, *.json.gz), nsys reports or a folder of them",
        )
    return (NsysReader() if is_sqlite(where) else KinetoReader()).read(where, options)
