"""``dtprof whatif PATH --set KEY=VALUE``: what a change would make of the step, and how far to trust that."""

from __future__ import annotations

import argparse
import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.model.outcome import Outcome
    from dtprof.run import Run

WITHHELD = 2


class WhatIfCommand:
    """The verb ``whatif``."""

    name = "whatif"
    summary = "What a change would make of the step: a prediction with its interval, or the reason why there is none."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("path", metavar="PATH", help="a run directory, a trace file, or a folder of traces")
        parser.add_argument(
            "--set",
            dest="edits",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="a change, as ddp.bucket_cap_mb=5; repeatable",
        )
        parser.add_argument(
            "--calibration", metavar="RUN", help="the run of dtprof job collectives on the same network (the run's own costs)"
        )
        parser.add_argument("--out", metavar="RUN2", help="write the simulated run to this folder")

    def run(self, args: argparse.Namespace) -> int:
        """Predict; exit 2 where the prediction is withheld."""
        from dtprof.cli.report import progress_bar
        from dtprof.edits import parse_edits
        from dtprof.ingest import open_run
        from dtprof.model.whatif import what_if

        edits = parse_edits(args.edits)
        if args.out and Path(args.out).exists() and any(Path(args.out).iterdir()):
            raise InputError(f"--out {args.out}: the folder is not empty", "give a new one")
        with progress_bar() as progress:
            run = open_run(args.path, progress=progress)
        outcome = what_if(run, edits, Path(args.calibration) if args.calibration else None)
        if args.out and outcome.make_run is not None:
            write(outcome.make_run(), Path(args.out))
        if args.json:
            sys.stdout.write(json_module.dumps(outcome.document(), allow_nan=False, indent=1) + "\n")
        else:
            sys.stdout.write("\n".join(lines(outcome)) + "\n")
        return WITHHELD if outcome.withheld else 0


def write(run: Run, folder: Path) -> None:
    """Write a simulated run as a run directory, and say so on stderr."""
    from dtprof.ingest.store import all_tables
    from dtprof.run import write_manifest, write_tables

    write_tables(folder / "tables", all_tables(run))
    write_manifest(folder / "manifest.json", run.manifest)
    sys.stderr.write(f"dtprof: wrote {folder}, a simulated run: dtprof report {folder}\n")


def lines(outcome: Outcome) -> list[str]:
    """The prediction for people."""
    from dtprof.numbers import interval, percent, time

    changes = ", ".join(map(str, outcome.edits))
    if outcome.withheld:
        return [f"WITHHELD  {changes}", *(f"          {reason}" for reason in outcome.withheld)]
    measured, predicted = outcome.measured_ns or 0.0, outcome.predicted_ns or 0.0
    gain = predicted / measured - 1 if measured else 0.0
    rest = "" if outcome.unexplained is None else f", unexplained {percent(outcome.unexplained)}"
    bounds = interval(outcome.low_ns or 0.0, outcome.high_ns or 0.0)
    told = [
        f"PREDICTED  {time(predicted)} per step with {changes}: {gain:+.1%} of {time(measured)} ({bounds})",
        f"TRUST      {outcome.model}; replay error {percent(outcome.replay_error)}{rest}",
        *(f"           {note}" for note in outcome.notes),
    ]
    if (outcome.low_ns or 0.0) <= measured <= (outcome.high_ns or 0.0):
        told.append("           the interval holds the measured step: no change can be told from none")
    return told
