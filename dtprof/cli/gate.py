"""``dtprof gate``: is the candidate slower than the baseline? Interleaved pairs, a known false-alarm rate, the cause."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.cli.shares import add_outputs, level, share, write_outputs
from dtprof.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from dtprof.check.result import Result
    from dtprof.launch.pairs import Pairs, Side
    from dtprof.launch.trial import Plan, Trial


class GateCommand:
    """The verb ``gate``."""

    name = "gate"
    summary = "Is a command slower than another? Interleaved pairs: exit 0 passed, 1 slower, 2 inconclusive."

    takes_command = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("--baseline-cmd", metavar="CMD", help="the command as it was, as a shell takes it")
        parser.add_argument("--candidate-cmd", metavar="CMD", help="the command as it is now")
        parser.add_argument(
            "--set", action="append", metavar="KEY=VALUE", help="the candidate is the baseline with this edit; CMD after --"
        )
        parser.add_argument("--aa", action="store_true", help="measure the baseline against itself: what this machine can see")
        add_budget(parser, margin=0.02, allows="a longer step that is allowed", chance="chance of a false failure")
        parser.add_argument("--detect", type=share, metavar="5%", help="stop early where the noise does not let this be seen")
        parser.add_argument("--no-confirm", action="store_true", help="a failure need not repeat")
        parser.add_argument("--no-cause", action="store_true", help="do not trace a run of each side after a failure")
        add_outputs(parser)
        parser.epilog = (
            "The command stands after --: dtprof gate --set ddp.bucket_cap_mb=50 -- torchrun --nproc_per_node=2 train.py"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Measure, decide, name the cause."""
        from dtprof.cli.printing import print_json, print_lines

        result = measured_gate(args, *sides_of(args))
        write_outputs(result, args)
        if args.json:
            print_json(result.to_document())
        else:
            print_lines(lambda width: lines(result, width))
        return result.exit_code


def add_budget(parser: argparse.ArgumentParser, *, margin: float, allows: str, chance: str) -> None:
    """How much is measured, and how: shared by ``gate`` and ``verify``, which say what margin and level are to them."""
    usual = f"{100 * margin:g}%"
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of runs at most (20)")
    parser.add_argument("--minutes", type=float, metavar="M", help="as many pairs as fit, the repetition of a failure included")
    parser.add_argument("--margin", type=share, default=margin, metavar=usual, help=f"{allows} ({usual}%)")
    parser.add_argument("--alpha", type=level, default=0.01, metavar="1%", help=f"{chance} (1%%)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each run that count (all that both have)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="N", help="first steps of each run that do not (3)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a run that takes longer")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order inside the pairs (0)")
    parser.add_argument("--out", metavar="DIR", help="keep all runs there (a temporary folder that is removed)")


def check_budget(args: argparse.Namespace) -> None:
    """InputError for numbers that make no sense."""
    if args.pairs is not None and args.minutes is not None:
        raise InputError("--pairs and --minutes are both given", "give one of them")
    for name, least in (("pairs", 1), ("steps", 1), ("warm_up", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} {value} is too small", f"give {least} or more")
    for name in ("minutes", "timeout"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"--{name} {value:g} is no length of time", "give a number above 0")


def sides_of(args: argparse.Namespace) -> tuple[Side, Side]:
    """Baseline and candidate, from whichever way they were given."""
    from dtprof.edits import parse_edits
    from dtprof.launch.pairs import Side

    edits = parse_edits(args.set or ())
    if args.cmd and args.baseline_cmd is not None:
        raise InputError("both --baseline-cmd and a command after -- are given", "give one of them")
    if args.cmd:
        baseline = Side.of("baseline", args.cmd)
    elif args.baseline_cmd is not None and args.baseline_cmd.strip():
        baseline = Side("baseline", args.baseline_cmd)
    else:
        raise InputError("no baseline command", "give --baseline-cmd CMD --candidate-cmd CMD, or --set KEY=VALUE -- CMD")
    ways = [args.candidate_cmd is not None, bool(edits), args.aa]
    if sum(ways) != 1:
        raise InputError(
            "no candidate" if not any(ways) else "several candidates",
            "give one of --candidate-cmd CMD, --set KEY=VALUE and --aa",
        )
    if args.candidate_cmd is not None and not args.candidate_cmd.strip():
        raise InputError("--candidate-cmd is empty", "give the command as a shell takes it")
    for edit in edits:
        if not edit.at_construction:
            raise InputError(
                f"--set {edit}: {edit.key} cannot be applied to a running script",
                "give two commands, or predict it: dtprof whatif",
            )
    command = args.candidate_cmd if args.candidate_cmd is not None else baseline.command
    return baseline, Side("candidate", command, edits)


def plan_of(args: argparse.Namespace, *, confirm: bool, early: bool, direction: int = 1) -> Plan:
    """The plan of a trial, checked."""
    from dtprof.launch.trial import Plan

    plan = Plan(
        pairs=20 if args.pairs is None else args.pairs,
        minutes=args.minutes,
        margin=args.margin,
        alpha=args.alpha,
        detect=getattr(args, "detect", None),
        confirm=confirm,
        early=early,
        direction=direction,
    )
    plan.check()
    return plan


def measured_gate(args: argparse.Namespace, baseline: Side, candidate: Side) -> Result:
    """Run the pairs in a folder of their own."""
    from dtprof.check.gate import aa_result, cause_of, gate_result

    check_budget(args)
    plan = plan_of(args, confirm=not (args.no_confirm or args.aa), early=not args.aa)
    with work_folder(args.out) as folder:
        trial, pairs = paired(args, (baseline, candidate), plan, folder)
        if args.aa:
            return aa_result(trial, pairs.done, title="dtprof gate --aa")
        cause = cause_of(pairs) if trial.outcome == "fail" and not args.no_cause else None
        whole = not pairs.done[-1].steps
        return gate_result(trial, pairs.done, title="dtprof gate", cause=cause, whole=whole)


def paired(args: argparse.Namespace, sides: tuple[Side, Side], plan: Plan, folder: Path) -> tuple[Trial, Pairs]:
    """Measure; a command that fails shows its last lines on stderr before the error."""
    from dtprof.launch.pairs import CommandFailed, Pairs, Protocol
    from dtprof.launch.trial import run_trial

    protocol = Protocol(folder, args.steps, args.warm_up, args.timeout, args.seed)
    pairs = Pairs(sides, protocol)
    try:
        return run_trial(pairs.measure, plan, lambda text: say(text)), pairs
    except CommandFailed as failed:
        show_tail(failed.tail)
        raise


def show_tail(tail: Iterable[str]) -> None:
    """The last lines of a command that failed."""
    for line in tail:
        sys.stderr.write(f"  {line}\n")


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(f"dtprof: {text}\n")
    sys.stderr.flush()


@contextmanager
def work_folder(out: str | None) -> Iterator[Path]:
    """The folder of the runs: one that stays, or one that is removed."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="dtprof-pairs-") as name:
            yield Path(name)
        return
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise InputError(f"{out}: cannot be a folder of runs ({error.strerror or error})", "give another --out") from error
    if occupied:
        raise InputError(f"{out}: not empty", "give an --out that is new, so that no older run is read")
    yield folder


def lines(result: Result, width: int) -> Iterable[str | Text]:
    """The first line and the notes."""
    yield result.headline
    yield from (f"· {note}" for note in result.notes)
