"""``dtprof run -- CMD``: a training command as it is, measured, and the verdict on it."""

from __future__ import annotations

import argparse
import itertools
import json as json_module
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtprof.cli.output import until_reader_leaves
from dtprof.edits import Edit, parse_edits
from dtprof.launch import Launch, Outcome, nsys, reach, run_launch
from dtprof.launch.construct import target_of
from dtprof.plugins import announced, attempt
from dtprof.session.identity import identify, run_key
from dtprof.session.launched import RUN_ID_FILE


class RunCommand:
    """The verb ``run``."""

    name = "run"
    summary = "Run a training command as it is, measured, and print the verdict. Its exit code is the command's own."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("--out", metavar="RUN", help="folder of the run (runs/0001, 0002, …)")
        parser.add_argument("--capture", metavar="A:B", help="trace steps A to B - 1 (5:8), or none", default=argparse.SUPPRESS)
        parser.add_argument(
            "--set", metavar="KEY=VALUE", action="append", default=[], help="change an argument where the script constructs it"
        )
        parser.add_argument("--collectors", metavar="A,B", help="only these collectors (all that are installed)")
        parser.add_argument("--anomaly", action="store_true", help="also trace a few steps after one that is unusually slow")
        parser.add_argument(
            "--nsys", action="store_true", help="under Nsight Systems; its report, in RUN/nsys, takes the place of our trace"
        )
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD…", help="the command and its arguments")

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; whatever becomes of the measurement, the code is the command's own."""
        if args.nsys:
            nsys.find()
        launch = _launch(args)
        launch.check()
        if doubt := reach.warning(launch.command):
            _say(doubt)
        stdout = sys.stderr.fileno() if args.json else None
        outcome, missing = _under_nsys(launch, stdout) if args.nsys else (run_launch(launch, stdout=stdout), "")
        found = _judge(launch, outcome, [missing] if missing else [])
        if not args.json and identify().rank > 0:
            return outcome.code
        # a fault of the report must not take the place of the job's exit code
        _, problem = attempt(lambda: _print(launch, found, args.json))
        if problem:
            _say(f"{problem}; see dtprof report {launch.out} --debug")
            if args.json:
                _write({"schema": 1, "run": {**found, "problems": [*found["problems"], problem]}})
        return outcome.code


def _launch(args: argparse.Namespace) -> Launch:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    given = tuple(key for key in ("capture", "collectors") if getattr(args, key, None) is not None)
    capture = getattr(args, "capture", "5:8")
    names = None if args.collectors is None else [name for name in args.collectors.split(",") if name and name != "none"]
    launch = Launch(
        command, Path(args.out or "."), capture=None if capture in ("none", "") else capture, edits=parse_edits(args.set),
        collectors=names, given=given, anomaly=args.anomaly,
    )  # fmt: skip
    launch.check()
    if args.out:
        return launch
    # started by a launcher as one of its ranks, it must come to the same folder as the others
    return launch.at(_folder_of_all() if identify().world_size > 1 else next_folder())


def _folder_of_all() -> Path:
    return Path("runs") / re.sub(r"[^\w.-]+", "-", run_key())


def next_folder(base: str = "runs") -> Path:
    """A new folder runs/NNNN, below the temporary folder where the current one cannot be written."""
    for root in (Path(base), Path(tempfile.gettempdir()) / f"dtprof-{os.getuid()}" / base):
        try:
            root.mkdir(parents=True, exist_ok=True)
            last = max((int(p.name) for p in root.iterdir() if re.fullmatch(r"\d{4,}", p.name)), default=0)
            for number in itertools.count(last + 1):
                try:
                    (root / f"{number:04d}").mkdir()
                except FileExistsError:
                    continue
                if root != Path(base):
                    _say(f"{Path(base).absolute()} cannot be written; recording in {root / f'{number:04d}'}")
                return root / f"{number:04d}"
        except OSError:
            continue
    return Path(base) / "0001"


def _under_nsys(launch: Launch, stdout: int | None) -> tuple[Outcome, str]:
    """Run the command under nsys; returns also what is wrong with its reports, or ""."""
    found = nsys.find()
    if doubt := nsys.doubt(found):
        _say(doubt)
    folder, gpu = nsys.folder_of(launch.out), nsys.has_gpu()
    capture = gpu and launch.capture is not None
    words = nsys.command_line(found, launch.command, folder, os.environ, gpu=gpu, capture=capture)
    profiled = replace(
        launch, command=words, collectors=nsys.collectors(launch.collectors, [e.name for e in announced("collectors")]),
        given=(*launch.given, "collectors"), env={**launch.env, **({nsys.CAPTURE_VARIABLE: "1"} if capture else {})},
    )  # fmt: skip
    outcome = run_launch(profiled, stdout=stdout)
    missing = nsys.verdict(found, folder, any(launch.out.glob("part[0-9]*/part.json")))
    if not missing:
        _say(f"nsys recorded it in {', '.join(map(str, nsys.reports(folder)))}: dtprof report {folder}")
    return outcome, missing


def _judge(launch: Launch, outcome: Outcome, also: list[str]) -> dict[str, Any]:
    """Say what the user must know beside the verdict (and ``also``); returns it for the document, too."""
    # removed at the start, and left there by every process that begins to measure
    recorded = (launch.out / RUN_ID_FILE).exists() and any(launch.out.glob("part[0-9]*/part.json"))
    problems = [*([outcome.problem] if outcome.problem else []), *also]
    if not recorded and outcome.code not in (126, 127):
        if outcome.told("session"):
            problems.append(f"nothing could be written to {launch.out}; see the job's lines that begin with dtprof")
        else:
            problems.append(f"nothing was measured: {reach.why_nothing(outcome, launch.command)}")
    problems += [f"--set {text}" for text in outcome.told("edit failed")]
    if outcome.told("python") and outcome.code not in (126, 127):
        problems += [
            f"--set {edit} was applied to nothing: no {target_of(edit)} was constructed" for edit in _idle(launch, outcome)
        ]
    if conflicts := outcome.told("conflict"):
        more = f" (and {len(conflicts) - 1} more like it)" if len(conflicts) > 1 else ""
        problems.append(f"variables disagree on the rank: {conflicts[0]}{more}")
    for problem in problems:
        _say(problem)
    applied = outcome.told("edit")
    for text in applied:
        _say(f"--set {text}")
    return {"path": str(launch.out), "exit_code": outcome.code, "recorded": recorded, "edits": applied, "problems": problems}


def _idle(launch: Launch, outcome: Outcome) -> list[Edit]:
    """Edits that no process of this machine has applied or tried to."""
    told = [*outcome.told("edit"), *outcome.told("edit failed")]
    return [edit for edit in launch.edits if not any(text.startswith(f"{edit}:") for text in told)]


def _print(launch: Launch, found: dict[str, Any], as_json: bool) -> None:
    """The verdict, or one JSON document; nothing where nothing was recorded, but still a document."""
    from dtprof.cli.report import read

    if not found["recorded"]:
        if as_json:
            _write({"schema": 1, "run": found})
        return
    facts = read(str(launch.out))
    if as_json:
        from dtprof.report.document import document_of

        _write({**document_of(facts), "run": found})
        return
    from rich.console import Console

    from dtprof.report.text import dark_terminal, render

    console = Console(highlight=False)
    colour = console.color_system in ("256", "truecolor") and not console.no_color
    with until_reader_leaves():
        for line in itertools.takewhile(lambda line: line.plain, render(facts, console.width, colour, dark_terminal())):
            console.print(line, soft_wrap=True)
        console.print(f"{'':9}the rest: dtprof report {launch.out}", soft_wrap=True)


def _write(document: dict[str, Any]) -> None:
    with until_reader_leaves():
        sys.stdout.write(json_module.dumps(document, allow_nan=False, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"dtprof: {' '.join(text.split())}\n")
