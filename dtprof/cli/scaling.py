"""``dtprof scaling RUN…``: the same job at several sizes, its efficiency, and what ate the loss."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.analyse.scaling import Scaling

# categories below this share in every size are not shown
_LEAST = 0.005


class ScalingCommand:
    """The verb ``scaling``."""

    name = "scaling"
    summary = "The same job at several sizes: weak or strong efficiency, and which accounting category ate the loss."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories or trace folders, one for each size")

    def run(self, args: argparse.Namespace) -> int:
        """Open all, compare, print."""
        from dtprof.analyse import study_of
        from dtprof.analyse.scaling import scaling
        from dtprof.cli.printing import print_json, print_lines
        from dtprof.ingest import open_run

        found = scaling([study_of(open_run(path)) for path in args.runs])
        if args.json:
            print_json(document(found))
        else:
            print_lines(lambda width: lines(found, width))
        return 0


def document(found: Scaling) -> dict[str, Any]:
    """The same as one document; times in ns."""
    return {
        "schema": 1,
        "kind": found.kind,
        "unit": found.unit,
        "sizes": [
            {
                **asdict(row.size),
                "efficiency": row.efficiency,
                "speedup": row.speedup,
                "lost": dict(row.lost),
                "eater": row.eater,
            }
            for row in found.rows
        ],
        "notes": list(found.notes),
    }


def lines(found: Scaling, width: int) -> Iterable[str | Text]:
    """The headline, a table over the sizes, the notes."""
    from dtprof.numbers import Scale, fixed, percent
    from dtprof.report.palette import PARTS
    from dtprof.report.text_layout import Column, table

    last, first = found.rows[-1], found.rows[0]
    ate = f"; most of the loss is {PARTS[last.eater].label}" if last.eater and last.efficiency < 0.995 else ""
    yield (
        f"{found.kind} scaling from {first.size.ranks} to {last.size.ranks} ranks: efficiency {percent(last.efficiency)}, "
        f"speed-up {fixed(last.speedup, 2)} of {fixed(last.size.ranks / first.size.ranks, 2)}{ate}"
    )
    yield ""
    scale = Scale.of(row.size.step_ns for row in found.rows)
    shown = [k for k in first.lost if any(abs(row.lost[k]) >= _LEAST for row in found.rows)]
    columns = [
        Column("ranks", [str(row.size.ranks) for row in found.rows]),
        Column(f"{found.unit} per step", [f"{row.size.work:,.0f}" for row in found.rows]),
        Column(f"step, {scale.unit}", [scale.text(row.size.step_ns) for row in found.rows]),
        Column("efficiency", [percent(row.efficiency) for row in found.rows]),
        Column("speed-up", [fixed(row.speedup, 2) for row in found.rows]),
        *(
            Column(f"lost to {PARTS[k].label}", [percent(row.lost[k]) for row in found.rows], goes=1 + i)
            for i, k in enumerate(shown)
        ),
    ]
    yield from table(columns, width)
    yield ""
    yield "Lost: share of the rank-time at that size that a category takes more per unit of work (negative: less)."
    for note in found.notes:
        yield f"· {note}"
