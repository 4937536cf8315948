"""``dtprof hta PATH``: Holistic Trace Analysis's own analyses of the same traces, as a second opinion."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dtprof.errors import InputError, MissingExtra
from dtprof.launch.hta import INSTALL, ask, traces

if TYPE_CHECKING:
    from rich.text import Text

TITLES = {
    "queue_length": "operations that wait on each stream (queue length)",
    "launches": "launches by rank, as HTA counts them",
    "critical_path": "what bounds the critical path of the first step, %",
    "sequences": "sequences of kernels that repeat",
}
HABITS = (
    "HTA rounds to whole microseconds, leaves out device operations whose launch is not in the file, and knows "
    "communication by "
    "the names of NCCL kernels alone."
)


class HtaCommand:
    """The verb ``hta``."""

    name = "hta"
    summary = "Holistic Trace Analysis's own analyses of the same traces: queue length, launches, critical path, sequences."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("path", metavar="PATH", help="a run directory, a trace file, or a folder of traces")
        parser.add_argument(
            "--sequences",
            metavar="OPERATOR",
            help="also look for frequent kernel sequences below an operator, as aten::linear (slow)",
        )
        parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="give HTA so long (600)")

    def run(self, args: argparse.Namespace) -> int:
        """Ask HTA in a process of its own and print what it says."""
        from dtprof.cli.printing import print_json, print_lines
        from dtprof.ingest import open_run

        if find_spec("hta") is None:
            raise MissingExtra("Holistic Trace Analysis is not installed", INSTALL)
        if not args.timeout > 0:
            raise InputError(f"--timeout {args.timeout:g} is no time to wait", "give seconds above 0")
        files = traces(open_run(args.path))
        if not files:
            raise InputError(
                f"{args.path}: nothing that HTA can read",
                "it needs torch.profiler traces with a rank each; an nsys report is none",
            )
        found = ask(files, "analyses", args.timeout, args.sequences)
        document = {"source": args.path, "traces": {str(r): f for r, f in sorted(files.items())}, **found}
        if args.json:
            print_json(document)
        else:
            print_lines(lambda width: lines(found, len(files), width))
        return 0


def lines(found: dict[str, Any], count: int, width: int) -> Iterator[str | Text]:
    """A table for each analysis, or why there is none."""
    from dtprof.numbers import counted
    from dtprof.report.text_layout import Column, table

    yield f"Holistic Trace Analysis of {counted(count, 'trace')}"
    for name, told in found.items():
        yield ""
        yield TITLES[name]
        rows = told.get("rows")
        if not rows:
            yield f"  nothing: {told.get('error', 'HTA found none')}"
            continue
        columns = [
            Column(head.replace("_", " "), [_cell(row[head]) for row in rows], right=not isinstance(rows[0][head], str),
                   flexible=head == "pattern")
            for head in rows[0]
        ]  # fmt: skip
        yield from table(columns, width)
    yield ""
    yield HABITS


def _cell(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
