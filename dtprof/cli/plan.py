"""``dtprof plan predict ROWS.csv -o OUT.csv``: step times, memory and FLOP/s of published configurations."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.cli import plan_search
from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.plan.own import Measured


class PlanCommand:
    """The verb ``plan``."""

    name = "plan"
    summary = "Which parallel layout: what fits, how fast each is, and how sure that is."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-verbs."""
        verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        predict = verbs.add_parser("predict", help="predict the rows of a table of configurations")
        predict.add_argument("rows", metavar="ROWS.csv", help="a CSV file; docs/planner.md names the columns that are read")
        predict.add_argument("-o", "--out", metavar="OUT.csv", required=True, help="the same rows with predicted columns")
        predict.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")
        rests = predict.add_mutually_exclusive_group()
        rests.add_argument("--from", dest="run_path", metavar="RUN", help="calibrate rows on its GPU by this measured run")
        rests.add_argument("--catalogue", action="store_true", help="use nothing that was measured on newer GPUs than A100")

        plan_search.configure(verbs)

    def run(self, args: argparse.Namespace) -> int:
        """Do what was asked for."""
        return _predict(args) if args.what == "predict" else plan_search.run(args)


def _measured(path: str) -> Measured:
    from dtprof.ingest import open_run
    from dtprof.plan.own import measured

    return measured(open_run(path))


def _predict(args: argparse.Namespace) -> int:
    from dtprof.cli.printing import print_json
    from dtprof.plan.predict import Predictor, predicted_rows, read_rows, write_rows

    header, rows = read_rows(Path(args.rows))
    measured = _measured(args.run_path) if args.run_path else None
    wide, out = predicted_rows(header, rows, Predictor(args.catalogue, measured))
    if measured is not None and not any(measured.rests.name in row for row in out):
        what = f"--from {args.run_path}: it was measured on {measured.gpu}, and no row of {args.rows} that can be predicted is"
        raise InputError(what, f"give rows whose gpu_type is {measured.gpu}")
    write_rows(Path(args.out), wide, out)
    place = {name: wide.index(name) for name in ("pred_step_time_s", "reason", "calibrated_by", "fits")}
    blank = Counter(row[place["reason"]] for row in out if not row[place["pred_step_time_s"]])
    rests = Counter(row[place["calibrated_by"]] for row in out if row[place["pred_step_time_s"]])
    document = {
        "rows": len(out),
        "predicted": sum(rests.values()),
        "not_predicted": dict(blank),
        "calibrated_by": dict(rests),
        "do_not_fit": sum(row[place["fits"]] == "false" for row in out),
        "out": str(args.out),
    }
    if args.json:
        print_json(document)
        return 0
    sys.stdout.write(f"{document['predicted']} of {len(out)} rows predicted: {args.out}\n")
    for count, name in ((count, f"calibrated by {name}") for name, count in rests.most_common()):
        sys.stdout.write(f"  {count:5d}  {name}\n")
    for reason, count in blank.most_common():
        sys.stdout.write(f"  {count:5d}  not predicted: {reason}\n")
    return 0
