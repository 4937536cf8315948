"""``dtprof verify RUN --rule ID | --set KEY=VALUE -- CMD…``: apply, measure pairs, decide, keep the verdict."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.advise.verify import VerdictRow
    from dtprof.edits import Edit
    from dtprof.findings import Finding, Prediction


class VerifyCommand:
    """The verb ``verify``."""

    name = "verify"
    summary = "Prove or refute a finding's edit by measuring: exit 0 confirmed, 1 refuted, 2 inconclusive."

    takes_command = True

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        from dtprof.cli.gate import add_budget

        parser.add_argument("path", metavar="RUN", help="the recorded run; the verdict is appended to its verdicts.jsonl")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--rule", metavar="ID", help="a rule that found something in RUN, such as ddp.buckets")
        what.add_argument("--set", action="append", metavar="KEY=VALUE", help="an edit; may be given several times")
        add_budget(parser, margin=0.01, allows="the least saving that confirms", chance="chance of a false verdict")
        parser.epilog = (
            "The command stands after --: dtprof verify RUN --rule ddp.buckets -- torchrun --nproc_per_node=2 train.py"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Measure and decide; the verdict is kept before it is printed."""
        import msgspec

        from dtprof.advise.verify import EXIT, keep
        from dtprof.cli.printing import print_json, print_lines

        row = verified(args)
        keep(Path(args.path), row)
        if args.json:
            print_json(msgspec.to_builtins(row))
        else:
            print_lines(lambda _: [row.text, f"kept in {args.path}/verdicts.jsonl"])
        return EXIT[row.outcome]


def verified(args: argparse.Namespace) -> VerdictRow:
    """Find the edit, then measure with it and without, or, where there is none, again."""
    from dtprof.advise.verify import measure_again, verdict_of
    from dtprof.cli.gate import check_budget, paired, plan_of, show_tail, work_folder
    from dtprof.launch.pairs import CommandFailed, Protocol, Side

    check_budget(args)
    if not args.cmd:
        raise InputError("no command", "write it after --: dtprof verify RUN --rule ID -- torchrun … train.py")
    finding, edits, prediction = wanted(args)
    base = Side.of("unchanged", args.cmd)
    if not edits and finding is not None:
        with work_folder(args.out) as folder:
            protocol = Protocol(folder, args.steps, args.warm_up, args.timeout, args.seed)
            try:
                return measure_again(
                    Path(args.path),
                    base,
                    protocol,
                    times=args.pairs or 5,
                    margin=args.margin,
                    alpha=args.alpha,
                    finding=finding,
                )
            except CommandFailed as failed:
                show_tail(failed.tail)
                raise
    plan = plan_of(args, confirm=False, early=True, direction=-1)
    with work_folder(args.out) as folder:
        trial, pairs = paired(args, (base, Side("edited", base.command, edits)), plan, folder)
    return verdict_of(trial, pairs.done, args.cmd, rule=args.rule, edits=edits, prediction=prediction)


def wanted(args: argparse.Namespace) -> tuple[Finding | None, tuple[Edit, ...], Prediction | None]:
    """The finding of ``--rule``, the edits to apply, () where the finding has none, and what they are predicted to save."""
    from dtprof.advise import findings
    from dtprof.advise.predicted import outcome
    from dtprof.analyse import study_of
    from dtprof.edits import edits_of, parse_edits
    from dtprof.ingest import open_run

    run = open_run(args.path)
    if not (Path(args.path) / "manifest.json").exists():
        raise InputError(f"{args.path}: not a run directory of dtprof", "verify a run that was recorded: dtprof run -- CMD")
    finding = None
    edits = parse_edits(args.set or ())
    if args.rule is not None:
        found = findings(study_of(run))
        finding = next((f for f in found if f.rule == args.rule), None)
        if finding is None:
            names = ", ".join(dict.fromkeys(f.rule for f in found))
            raise InputError(
                f"{args.path}: the rule {args.rule} found nothing in it",
                f"it has findings of {names}" if found else "it has no findings; name an edit with --set",
            )
        edits = edits_of(finding.edit or {})
    for edit in edits:
        if not edit.at_construction:
            raise InputError(
                f"{edit}: cannot be applied to a running script", "change the script, then: dtprof gate with two commands"
            )
    if finding is not None:
        return finding, edits, finding.prediction
    predicted = outcome(run, edits)
    return None, edits, predicted.saving() if predicted is not None else None
