"""``dtprof report PATH``: what a run or a trace says, for people, for scripts, as a page."""

from __future__ import annotations

import argparse
import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.cli.output import until_reader_leaves
from dtprof.errors import InputError
from dtprof.findings import SEVERITIES, Finding, Severity

if TYPE_CHECKING:
    from dtprof.report.facts import Facts

Progress = Callable[[str, int, int], None]


class ReportCommand:
    """The verb ``report``."""

    name = "report"
    summary = "Accounting, collectives and findings of a run, or of a trace folder or file."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("path", metavar="PATH", help="a run directory, a trace file, or a folder of traces")
        parser.add_argument("--html", metavar="FILE", help="also write the report as one self-contained page")
        parser.add_argument(
            "--fail-on", choices=SEVERITIES, metavar="SEVERITY", help="exit 1 on a finding of high, medium or low or above"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Report, then judge if asked to."""
        facts = read(args.path)
        show(facts, json=args.json, html=args.html)
        return int(args.fail_on is not None and any(reaches(f, args.fail_on) for f in facts.findings))


def print_report(path: str, *, json: bool = False, html: str | None = None) -> int:
    """Print the report of ``path`` as the verb does; returns the exit code."""
    show(read(path), json=json, html=html)
    return 0


def read(path: str) -> Facts:
    """Open, analyse and gather; a bar on stderr where that is a terminal."""
    from dtprof.ingest import open_run
    from dtprof.report.kept import facts_of

    if not path:
        raise InputError("PATH is empty", "give a run directory, a trace file, or a folder of traces")
    with progress_bar() as progress:
        return facts_of(open_run(path, progress=progress))[1]


def show(facts: Facts, *, json: bool, html: str | None) -> None:
    """Write the page if wanted, then print the document or the text."""
    if html is not None:
        write_page(facts, html)
    with until_reader_leaves():
        if json:
            from dtprof.report.document import document_of

            sys.stdout.write(json_module.dumps(document_of(facts), allow_nan=False, indent=1) + "\n")
        else:
            from dtprof.report.text import print_report as print_text

            print_text(facts)


def write_page(facts: Facts, file: str) -> None:
    """Write the page to ``file`` (its folder is made) and say so on stderr."""
    from dtprof.report.html import page

    text = page(facts)
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{file}: the page cannot be written ({error.strerror or error})", "give another place to --html"
        ) from error
    sys.stderr.write(f"dtprof: wrote {file}\n")


def reaches(finding: Finding, level: Severity) -> bool:
    """Is the finding as severe as ``level`` or more?"""
    return SEVERITIES.index(finding.severity) <= SEVERITIES.index(level)


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A bar of files read, gone when done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("reading {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("…", total=None)

        def progress(name: str, done: int, of: int) -> None:
            bar.update(task, description=name, completed=done, total=of)

        yield progress
