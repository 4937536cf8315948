"""Runs as Nsight Systems reports: what ``nsys stats``, ``nsys analyze`` and its multi-report recipes read.

Per part of the run, below the folder:

    NAME_rank00000.nsys-rep     empty: recipes want the name of a report
    NAME_rank00000.sqlite       what ``nsys stats NAME_rank00000.sqlite`` reads
    NAME_rank00000_pqtdir/      the same tables as Parquet, for recipes
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dtprof.export.common import Progress, Written, clock_zero, label, part_names, silent
from dtprof.export.nsys import device, host, own, target, write
from dtprof.export.nsys.sheet import Sheet, StringIds
from dtprof.export.nsys.source import Source
from dtprof.run import Part, Run

# ns between the session's start and the first event, for ranges that begin before the call that they hold
_BEFORE = 1000


class NsysExporter:
    """Reports of all parts, one clock, names in the order of ranks."""

    name = "nsys"

    def export(self, run: Run, folder: Path) -> list[Path]:
        """Write below ``folder`` and return the files."""
        return [w.path for w in self.write(run, folder)]

    def write(self, run: Run, folder: Path, progress: Progress = silent) -> list[Written]:
        """One part after the other."""
        folder.mkdir(parents=True, exist_ok=True)
        zero, names = session_start(run), part_names(run)
        written: list[Written] = []
        for done, part in enumerate(run.parts):
            progress(label(part), done, len(run.parts))
            written += write_part(run, part, zero, folder / names[part.ordinal], first=done == 0)
        return written


def session_start(run: Run) -> int:
    """The instant (ns, aligned clock) that the reports of all ranks begin at: a little before anything happened."""
    return clock_zero(run) - _BEFORE


def write_part(run: Run, part: Part, zero: int, stem: Path, *, first: bool) -> list[Written]:
    """The report of one part; the run's own tables go with the ``first``."""
    report, database, folder = (stem.with_name(stem.name + e) for e in (".nsys-rep", ".sqlite", "_pqtdir"))
    report.write_bytes(b"")
    rows = 0
    # the database appears last: nsys takes it for stale where the report is newer
    with write.new_database(database) as file, write.ParquetFolder(folder) as parquet:
        write.create(file)
        for sheet in sheets(Source(run, part, zero, StringIds())):
            write.insert(file, sheet)
            parquet.add(sheet)
            rows += sheet.rows
        write.plan(file)
        own.write(file, run, part, with_run_tables=first)
    return [Written(report, 0), Written(database, rows), Written(folder, rows)]


def sheets(source: Source) -> Iterator[Sheet]:
    """Every table of one part, large ones in pieces, strings last."""
    source.strings.of("")
    yield from device.sheets(source)
    yield from host.calls(source)
    yield from host.nvtx(source)
    yield from target.sheets(source)
    yield source.strings.sheet()
