"""Every planted fault as a test of the diagnosis: found, at the right place, at the right price; and no alarm without one.

    python benchmarks/diagnosis.py [--json] [--jobs ddp,moe] [--only slow_rank] [--healthy 52] [--pairs] [--keep DIR]
    python benchmarks/diagnosis.py --again DIR [--json]

Each run is a short ``dtprof job`` of 2 to 4 ranks with emulated compute, recorded once and then reported. With --keep the
runs stay, and those that are there already are not made again, so that a stopped benchmark goes on; --minutes M begins none
after M minutes; --again makes none and reports those that are there with the rules of today. Rows of {setting, job, fault,
with, found, right_place, price_error, rule, price_s, truth_s, false}; a pair of faults gives two. ``price_error`` is null where
the truth is not above three times the noise of the setting's healthy runs, or the finding has no price.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.diagnosis_cases import SETTINGS
from benchmarks.diagnosis_runs import Case, Recorded, healthy_cases, pair_cases, record, recorded, single_cases
from benchmarks.diagnosis_score import Noise, rows_of, summary_of
from dtprof.analyse import study_of
from dtprof.errors import DtprofError
from dtprof.ingest import open_run
from dtprof.report.document import document

HEALTHY = 52


def cases_of(args: argparse.Namespace) -> list[Case]:
    """What was asked for: healthy runs first, for they are the reference of the others."""
    found = [*healthy_cases(args.healthy), *single_cases(), *(pair_cases() if args.pairs else ())]
    jobs = args.jobs.split(",") if args.jobs else None
    kept = [c for c in found if jobs is None or SETTINGS[c.setting].job in jobs]
    if args.only is None:
        return kept
    faulty = [c for c in kept if any(text.startswith(args.only) for text in c.faults)]
    return [c for c in kept if c in faulty or (not c.faults and c.setting in {f.setting for f in faulty})]


def made(cases: Iterable[Case], folder: Path, minutes: float | None) -> Iterator[tuple[Case, Recorded]]:
    """The runs of these cases, made where they are not there yet, as long as there is time."""
    there, end = recorded(folder), time.monotonic() + 60 * (minutes or 1e9)
    for case in cases:
        if case.name not in there:
            if time.monotonic() > end:
                continue
            shutil.rmtree(folder / case.name, ignore_errors=True)
            there[case.name] = record(case, folder)
            print(f"{case.name}: {there[case.name].seconds:.0f} s", file=sys.stderr)
        yield case, there[case.name]


def reports_of(cases: Iterable[Case], folder: Path) -> Iterator[tuple[Case, dict[str, Any]]]:
    """The report of every run, as ``dtprof report --json`` gives it; a run that cannot be read is told and left out."""
    for case in cases:
        try:
            yield case, document(study_of(open_run(folder / case.name)))
        except DtprofError as error:
            print(f"{case.name}: {error}", file=sys.stderr)


def measured(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows and their summary."""
    wanted = cases_of(args)
    there = recorded(folder) if args.again else {}
    runs = [(c, there[c.name]) for c in wanted if c.name in there] if args.again else list(made(wanted, folder, args.minutes))
    cases = [case for case, _ in runs]
    noise = Noise(cases, folder)
    rows = [row for case, report in reports_of(cases, folder) for row in rows_of(case, report, noise, folder)]
    loads = sorted(run.load for _, run in runs)
    return {"rows": rows, **summary_of(rows), "load_median": loads[len(loads) // 2] if loads else None}


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(f"{'setting':24}{'fault':40}{'found':>6}{'place':>6}{'price':>9}{'truth':>9}{'error':>7}  rule")
    for r in result["rows"]:
        if r["fault"] is None:
            continue
        cells = [_ms(r["price_s"]), _ms(r["truth_s"]), "-" if r["price_error"] is None else f"{r['price_error']:.0%}"]
        yes = ["yes" if r[key] else "no" for key in ("found", "right_place")]
        what = r["fault"] + (f" (with {r['with']})" if r["with"] else "")
        print(f"{r['setting']:24}{what:40}{yes[0]:>6}{yes[1]:>6}{cells[0]:>9}{cells[1]:>9}{cells[2]:>7}  {r['rule'] or '-'}")
    for r in result["rows"]:
        for text in r["false"]:
            print(f"not true: {r['setting']} {r['fault'] or 'healthy'}: {text}")
    for key, value in result.items():
        if key != "rows":
            print(f"{key:24}{value if not isinstance(value, float) else round(value, 4)}")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--jobs", metavar="JOB,…", help="these jobs (all)")
    parser.add_argument("--only", metavar="FAULT", help="this kind of fault, and the healthy runs of its settings")
    parser.add_argument("--healthy", type=int, default=HEALTHY, metavar="N", help=f"runs without a fault ({HEALTHY})")
    parser.add_argument("--pairs", action="store_true", help="also two faults at a time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs there, and take those that it has")
    parser.add_argument("--again", type=Path, metavar="DIR", help="make no run; report those of DIR again")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no run after M minutes")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    args = parser.parse_args()
    known = {setting.job for setting in SETTINGS.values()}
    if strange := set(args.jobs.split(",") if args.jobs else ()) - known:
        parser.error(f"--jobs {','.join(sorted(strange))}: the benchmark has {', '.join(sorted(known))}")
    if args.again and not recorded(args.again):
        parser.error(f"--again {args.again}: no recorded runs are there; make some with --keep {args.again}")
    with contextlib.ExitStack() as stack:
        folder = args.again or args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtprof-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        result = measured(args, folder)
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        show(result)


if __name__ == "__main__":
    main()
