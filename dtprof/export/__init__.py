"""Runs in other tools' formats, one exporter each; ``export_run`` writes several at once.

Exporters of dtprof are listed in EXPORTERS, others come by the entry-point group ``dtprof.exporters``. Each writes below
a folder of its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dtprof.errors import InputError, PluginError
from dtprof.export.chrome import ChromeExporter
from dtprof.export.common import Progress, Written, silent
from dtprof.export.csv_tables import CsvExporter
from dtprof.export.nsys import NsysExporter
from dtprof.export.perfetto import PerfettoExporter
from dtprof.plugins import attempt, loaded
from dtprof.protocols import Exporter
from dtprof.run import Run

EXPORTERS: tuple[ChromeExporter | PerfettoExporter | NsysExporter | CsvExporter, ...] = (
    ChromeExporter(), PerfettoExporter(), NsysExporter(), CsvExporter()
)  # fmt: skip


def exporters() -> dict[str, Exporter]:
    """Exporters by name; one of ours is never replaced."""
    found: dict[str, Exporter] = {}
    for plugin in loaded("exporters"):
        if plugin.value is not None:
            found[plugin.name] = plugin.value() if isinstance(plugin.value, type) else plugin.value
    return {**found, **{e.name: e for e in EXPORTERS}}


def chosen(names: Sequence[str]) -> list[Exporter]:
    """The exporters of these names, each once; InputError lists the known ones."""
    known = exporters()
    unknown = [n for n in names if n not in known]
    if unknown or not names:
        what = f"no exporter {unknown[0]!r}" if unknown else "no exporter given"
        raise InputError(f"--to: {what}", f"there are {', '.join(sorted(known))}")
    return [known[n] for n in dict.fromkeys(names)]


def export_run(run: Run, names: Sequence[str], out: Path, progress: Progress = silent) -> dict[str, list[Written]]:
    """Write ``run`` in these formats, each below ``out/NAME``; what cannot be written raises InputError with the place."""
    written: dict[str, list[Written]] = {}
    for exporter in chosen(names):
        folder = out / exporter.name
        try:
            written[exporter.name] = _write(exporter, run, folder, progress)
        except OSError as error:
            place = error.filename or folder
            raise InputError(
                f"{place}: cannot be written ({error.strerror or error})", "give a folder with room that may be written to"
            ) from error
    return written


def _write(exporter: Exporter, run: Run, folder: Path, progress: Progress) -> list[Written]:
    for ours in EXPORTERS:
        if ours is exporter:
            return ours.write(run, folder, progress)
    progress(exporter.name, 0, 1)
    paths, error = attempt(lambda: list(exporter.export(run, folder)))
    if error:
        raise PluginError(f"the exporter {exporter.name} failed ({error})", "see dtprof plugins for where it comes from")
    return [Written(Path(p), -1) for p in paths]
