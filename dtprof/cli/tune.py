"""``dtprof tune -- CMD…``: measure a command, take the edit that is predicted to gain most, and prove it in pairs."""

from __future__ import annotations

import argparse
import re
import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.advise.verify import VerdictRow
    from dtprof.findings import Finding

_UNITS = {"s": 1 / 60, "m": 1.0, "h": 60.0}
# of what is left of the budget for pairs; below this many minutes none are begun
_LEAST_MINUTES = 0.2


class TuneCommand:
    """The verb ``tune``."""

    name = "tune"
    summary = "Measure a command, apply the edit that is predicted to gain most, and prove it in pairs."
    takes_command = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "--budget", type=minutes, metavar="10m", help="time for everything, as 90s, 10m or 1h (10m)", default=10.0
        )
        parser.add_argument("--out", metavar="RUN", help="folder of the measured run (runs/0001, 0002, …)")
        parser.epilog = "The command stands after --: dtprof tune -- torchrun --nproc_per_node=2 train.py"

    def run(self, args: argparse.Namespace) -> int:
        """Exit 0 confirmed or nothing to gain, 1 refuted, 2 inconclusive; a command that fails ends 3."""
        from dtprof.advise.verify import EXIT

        began = clock.monotonic()
        out = measured(args)
        finding = best(out)
        row = None
        if finding is not None:
            _say(f"trying {_edit(finding)}: {finding.title}")
            row = proved(out, finding, args.cmd, args.budget - (clock.monotonic() - began) / 60)
        tell(out, finding, row, args.json)
        return 0 if row is None else EXIT[row.outcome]


def minutes(text: str) -> float:
    """Minutes of ``90s``, ``10m`` or ``1h``; an argparse type."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write 90s, 10m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def measured(args: argparse.Namespace) -> Path:
    """Run the command once, captured; its run folder. InputError where it fails or records nothing."""
    from dtprof.cli.run import next_folder
    from dtprof.launch import Launch, run_launch

    if not args.cmd:
        raise InputError("no command", "write it after --, as in: dtprof tune -- torchrun --nproc_per_node=2 train.py")
    out = Path(args.out) if args.out else next_folder()
    outcome = run_launch(Launch(args.cmd, out, capture="5:15"), stdout=2)
    if outcome.code:
        why = outcome.problem or f"it ended with {outcome.code}"
        raise InputError(f"the command failed: {why}", "it must run to its end before it can be tuned")
    if not any(out.glob("part[0-9]*/part.json")):
        raise InputError(f"{out}: nothing was measured", "see dtprof run --help for what can be followed")
    return out


def best(out: Path) -> Finding | None:
    """The finding whose edit can be applied to a running script and is predicted to save most; None where there is none."""
    from dtprof.advise import findings
    from dtprof.analyse import study_of
    from dtprof.edits import edits_of
    from dtprof.ingest import open_run

    able = [
        f
        for f in findings(study_of(open_run(out)))
        if f.edit and f.prediction and f.prediction.low > 0 and all(e.at_construction for e in edits_of(f.edit))
    ]
    return max(able, key=lambda f: f.prediction.seconds_per_step if f.prediction else 0.0, default=None)


def proved(out: Path, finding: Finding, command: list[str], left: float) -> VerdictRow | None:
    """The verdict of pairs with and without the edit, kept with the run; None where the budget is used up."""
    from dtprof.advise.verify import keep
    from dtprof.cli.verify import verified

    if left < _LEAST_MINUTES:
        _say("the budget is used up before the first pair; give more with --budget")
        return None
    args = argparse.Namespace(
        path=str(out), rule=finding.rule, set=None, pairs=None, minutes=left, margin=0.01, alpha=0.01, steps=None, warm_up=3,
        timeout=None, seed=0, out=None, cmd=command, json=True,
    )  # fmt: skip
    row = verified(args)
    keep(out, row)
    return row


def tell(out: Path, finding: Finding | None, row: VerdictRow | None, json: bool) -> None:
    """What was tried and what came of it."""
    import msgspec

    from dtprof.cli.printing import print_json, print_lines

    if json:
        edit: dict[str, Any] | None = None if finding is None else finding.edit
        verdict = None if row is None else msgspec.to_builtins(row)
        rule = None if finding is None else finding.rule
        print_json({"schema": 1, "run": str(out), "rule": rule, "edit": edit, "verdict": verdict})
        return
    if finding is None:
        told = [f"NOTHING TO TRY: no edit that a launcher can apply is predicted to shorten the step; see dtprof report {out}"]
    elif row is None:
        told = [f"NOT PROVED: {_edit(finding)}; see dtprof report {out}"]
    else:
        told = [row.text, f"apply it: {finding.apply}" if row.outcome == "confirmed" else f"the run: {out}"]
    print_lines(lambda _: told)


def _edit(finding: Finding) -> str:
    return ", ".join(f"{key}={value}" for key, value in (finding.edit or {}).items())


def _say(text: str) -> None:
    sys.stderr.write(f"dtprof: {text}\n")
