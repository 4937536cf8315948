"""Where the tables of an opened run are: in memory, in cache folders, or derived on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dtprof.ingest import cache
from dtprof.run import Run
from dtprof.schema import TABLES
from dtprof.table import Table


class IngestStore:
    """Part tables in memory or in a cache folder; run-level tables by ``derive`` on first use."""

    def __init__(self, held: Mapping[int, Mapping[str, Table]], folders: Mapping[int, Path]) -> None:
        self._held = {part: dict(tables) for part, tables in held.items()}
        self.folders = dict(folders)
        self._derived: dict[str, Table] | None = None
        self.derive: Callable[[], dict[str, Table]] = dict

    def load(self, name: str, part: int | None) -> Table | None:
        """The table, read from its cache folder on first use."""
        if part is None:
            if self._derived is None:
                self._derived = self.derive()
            return self._derived.get(name)
        held = self._held.setdefault(part, {})
        if name not in held and part in self.folders:
            found = cache.load_table(self.folders[part], name)
            held[name] = Table.empty(name) if found is None else found
        return held.get(name)

    def put(self, part: int, name: str, table: Table) -> None:
        """Set a table of a part."""
        self._held.setdefault(part, {})[name] = table


def all_tables(run: Run) -> dict[tuple[str, int | None], Table]:
    """Every table of a run that has rows, for writing."""
    out: dict[tuple[str, int | None], Table] = {}
    for name, spec in TABLES.items():
        for part in [None] if spec.scope == "run" else [p.ordinal for p in run.parts]:
            table = run.table(name, part)
            if len(table):
                out[(name, part)] = table
    return out
