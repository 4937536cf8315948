"""``dtprof check RUN --baseline FILE``: a run against a stored baseline."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.cli.shares import add_outputs, level, share, write_outputs

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.check.baseline import Baseline
    from dtprof.check.result import Result, Row

ALL_TOLD = 6


class CheckCommand:
    """The verb ``check``."""

    name = "check"
    summary = "A run against a stored baseline: exit 0 passed, 1 worse, 2 inconclusive."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("run", nargs="+", metavar="RUN", help="run directories or traces of one commit")
        parser.add_argument("--baseline", required=True, metavar="FILE", help="a file of dtprof baseline record")
        parser.add_argument(
            "--margin", type=share, default=0.02, metavar="2%", help="allowed for shares of the step and bytes (2%%)"
        )
        parser.add_argument("--time-margin", type=share, metavar="10%", help="allowed for durations (five times --margin)")
        parser.add_argument("--alpha", type=level, default=0.01, metavar="1%", help="chance of any false failure (1%%)")
        parser.add_argument("--confirm", metavar="RUN", help="a second run of the same commit: only what fails in both fails")
        parser.add_argument(
            "--control", metavar="RUN", help="a fresh run of the baseline's own commit, which must still meet it"
        )
        add_outputs(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Compare and decide."""
        from dtprof.cli.printing import print_json, print_lines

        result = check(args)
        write_outputs(result, args)
        if args.json:
            print_json({**result.to_document(), "recorded": int(time.time())})
        else:
            print_lines(lambda width: lines(result, width))
        return result.exit_code


def check(args: argparse.Namespace) -> Result:
    """Open everything, then judge."""
    from dtprof.check import baseline as files
    from dtprof.check.judge import Margins, judge
    from dtprof.check.result import Result

    file = files.read(args.baseline)
    candidate = measured(args.run)
    before, why_not = files.matching(file, candidate.fingerprint)
    title = f"dtprof check against {Path(args.baseline).name}"
    if before is None:
        return Result(title, "inconclusive", f"INCONCLUSIVE: {why_not}; record a baseline here: dtprof baseline record")
    margins = Margins(args.margin, 5 * args.margin if args.time_margin is None else args.time_margin, args.alpha)
    others = [measured([path]) if path else None for path in (args.confirm, args.control)]
    return judge(before, candidate, margins=margins, confirm=others[0], control=others[1], title=title)


def measured(paths: Sequence[str]) -> Baseline:
    """What these runs measured; one file of ``baseline record`` with one baseline will do as well."""
    from dtprof.analyse import study_of
    from dtprof.check import baseline as files
    from dtprof.errors import InputError
    from dtprof.ingest import open_run

    if len(paths) == 1 and paths[0].endswith(".json") and is_baseline(paths[0]):
        found = files.read(paths[0]).baselines
        if len(found) != 1:
            raise InputError(f"{paths[0]}: holds {len(found)} baselines", "give a file with one, or the runs themselves")
        return found[0]
    return files.record([(path, study_of(open_run(path))) for path in paths])


def is_baseline(path: str) -> bool:
    """Does the file begin as ours do?"""
    try:
        with open(path, "rb") as file:
            return b'"dtprof baseline"' in file.read(200)
    except OSError:
        return False


def lines(result: Result, _width: int) -> Iterable[str | Text]:
    """The first line, a line for each metric that failed or may have, the names of the others, the notes."""
    yield result.headline
    groups: dict[str, list[Row]] = {}
    for row in result.rows:
        groups.setdefault(_group(row), []).append(row)
    told = result.rows if len(result.rows) <= ALL_TOLD else groups.pop("", [])
    if told:
        yield ""
        yield from (f"{row.outcome.upper()} {row.name}: {row.text}" for row in told)
    if len(told) < len(result.rows):
        for what, rows in groups.items():
            yield ""
            yield f"{len(rows)} {what}: {', '.join(row.name for row in rows)}"
        yield ""
        yield "--json, --junit and --markdown have the numbers of all"
    if result.notes:
        yield ""
        yield from (f"· {note}" for note in result.notes)


def _group(row: Row) -> str:
    """Metrics that are told by name only, in words; "" for those whose line is told."""
    if row.outcome == "pass":
        return "passed"
    if row.values.get("missing"):
        return "in the baseline and not in this run"
    if row.harmless:
        return "not resolved, none looks worse than its margin"
    return ""
