"""``dtprof history FOLDER``: where stored results changed, slow drift included."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from dtprof.cli.shares import level

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.check.changepoints import Change
    from dtprof.check.history import Series


class HistoryCommand:
    """The verb ``history``."""

    name = "history"
    summary = "Change points of stored results: run directories, baseline files, documents of dtprof check --json."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("path", nargs="+", metavar="PATH", help="results, or folders of them")
        parser.add_argument(
            "--metric", action="append", metavar="NAME", help="which (step_time_ns); all: every one; may be given several times"
        )
        parser.add_argument("--level", type=level, default=0.05, metavar="5%", help="chance of a change where none is (5%%)")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the permutations (0)")
        parser.add_argument("--svg", metavar="FILE", help="also write the plot (of the first metric) as SVG")
        parser.add_argument("--html", metavar="FILE", help="also write all plots as one self-contained page")

    def run(self, args: argparse.Namespace) -> int:
        """Read, look for changes, print; 2 where there are too few results to see any."""
        from dtprof.check.changepoints import LEAST
        from dtprof.check.history import history, read_points
        from dtprof.cli.printing import print_json, print_lines

        found = history(read_points(args.path), args.metric, level=args.level, seed=args.seed)
        if args.svg or args.html:
            write_plots(found, args)
        if args.json:
            print_json(document(found))
        else:
            print_lines(lambda width: lines(found, width))
        return 2 if all(len(s.values) < 2 * LEAST for s in found) else 0


def shown(kind: str, value: float) -> str:
    """A value of a kind in words."""
    from dtprof.numbers import NBSP, percent, size, time

    if kind == "time":
        text = time(value)
    elif kind == "share":
        text = percent(value)
    else:
        text = size(round(value)) if kind == "bytes" else f"{value:,.6g}"
    return text.replace(NBSP, " ")


def write_plots(found: list[Series], args: argparse.Namespace) -> None:
    """The files that were asked for."""
    from dtprof.check.outputs import write
    from dtprof.report.charts.history import history_figure, history_page
    from dtprof.report.html import style

    def figure(series: Series) -> str:
        return history_figure(
            f"{series.metric} over {len(series.values)} results", series.names, series.values, series.levels,
            partial(shown, series.kind),
        )  # fmt: skip

    if args.svg:
        drawn = figure(found[0]).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        write(args.svg, drawn.replace(">", f"><style>{style()}</style>", 1) + "\n", "--svg")
        sys.stderr.write(f"dtprof: wrote {args.svg}\n")
    if args.html:
        write(args.html, history_page("dtprof history", [(headline(s), figure(s)) for s in found]), "--html")
        sys.stderr.write(f"dtprof: wrote {args.html}\n")


def headline(series: Series) -> str:
    """One line for one metric."""
    from dtprof.check.changepoints import LEAST

    count = len(series.values)
    if count < 2 * LEAST:
        return f"{series.metric}: {count} results; {2 * LEAST} are needed to see a change"
    if not series.changes:
        return f"{series.metric}: no change in {count} results"
    last = series.changes[-1]
    first, end, height = series.levels[-1]
    before = series.levels[-2][2]
    more = f"; {len(series.changes)} changes in {count} results" if len(series.changes) > 1 else f"; {count} results"
    since = f"since {series.names[first]} ({end - first} results)"
    return (
        f"{series.metric}: {shown(series.kind, before)} to {shown(series.kind, height)} ({amount(series, last)}) {since}{more}"
    )


def amount(series: Series, change: Change) -> str:
    """The last change as a share, or in points."""
    from dtprof.numbers import change as words

    value = series.relative(change)
    return f"{100 * value:+.1f} points" if series.kind == "share" else words(value)


def document(found: list[Series]) -> dict[str, object]:
    """The JSON document: schema 1."""
    return {
        "schema": 1,
        "metrics": [
            {
                "metric": s.metric,
                "kind": s.kind,
                "headline": headline(s),
                "results": [{"name": n, "value": v} for n, v in zip(s.names, s.values, strict=True)],
                "changes": [{**asdict(c), "name": s.names[c.at], "relative": s.relative(c)} for c in s.changes],
                "levels": [{"first": a, "end": b, "median": m} for a, b, m in s.levels],
            }
            for s in found
        ],
    }


def lines(found: list[Series], width: int) -> Iterable[str | Text]:
    """A line for each metric; a plot where there is one, or of those that changed."""
    from rich.text import Text

    from dtprof.report.charts.history import history_text

    for series in found:
        yield headline(series)
        if series.values and (len(found) == 1 or series.changes):
            words = partial(shown, series.kind)
            yield from map(Text, history_text(series.values, series.levels, words, width))
