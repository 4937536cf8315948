"""``dtprof plan search SPEC.toml`` and ``dtprof plan explain SPEC.toml``: the fastest layout that fits, and why it is that."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.plan.calibrated import Calibration
    from dtprof.plan.search import Candidate, Found, Wanted
    from dtprof.plan.search.spec import Spec
    from dtprof.plan.time.step import Estimator

NOTHING_FITS = 1


def configure(verbs: Any) -> None:
    """Add both sub-verbs."""
    told = {
        "search": "the fastest layouts that fit, and why the others lose",
        "explain": "why the fastest layout, or the one that the file fixes, is as fast and as large as it is",
    }
    for name, summary in told.items():
        verb = verbs.add_parser(name, help=summary, description=summary)
        verb.add_argument("spec", metavar="SPEC.toml", help="model, cluster, what of the layout is fixed; see docs/planner.md")
        verb.add_argument("--from", dest="run_path", metavar="RUN", help="calibrate by this measured run of a known model")
        verb.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Search or explain; 1 where nothing fits."""
    from dtprof.plan.search.spec import read

    spec = read(Path(args.spec))
    if spec.wanted is None:
        from dtprof.cli.plan_module import run as measure

        return measure(args, spec)
    return _search(args, spec.wanted) if args.what == "search" else _explain(args, spec)


def _found(args: argparse.Namespace, wanted: Wanted) -> tuple[Found, Callable[[Any], Estimator], Calibration]:
    from dtprof.plan.calibrated import calibration
    from dtprof.plan.search import search
    from dtprof.plan.time.step import Estimator

    rests = calibration(wanted.model, wanted.cluster, wanted.software)
    if args.run_path:
        from dtprof.ingest import open_run
        from dtprof.plan.own import calibrated

        rests = calibrated(open_run(args.run_path), wanted.cluster.gpu, rests)

    def clock(cluster: Any) -> Estimator:
        return Estimator(wanted.model, cluster, wanted.software, rests.constants)

    with _bar() as progress:
        return search(wanted, clock, progress), clock, rests


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar of grids looked at, gone when done; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("searching layouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _search(args: argparse.Namespace, wanted: Wanted) -> int:
    from dtprof.cli.plan_lines import search_lines
    from dtprof.cli.printing import print_json, print_lines
    from dtprof.plan.search.told import document

    found, clock, rests = _found(args, wanted)
    if args.json:
        print_json(document(found, rests))
    else:
        told = _terms(wanted, found, clock)
        print_lines(lambda width: search_lines(wanted, found, rests, told, width))
    return 0 if found.best is not None else NOTHING_FITS


def _terms(wanted: Wanted, found: Found, clock: Callable[[Any], Estimator]) -> list[str]:
    from dtprof.plan.search.explain import megatron

    if found.best is None:
        return []
    return megatron(wanted, found.best, clock(replace(wanted.cluster, gpus=found.best.layout.gpus)))


def _explain(args: argparse.Namespace, spec: Spec) -> int:
    from dtprof.cli.plan_lines import explain_lines, search_lines
    from dtprof.cli.printing import print_json, print_lines
    from dtprof.plan.search.explain import neighbours
    from dtprof.plan.search.told import candidate, document, neighbour

    assert spec.wanted is not None
    wanted = spec.wanted
    found, clock, rests = _found(args, wanted)
    best = found.best
    if best is None:
        if args.json:
            print_json(document(found, rests))
        else:
            print_lines(lambda width: search_lines(wanted, found, rests, [], width))
        return NOTHING_FITS
    at = clock(replace(wanted.cluster, gpus=best.layout.gpus))
    around, told = neighbours(wanted, best, at), _terms(wanted, found, clock)
    other = _left_open(args, wanted, best)
    if args.json:
        more = {"terms": told, "neighbours": [neighbour(one) for one in around]}
        print_json({
            "schema": 1, "layout": candidate(best, rests), **more, "calibrated_by": rests.name,
            "left_open": None if other is None else candidate(other, rests),
        })  # fmt: skip
    else:
        lines: Callable[[int], list[str | Text]] = lambda width: explain_lines(wanted, best, rests, told, around, other, width)  # noqa: E731
        print_lines(lines)
    return 0


def _left_open(args: argparse.Namespace, wanted: Wanted, best: Candidate) -> Candidate | None:
    """The best layout where nothing is fixed, if it is another one."""
    free = replace(
        wanted, dp=(), tp=(), pp=(), vpp=(), cp=(), ep=(), micro_batch=(), zero=(), shard=(), recompute=(), schedule=()
    )
    if free == wanted:
        return None
    other = _found(args, free)[0].best
    return other if other is not None and other.layout != best.layout else None
