"""``dtprof baseline record | show | accept``: the file that ``dtprof check`` compares with."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dtprof.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.check.baseline import Baseline, File

DEFAULT = "dtprof-baseline.json"


class BaselineCommand:
    """The verb ``baseline``."""

    name = "baseline"
    summary = "Record, show or accept what dtprof check compares with."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "action",
            choices=("record", "show", "accept"),
            help="record: from runs of one commit; show: what the file holds; accept: a changed run becomes the baseline",
        )
        parser.add_argument("run", nargs="*", metavar="RUN", help="run directories or traces; three or more tell the noise")
        parser.add_argument("--baseline", "-o", default=DEFAULT, metavar="FILE", help=f"the file ({DEFAULT})")
        parser.add_argument("--add", action="store_true", help="record: keep the runs that are there and append these")
        parser.add_argument("--commit", metavar="ID", help="the commit that was run (git's HEAD here, where there is one)")

    def run(self, args: argparse.Namespace) -> int:
        """Do it and say what the file holds now."""
        from dtprof.check import baseline as files
        from dtprof.cli.printing import print_json, print_lines

        if args.action == "show":
            if args.run:
                raise InputError(f"baseline show takes no RUN ({args.run[0]})", "name the file with --baseline")
            file = files.read(args.baseline)
        else:
            file = keep(args)
        if args.json:
            print_json(msgspec.to_builtins(file))
        else:
            print_lines(lambda width: lines(file, args.baseline, width))
        return 0


def keep(args: argparse.Namespace) -> File:
    """Record or accept: write the file and return it."""
    from dtprof.analyse import study_of
    from dtprof.check import baseline as files
    from dtprof.ingest import open_run

    if not args.run:
        raise InputError(f"baseline {args.action}: no RUN", "give the run directories of one commit")
    exists = Path(args.baseline).exists()
    if args.action == "accept" and not exists:
        raise InputError(f"{args.baseline}: there is no baseline to change", "dtprof baseline record makes one")
    if args.action == "accept" and args.add:
        raise InputError("--add is for baseline record", "accept puts the new runs in the place of the old")
    if len({Path(path).resolve() for path in args.run}) < len(args.run):
        raise InputError("a RUN is given twice", "give each once; a run that counts twice hides noise")
    before = files.read(args.baseline) if exists else None
    studies = [(Path(path).name or path, study_of(open_run(path))) for path in args.run]
    made = files.record(studies, commit=head() if args.commit is None else args.commit, recorded=int(time.time()))
    if args.action == "accept" and before is not None and files.matching(before, made.fingerprint)[0] is None:
        raise InputError(
            f"{args.baseline}: holds no baseline of {made.fingerprint.key}", "dtprof baseline record adds one beside the others"
        )
    file = files.merged(before, made, add=args.add)
    files.write(args.baseline, file)
    sys.stderr.write(f"dtprof: wrote {args.baseline}\n")
    return file


def head() -> str:
    """The commit of the working directory, or ""."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def lines(file: File, path: str, width: int) -> Iterable[str | Text]:
    """Each baseline: its fingerprint, its runs, its metrics."""
    yield f"{path}: {len(file.baselines)} {'baseline' if len(file.baselines) == 1 else 'baselines'}"
    for baseline in file.baselines:
        yield ""
        yield from _one(baseline, width)


def _one(baseline: Baseline, width: int) -> Iterable[str | Text]:
    from statistics import fmean

    from dtprof.numbers import counted, percent, size
    from dtprof.numbers import time as duration
    from dtprof.report.text_layout import Column, table

    yield baseline.fingerprint.key
    commits = sorted({r.commit for r in baseline.runs if r.commit})
    of = f" of {', '.join(commits)}" if commits else ""
    yield f"{counted(len(baseline.runs), 'run')}{of}"
    names = sorted(baseline.metrics)

    def shown(name: str, value: float) -> str:
        kind = baseline.metrics[name].kind
        if kind in ("exact", "ratio"):
            return f"{value:,.6g}"
        return percent(value) if kind == "share" else duration(value) if kind == "time" else size(round(value))

    values = {n: baseline.metrics[n].values for n in names}
    yield from table(
        [
            Column("metric", names, right=False),
            Column("kind", [baseline.metrics[n].kind for n in names], right=False),
            Column("mean", [shown(n, fmean(values[n])) for n in names]),
            Column("least", [shown(n, min(values[n])) for n in names], goes=1),
            Column("most", [shown(n, max(values[n])) for n in names], goes=2),
        ],
        width,
    )
