"""Which verb, with which arguments: verbs are found by name and imported only when they are used."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from dtprof.errors import PluginError
from dtprof.plugins import announced, load
from dtprof.protocols import Command

# built-in verbs: where they are and what they do, in words that need no import
BUILT_IN = {
    "run": ("dtprof.cli.run:RunCommand", "run a training command as it is, measured, and print the verdict"),
    "merge": ("dtprof.cli.merge:MergeCommand", "join what nodes without a shared disk wrote into one run"),
    "capture": ("dtprof.cli.capture:CaptureCommand", "profile a live run now: the same steps on all ranks"),
    "report": ("dtprof.cli.report:ReportCommand", "accounting, collectives and findings of a run or of a trace folder or file"),
    "whatif": (
        "dtprof.cli.whatif:WhatIfCommand",
        "what a change would make of the step, with an interval, or why that is not known",
    ),
    "plan": ("dtprof.cli.plan:PlanCommand", "which parallel layout fits and is fastest; predict published configurations"),
    "tune": ("dtprof.cli.tune:TuneCommand", "measure a command, apply the most promising edit, prove it in pairs"),
    "gate": ("dtprof.cli.gate:GateCommand", "is a command slower than another? paired, with a known false-alarm rate"),
    "verify": ("dtprof.cli.verify:VerifyCommand", "prove or refute a finding's edit by measuring pairs"),
    "check": ("dtprof.cli.check:CheckCommand", "a run against a stored baseline"),
    "baseline": ("dtprof.cli.baseline:BaselineCommand", "record, show or accept what dtprof check compares with"),
    "history": ("dtprof.cli.history:HistoryCommand", "where stored results changed, slow drift included"),
    "diff": (
        "dtprof.cli.diff:DiffCommand",
        "what moved between two runs: category, rank, phase, layer, kernel class, operation",
    ),
    "scaling": ("dtprof.cli.scaling:ScalingCommand", "the same job at several sizes: efficiency, and what ate the loss"),
    "hta": ("dtprof.cli.hta:HtaCommand", "what Holistic Trace Analysis says of the same traces, as a second opinion"),
    "export": ("dtprof.cli.export:ExportCommand", "a run in other tools' formats: Chrome JSON, Perfetto, Nsight Systems, CSV"),
    "doctor": ("dtprof.cli.doctor:DoctorCommand", "what can be measured here, what is missing, and how to get it"),
    "plugins": ("dtprof.cli.plugins:PluginsCommand", "what is installed, from where, and what is broken"),
}
# what contributed verbs of this distribution do; others are listed with their package
SUMMARIES = {
    "job": "a reference training job under torchrun, measured",
    "dashboard": "the web page of a run, or of a folder of runs, on loopback",
}


class UsageError(Exception):
    """A command line that makes no sense; the message is one line with the remedy."""


class Help(Exception):  # noqa: N818
    """The user asked for help and has it."""


class Parser(argparse.ArgumentParser):
    """argparse with our errors: one line that names what is wrong and where to look it up."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving with 2."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise instead of ending the process: only main does that."""
        raise Help


def parse(words: Sequence[str]) -> tuple[Command | None, argparse.Namespace]:
    """The verb and its arguments; (None, …) where help was asked for and has been printed.

    Of a verb with ``takes_command``, ``args.cmd`` is what stands after ``--``, word by word.
    """
    before = [w for w in words if w == "--debug"][: 1 if words[0] == "--debug" else 0]
    rest = list(words[len(before) :])
    if not rest:
        raise UsageError("no verb given; try dtprof report PATH, or dtprof --help")
    name = rest[0]
    if name.startswith("-"):
        raise UsageError(f"unknown option {name} before the verb; see dtprof --help")
    command = find_command(name)
    parser = Parser(prog=f"dtprof {name}", description=command.summary, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; messages go to stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    command.configure(parser)
    own, typed = rest[1:], None
    if getattr(command, "takes_command", False):
        end = own.index("--") if "--" in own else len(own)
        own, typed = own[:end], own[end + 1 :]
    try:
        args = parser.parse_args(own)
        if typed is not None:
            args.cmd = typed
        return command, args
    except Help:
        return None, argparse.Namespace()


def find_command(name: str) -> Command:
    """The command of that verb, imported now; UsageError where there is none, PluginError where it is broken."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name][0].partition(":")
        made: Command = getattr(import_module(module), attribute)()
        return made
    for entry in announced("commands"):
        if entry.name == name:
            plugin = load(entry, "commands")
            if plugin.error:
                raise PluginError(
                    f"the verb {name} of {plugin.package} cannot be loaded ({plugin.error})", "see dtprof plugins"
                )
            command: Command = plugin.value()
            return command
    verbs = sorted({*BUILT_IN, *(e.name for e in announced("commands"))})
    near = difflib.get_close_matches(name, verbs, 1)
    guess = f"did you mean {near[0]}?" if near else f"verbs are {', '.join(verbs)}"
    raise UsageError(f"unknown verb {name!r}; {guess}")


def help_text() -> str:
    """The list of verbs, without importing any of them."""
    verbs = {name: summary for name, (_, summary) in BUILT_IN.items()}
    for entry in announced("commands"):
        package = entry.dist.name if entry.dist else "another package"
        verbs.setdefault(entry.name, SUMMARIES.get(entry.name, f"contributed by {package}"))
    wide = max(map(len, verbs)) + 2
    lines = [f"  {name:{wide}}{summary}" for name, summary in verbs.items()]
    return "\n".join([
        "usage: dtprof VERB …    dtprof VERB --help    dtprof --version",
        "",
        "Profiling and diagnostics for distributed PyTorch training.",
        "",
        *lines,
        "",
        "Every verb takes --json and --help. Exit codes: 0 done, 1 a check failed, 2 inconclusive,",
        "3 bad input or usage, 4 something needed is not installed.",
        "",
    ])  # fmt: skip
