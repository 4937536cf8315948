"""What torch's flight recorder holds when the session ends, also by an exception: the last operations and how far each got.

Raw file
    flight_recorder.json    the dump (``flight_recorder.dump``) with at most ``KEEP`` entries, the newest, without stacks
Facts in part.json: ``operations``, the entries kept. Tables: ``quality`` names what was issued and had not ended. The
operations themselves open as a run of their own: ``dtprof report RUN/part00000/flight_recorder.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dtprof.errors import InputError
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table
from dtprof_collectors import flight_recorder
from dtprof_collectors.flight_recorder_files import entries_of, read_dump

FILE = "flight_recorder.json"
KEEP = 5000


class FlightRecorderCollector:
    """Keeps the recorder's content; costs nothing until the session ends."""

    name = "flight_recorder"

    def __init__(self) -> None:
        self._context: Context | None = None

    def start(self, context: Context) -> None:
        """Remember where to write."""
        self._context = context
        context.status.idle = True

    def on_step(self, step: int) -> None:
        """Nothing: torch records by itself."""

    def stop(self) -> None:
        """Write the dump, where a process group was used."""
        context, self._context = self._context, None
        torch = sys.modules.get("torch")
        if context is None or torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        found = flight_recorder.dump()
        if found is None:
            return
        found["entries"] = [{k: v for k, v in e.items() if k != "frames"} for e in found["entries"][-KEEP:]]
        found["rank"] = context.rank
        (context.folder / FILE).write_bytes(msgspec.json.encode(found))
        context.status.facts["operations"] = len(found["entries"])

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``quality``: operations that had not ended, and a damaged file."""
        # the reading half of dtprof is not loaded in a training job
        from dtprof_collectors.flight_recorder_reader import quality_of, recorded

        path = folder / FILE
        if not path.exists():
            return {}
        try:
            found = read_dump(path)
        except InputError as error:
            return {"quality": quality_rows([(FILE, error.message, 1, "the last operations are not known")])}
        found["entries"], _ = entries_of(found)
        rows = [row for row in quality_of(found, list(recorded(found)), 0, FILE) if "had not ended" in row[1]]
        return {"quality": quality_rows(rows)} if rows else {}
