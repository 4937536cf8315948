"""``dtprof diff A B``: which accounting category, rank, phase, layer, kernel class or operation moved."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.analyse.diff import Diff

MOST_MOVED = 12


class DiffCommand:
    """The verb ``diff``."""

    name = "diff"
    summary = "What moved between two runs: accounting category, rank, phase, layer, kernel class, operation."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("a", metavar="A", help="a run directory, a trace file, or a folder of traces")
        parser.add_argument("b", metavar="B", help="what is compared with it")

    def run(self, args: argparse.Namespace) -> int:
        """Compare and print; 2 where the steps cannot be compared at all."""
        from dtprof.cli.printing import print_json, print_lines

        found = diff_of(args.a, args.b)
        if args.json:
            print_json(document(found, args.a, args.b))
        else:
            print_lines(lambda width: lines(found, args.a, args.b, width))
        return 2 if found.a_step_ns is None or found.b_step_ns is None else 0


def diff_of(a: str, b: str) -> Diff:
    """Open both and compare."""
    from dtprof.analyse import study_of
    from dtprof.analyse.diff import diff
    from dtprof.cli.report import progress_bar
    from dtprof.errors import InputError
    from dtprof.ingest import open_run

    for path, name in ((a, "A"), (b, "B")):
        if not path:
            raise InputError(f"{name} is empty", "give two run directories, trace files, or folders of traces")
    with progress_bar() as progress:
        return diff(study_of(open_run(a, progress=progress)), study_of(open_run(b, progress=progress)))


def document(found: Diff, a: str, b: str) -> dict[str, Any]:
    """The JSON document: schema 1, ns per step."""
    return {
        "schema": 1,
        "a": a,
        "b": b,
        "headline": found.headline,
        "a_step_ns": found.a_step_ns,
        "b_step_ns": found.b_step_ns,
        "categories": {k: {"a_ns": v[0], "b_ns": v[1], "delta_ns": v[1] - v[0]} for k, v in found.keys.items()},
        "ranks": [
            {"rank": rank, "delta_ns": {k: round(v) for k, v in keys.items()}} for rank, keys in sorted(found.ranks.items())
        ],
        "moved": [
            {**asdict(m), "a_ns": round(m.a_ns), "b_ns": round(m.b_ns), "delta_ns": round(m.delta_ns)} for m in found.moved
        ],
        "cause": None if found.cause is None else {**asdict(found.cause), "delta_ns": round(found.cause.delta_ns)},
        "not_compared": list(found.cannot),
    }


def lines(found: Diff, a: str, b: str, width: int) -> Iterable[str | Text]:
    """The headline, the categories, the ranks, what moved most, what could not be compared."""
    yield found.headline
    yield f"A {a} · B {b}"
    if found.keys:
        yield ""
        yield from _categories(found, width)
    if found.moved:
        yield ""
        yield from _most_moved(found, width)
    if found.cannot:
        yield ""
        yield from (f"· {reason}" for reason in found.cannot)


def _categories(found: Diff, width: int) -> Iterable[Text]:
    from dtprof.numbers import Scale
    from dtprof.report.palette import PARTS
    from dtprof.report.text_layout import Column, table

    shown = [k for k, v in found.keys.items() if v[0] or v[1]]
    steps = found.a_step_ns or 0, found.b_step_ns or 0
    scale = Scale.of(steps)
    rows = [(PARTS[k].label, *found.keys[k]) for k in shown] + [("step", *steps)]
    columns = [
        Column(f"mean of the ranks, {scale.unit}", [r[0] for r in rows], right=False),
        Column("A", [scale.text(r[1]) for r in rows]),
        Column("B", [scale.text(r[2]) for r in rows]),
        Column("B - A", [scale.text(r[2] - r[1]) for r in rows]),
    ]
    if len(found.ranks) > 1:
        for rank, keys in sorted(found.ranks.items())[:8]:
            cells = [*(scale.text(keys[k]) for k in shown), scale.text(sum(keys.values()))]
            columns.append(Column(f"rank {rank}", cells, goes=1 + rank))
    return table(columns, width)


def _most_moved(found: Diff, width: int) -> Iterable[Text]:
    from dtprof.numbers import Scale
    from dtprof.report.text_layout import Column, table

    most = found.moved[:MOST_MOVED]
    scale = Scale.of(m.delta_ns for m in most)
    return table(
        [
            Column("moved most", [m.facet for m in most], right=False),
            Column("name", [m.name for m in most], right=False, flexible=True),
            Column("rank", ["mean" if m.rank is None else str(m.rank) for m in most]),
            Column(f"A, {scale.unit}", [scale.text(m.a_ns) for m in most], goes=2),
            Column(f"B, {scale.unit}", [scale.text(m.b_ns) for m in most], goes=1),
            Column("B - A", [scale.text(m.delta_ns) for m in most]),
        ],
        width,
    )
