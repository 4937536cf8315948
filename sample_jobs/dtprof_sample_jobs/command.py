"""``dtprof job``: run a reference job under torchrun, measured, and print the verdict on it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dtprof.errors import DtprofError, InputError, MissingExtra
from dtprof_sample_jobs import JOBS
from dtprof_sample_jobs.lab.processes import run_ranks
from dtprof_sample_jobs.lab.spec import LAB, LabSpec, lab_for

FLIGHT_RECORDER_ENTRIES = "5000"


class JobCommand:
    """The verb ``job``. What stands before NAME is the verb's; after it, the verb's and the job's may be mixed."""

    name = "job"
    summary = "A reference training job under torchrun, measured."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.epilog = f"Jobs: {', '.join(JOBS)}. Options of a job: dtprof job NAME --help."
        _own_options(parser)
        parser.add_argument("--out", metavar="RUN", help="folder of the run (runs/NAME-<time>)")
        parser.add_argument("--inject", action="append", metavar="FAULT", help="plant a fault, as slow_rank=1:20ms")
        parser.add_argument("name", nargs="?", metavar="NAME", help="which job")
        parser.add_argument("options", nargs=argparse.REMAINDER, metavar="…", help="options of the job, such as --inject FAULT")

    def run(self, args: argparse.Namespace) -> int:
        """List the jobs, or run one; ends with its exit code."""
        own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        _own_options(own)
        own.add_argument("--json", action="store_true")
        late, words = _parse(own, args.options)
        as_json = args.json or late.json
        if args.list or late.list:
            return _list_jobs(as_json)
        if args.name is None:
            raise InputError("no job named", f"jobs are {', '.join(JOBS)}")
        ranks = next((n for n in (late.ranks, args.ranks) if n is not None), 2)
        if ranks < 1:
            raise InputError(f"--ranks {ranks} is no number of processes", "give 1 or more")
        early = [("--out", args.out)] if args.out else []
        early += [("--inject", text) for text in args.inject or ()]
        words = [word for pair in early for word in pair] + words
        if "-h" in words or "--help" in words:
            _parser(args.name).print_help()
            return 0
        lab = args.lab if late.lab is None else late.lab
        with _told_of(lab):
            job = _job_options(args.name, words, ranks)
            network = None if lab is None else lab_for(lab, ranks, job.inject)
            out = job.out or f"runs/{args.name}-{time.strftime('%Y%m%d-%H%M%S')}"
            launcher: list[str] = getattr(_module(args.name), "torchrun_options", lambda _: [])(job)
            code = _launch(args.name, ranks, [*words, "--out", out], launcher, to_stderr=as_json, network=network)
        return code if job.no_dtprof else _report(out, code, as_json)


@contextlib.contextmanager
def _told_of(lab: str | None) -> Iterator[None]:
    """The checks and the ranks learn from the environment that there is a lab, or none."""
    before = os.environ.pop(LAB, None)
    os.environ |= {} if lab is None else {LAB: lab}
    try:
        yield
    finally:
        os.environ.pop(LAB, None)
        os.environ |= {} if before is None else {LAB: before}


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="list the jobs and their options")
    parser.add_argument("--ranks", type=int, metavar="N", help="processes to start on this machine (2)")
    parser.add_argument(
        "--lab", metavar="SPEC", help="in a network lab: rate=1gbit,rtt=2ms,cpu=50%%,rate.1=200mbit (docs/lab.md)"
    )


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Known arguments and the rest; argparse's own complaint becomes an InputError of one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parser.parse_known_args(words)
    except SystemExit:
        text = complaint.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise InputError(text or "these options make no sense", "see dtprof job NAME --help") from None


def _module(name: str) -> Any:
    if name not in JOBS:
        raise InputError(f"no job named {name!r}", f"jobs are {', '.join(JOBS)}")
    try:
        return import_module(JOBS[name])
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "torch":
            raise
        raise MissingExtra("sample jobs need torch, which is not installed", "pip install 'dtprof[torch]'") from missing


def _parser(name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _module(name).parser()
    return parser


def _job_options(name: str, words: list[str], ranks: int) -> argparse.Namespace:
    """The options, checked by the job as far as it can before there is a process."""
    options, unknown = _parse(_parser(name), words)
    if unknown:
        raise InputError(f"the job {name} has no option {unknown[0]}", f"see dtprof job {name} --help")
    from dtprof_sample_jobs.common.options import check_common

    getattr(_module(name), "check", check_common)(options, ranks)
    return options


def _list_jobs(as_json: bool) -> int:
    jobs: list[dict[str, Any]] = []
    for name in JOBS:
        parser = _parser(name)
        # argparse has no public list of a parser's options
        options = [
            {"option": action.option_strings[-1], "help": action.help, "default": action.default}
            for action in parser._actions
            if action.option_strings and action.dest != "help"
        ]
        jobs.append({"name": name, "summary": " ".join((parser.description or "").split()), "options": options})
    if as_json:
        print(json.dumps({"jobs": jobs}, indent=1))
        return 0
    for job in jobs:
        print(f"{job['name']}: {job['summary']}")
        for option in job["options"]:
            print(f"  {option['option']:28}{option['help']}")
    return 0


def _launch(
    name: str, ranks: int, words: list[str], launcher: list[str], *, to_stderr: bool, network: LabSpec | None = None
) -> int:
    """Run the job in a lab, or under torchrun with a rendezvous on a free loopback port; its exit code as a shell has it."""
    run_id = uuid.uuid4().hex[:12]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", run_id, "--local-addr", "127.0.0.1",
        *launcher, "-m", JOBS[name], *words,
    ]  # fmt: skip
    environment = {
        "TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDER_ENTRIES,
        "OMP_NUM_THREADS": "1",
        "DTPROF_RUN_ID": run_id,
        "KINETO_LOG_LEVEL": "99",
    }
    if any(interface == "lo" for _, interface in socket.if_nameindex()):
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    stdout = sys.stderr.fileno() if to_stderr else None
    if network is not None:
        return run_ranks(network, [sys.executable, "-m", JOBS[name], *words], {**environment, **os.environ}, stdout=stdout)
    process = subprocess.Popen(command, stdout=stdout, env={**environment, **os.environ})
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    return code if code >= 0 else 128 - code


def _report(out: str, code: int, as_json: bool) -> int:
    """Print the verdict; a job that failed keeps its own exit code whatever can be said of the run."""
    if not (Path(out) / "manifest.json").exists():
        print(f"dtprof: the job recorded nothing in {out}", file=sys.stderr)
        return code
    from dtprof.cli.report import print_report

    try:
        print_report(out, json=as_json)
    except DtprofError as error:
        if code == 0:
            raise
        print(f"dtprof: {error}", file=sys.stderr)
    return code
