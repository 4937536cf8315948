"""The reader of CUDA allocator snapshots: one file, one part, tables ``allocations``, ``memory``, ``samples``, ``quality``.

Sizes in a snapshot's history are those that were asked for, before rounding; levels are sums of them. They are found
backwards from the state at the end, so they are right from the first recorded event on even where the history is a ring
that has lost its beginning, and say nothing about what was before. Times are Unix ns of microsecond resolution.

``allocations``   an allocation, or a free as it completes (negative)
``memory``        ``allocated`` and ``reserved`` of a device after every event that changed them; with a ``stack``: bytes
                  that the blocks of that stack held at the end
``samples``       at the end, per device: ``memory_inactive`` (free inside segments), ``memory_inactive_held`` (of it, in
                  segments that also hold live blocks), ``memory_pending_free``, ``memory_largest_free``,
                  ``memory_rounding``, ``memory_segments``; in time: ``memory_oom``, the bytes that were asked for in vain
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.errors import InputError
from dtprof.ingest.kineto.files import hint_of
from dtprof.ingest.memory.tables import Columns, tables_of
from dtprof.ingest.store import IngestStore
from dtprof.run import Manifest, Part, Run

_LEAST_LIMIT = 1 << 30
# a snapshot takes up to about this many times its file's size as Python objects
_EXPANDS = 32
_PROTOCOLS = (2, 3, 4, 5)
_HEAD_BYTES = 64 << 10
_FLIGHT_RECORDER = (b"pg_config", b"pg_status", b"profiling_name", b"collective_seq_id")


class SnapshotReader:
    """The reader of allocator snapshots."""

    name = "snapshot"

    def sniff(self, path: Path) -> bool:
        """A pickle of protocol 2 to 5 that is no dump of torch's flight recorder."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except OSError:
            return False
        pickled = len(head) >= 2 and head[0] == 0x80 and head[1] in _PROTOCOLS
        return pickled and not any(key in head for key in _FLIGHT_RECORDER)

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a snapshot; raises InputError, without running anything in the file, where it is none."""
        columns = load(path)
        hint = hint_of(path)
        part = Part(ordinal=0, rank=hint.rank, source=path.name, rank_from="" if hint.rank is None else "file name")
        tables = tables_of(columns, path.name)
        return Run(Manifest(run_id=path.name, parts=[part]), IngestStore({0: tables}, {}), str(path), "snapshot")


def load(path: Path, limit: int | None = None) -> Columns:
    """The columns of a snapshot, read by another process that may take ``limit`` bytes of memory."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", "check its permissions") from error
    allowed = limit or max(_LEAST_LIMIT, _EXPANDS * size)
    program = Path(__file__).with_name("unpickle.py")
    words = [sys.executable, "-I", str(program), str(path.absolute()), str(min(allowed, _memory()))]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode != 0:
        what, _, remedy = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].partition("\t")
        if done.returncode != 3:
            what, remedy = f"the process that read it ended with {done.returncode} ({what})", "record the snapshot again"
        raise InputError(f"{path}: {what}", remedy)
    return _parse(done.stdout)


def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _parse(data: bytes) -> Columns:
    end = data.index(b"\n")
    header = json.loads(data[:end])
    columns: dict[str, NDArray[np.int64]] = {}
    at = end + 1
    for name, count in header["columns"].items():
        columns[name] = np.frombuffer(data, np.int64, count, at)
        at += 8 * count
    return Columns(columns, tuple(header["stacks"]), int(header["skipped"]))
