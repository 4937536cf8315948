"""Starting a user's own command measured: ``run_command(Launch(command, out))``.

The command is started as it is. What makes it measured is in its environment: a folder in front of PYTHONPATH whose
``sitecustomize`` follows the import of torch (``site/``), and the plan (``dtprof.session.launched``). In the processes of
the job, ``follow`` finds the steps and begins the session; the processes that never step an optimizer are left alone.

``run_launch`` also tells what the processes said of themselves: which were measured, and which edits took effect.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dtprof.edits import Edit, as_mapping
from dtprof.errors import InputError
from dtprof.launch.process import run_child
from dtprof.session.core import parse_capture
from dtprof.session.launched import RUN_ID_FILE, VARIABLE, Plan, new_run_id

SITE = Path(__file__).parent / "site"
# for the flight recorder, which names the collectives of a capture; and torch's profiler keeps its own log to itself
DEFAULTS = {"TORCH_FR_BUFFER_SIZE": "5000", "KINETO_LOG_LEVEL": "99"}


@dataclass(frozen=True)
class Launch:
    """A command and how it is to be measured.

    ``out`` is the run folder. ``capture`` is a window of steps or None, ``collectors`` names or None for all that are
    installed; ``given`` names those of the two that also replace what a script with a session of its own asks for.
    ``edits`` must be applicable at construction. ``env`` is added to the environment. ``measured`` False applies the
    edits and measures nothing; ``anomaly`` also captures after a step that is slow against its own history.
    """

    command: Sequence[str]
    out: Path
    capture: str | None = "5:8"
    edits: tuple[Edit, ...] = ()
    collectors: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    measured: bool = True
    anomaly: bool = False

    def at(self, out: Path) -> Launch:
        """The same into another folder."""
        return replace(self, out=out)

    def check(self) -> None:
        """InputError for an empty command, for a window that is none, and for an edit that cannot be applied."""
        if not self.command:
            raise InputError("no command", "write it after --, as in: dtprof run -- torchrun --nproc_per_node=2 train.py")
        parse_capture(self.capture)
        for edit in self.edits:
            if not edit.at_construction:
                raise InputError(
                    f"--set {edit}: {edit.key} cannot be applied to a running script", "it can be predicted: dtprof whatif"
                )


@dataclass(frozen=True)
class Outcome:
    """``code`` as a shell has it, ``problem`` (one line, or "") where the command was not run to its end, and ``notes``:
    (what, text) as the processes left them, in no order."""

    code: int
    problem: str
    notes: tuple[tuple[str, str], ...]

    def told(self, what: str) -> list[str]:
        """Texts of the notes of that kind, each once, sorted."""
        return sorted({text for kind, text in self.notes if kind == what})


def run_command(launch: Launch, *, stdout: int | None = None, timeout_s: float | None = None) -> int:
    """Run it and return the command's own exit code (128 + N where signal N ended it)."""
    return run_launch(launch, stdout=stdout, timeout_s=timeout_s).code


def run_launch(launch: Launch, *, stdout: int | None = None, timeout_s: float | None = None) -> Outcome:
    """Run the command to its end. ``stdout`` is a file descriptor that takes the place of ours; stdin and stderr are ours.

    InputError as ``Launch.check`` says, before anything is started; afterwards nothing of ours stops the command.
    """
    launch.check()
    with contextlib.suppress(OSError):
        (launch.out / RUN_ID_FILE).unlink(missing_ok=True)
    notes = _folder_for_notes()
    try:
        env = environment(launch, notes, dict(os.environ))
        code, problem = run_child(launch.command, env, stdout=stdout, timeout_s=timeout_s)
        return Outcome(code, problem, tuple(_read(notes)))
    finally:
        if notes:
            shutil.rmtree(notes, ignore_errors=True)


def environment(launch: Launch, notes: str, base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: ``base``, the launch's own additions, and what makes it measured."""
    plan = Plan(
        out=str(launch.out.absolute()), run_id=new_run_id(), capture=launch.capture,
        collectors=None if launch.collectors is None else list(launch.collectors),
        edits=as_mapping(launch.edits), given=list(launch.given), notes=notes, measured=launch.measured,
        anomaly=launch.anomaly, command=list(launch.command),
    )  # fmt: skip
    env = {**DEFAULTS, **base, **launch.env, VARIABLE: plan.to_text()}
    env["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [env.get("PYTHONPATH")])])
    return env


def _folder_for_notes() -> str:
    try:
        return tempfile.mkdtemp(prefix="dtprof-notes-")
    except OSError:
        return ""


def _read(folder: str) -> list[tuple[str, str]]:
    found = []
    for file in sorted(Path(folder).glob("*.jsonl")) if folder else []:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found.append((str(row["what"]), str(row["text"])))
    return found
