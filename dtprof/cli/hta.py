"""``dtprof hta PATH``: Holistic Trace Analysis's own analyses of the same traces, as a second opinion."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtprof.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.run import Run

INSTALL = "pip install 'dtprof[hta]'"
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
        found = ask(files, args.sequences, args.timeout)
        document = {"source": args.path, "traces": {str(r): f for r, f in sorted(files.items())}, **found}
        if args.json:
            print_json(document)
        else:
            print_lines(lambda width: lines(found, len(files), width))
        return 0


def traces(run: Run) -> dict[int, str]:
    """Rank -> trace file; one trace without a rank is rank 0."""
    root, found = Path(run.path), dict[int, str]()
    root = root if root.is_dir() else root.parent
    for part in run.parts:
        source = root / part.source
        inside = sorted(source.glob("trace*.json*")) if source.is_dir() else [source]
        file = next((f for f in inside if f.is_file() and ".json" in f.name), None)
        rank = 0 if part.rank is None and len(run.parts) == 1 else part.rank
        if file is not None and rank is not None:
            found.setdefault(rank, str(file))
    return found


def ask(files: dict[int, str], operator: str | None, timeout: float) -> dict[str, Any]:
    """What HTA says of these traces; InputError where it says nothing."""
    with tempfile.TemporaryDirectory(prefix="dtprof-hta-") as folder:
        child = Path(__file__).with_name("hta_child.py")
        pairs = [f"{rank}={path}" for rank, path in sorted(files.items())]
        words = [sys.executable, "-P", str(child), folder, operator or "-", *pairs]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(f"HTA did not end within {timeout:g} s", "give it longer (--timeout), or fewer traces") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(
            f"HTA ended with: {said[-1] if said else f'exit code {done.returncode}'}", "dtprof report reads the same files"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
