"""``dtprof export PATH --to FORMATS -o OUT``: a run in other tools' formats."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.export.common import Progress, Written
    from dtprof.run import Run


class ExportCommand:
    """The verb ``export``."""

    name = "export"
    summary = "A run in other tools' formats: Chrome JSON, Perfetto, Nsight Systems, CSV."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("path", metavar="PATH", help="a run directory, a trace file, or a folder of traces")
        parser.add_argument("--to", required=True, metavar="FORMATS", help="chrome, perfetto, nsys, csv; several with commas")
        parser.add_argument("-o", "--out", required=True, metavar="OUT", help="folder; each format gets a folder of its name")
        parser.add_argument("--steps", metavar="A:B", help="only what belongs to steps A to B - 1")
        parser.add_argument("--ranks", metavar="R", help="only these ranks, as 0,3 or 0-7,12")

    def run(self, args: argparse.Namespace) -> int:
        """Open, cut, write, and list what was written."""
        from dtprof.export import chosen, export_run
        from dtprof.export.window import cut, parse_steps
        from dtprof.ingest import open_run

        names = [n.strip() for n in args.to.split(",") if n.strip()]
        chosen(names)
        steps = parse_steps(args.steps) if args.steps is not None else None
        ranks = parse_ranks(args.ranks) if args.ranks is not None else None
        out = Path(args.out)
        with bar() as progress:
            run = cut(open_run(args.path, progress=progress), ranks, steps)
            keep_apart(run, out)
            written = export_run(run, names, out, progress)
        files = [document(name, file) for name, found in written.items() for file in found]
        if args.json:
            sys.stdout.write(json.dumps({"schema": 1, "out": str(out), "files": files}, indent=1) + "\n")
        else:
            sys.stdout.write("".join(line(file) for file in files))
        return 0


def keep_apart(run: Run, out: Path) -> None:
    """A foreign folder is never written to."""
    source = Path(run.path).resolve()
    if run.format != "dtprof" and source.is_dir() and (out.resolve() == source or source in out.resolve().parents):
        raise InputError(f"-o {out}: lies in the folder of the traces, {run.path}", "give a folder outside it")


def parse_ranks(text: str) -> set[int]:
    """``0,3`` or ``0-7,12``; InputError otherwise."""
    ranks: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(piece) > 20:
            raise InputError(f"--ranks {text}: {piece.strip()!r} is no rank", "write them as 0,3 or 0-7,12")
        lowest, highest = int(first), int(last) if dash else int(first)
        if highest < lowest or highest - lowest > 1_000_000:
            raise InputError(f"--ranks {text}: {piece.strip()!r} is no range of ranks", "write the lower rank first, as 0-7")
        ranks.update(range(lowest, highest + 1))
    return ranks


def document(name: str, file: Written) -> dict[str, Any]:
    """One file for ``--json``; ``rows`` is null where the exporter does not say."""
    return {"format": name, "path": str(file.path), "bytes": file.size, "rows": file.rows if file.rows >= 0 else None}


def line(file: dict[str, Any]) -> str:
    """One file for people."""
    rows = "" if file["rows"] is None else f"{file['rows']:>12,} rows"
    return f"{file['format']:9} {file['bytes'] / 1e6:>9.2f} MB {rows:>17}  {file['path']}\n"


@contextmanager
def bar() -> Iterator[Progress]:
    """A line on stderr that says what is being read or written; silent where stderr is no terminal."""
    from dtprof.export.common import silent

    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("…", total=None)

        def progress(name: str, done: int, of: int) -> None:
            shown.update(task, description=name, completed=done, total=of)

        yield progress
