"""Interleaved pairs of runs of two commands, each measured as lightly as possible: one median step time per run.

Pairs, because what disturbs a machine lasts longer than a run; random order inside a pair, because it may drift; the same
step numbers on both sides, because a run that has more steps has other ones. A command without dtprof steps is timed
as a whole.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from dtprof.edits import Edit
from dtprof.errors import InputError
from dtprof.jsonl import read_lines
from dtprof.launch import Launch, run_launch
from dtprof.numbers import counted

LIGHT = ("host",)
WARM_UP, LEAST_STEPS, CAPTURED = 3, 3, 5
_LAST_LINES = 12


class CommandFailed(InputError):  # noqa: N818
    """A command that is to be measured did not end well; ``tail`` are its last lines."""

    def __init__(self, message: str, hint: str, tail: Sequence[str]) -> None:
        super().__init__(message, hint)
        self.tail = tuple(tail)


@dataclass(frozen=True)
class Side:
    """One of two variants: its name, a command for the shell, and edits made at construction."""

    name: str
    command: str
    edits: tuple[Edit, ...] = ()

    @classmethod
    def of(cls, name: str, words: Sequence[str], edits: tuple[Edit, ...] = ()) -> Side:
        """A command given as words."""
        return cls(name, shlex.join(words), edits)


@dataclass(frozen=True)
class Protocol:
    """How each run is measured. ``steps`` None takes all that both runs have after ``warm_up``; runs lie in ``folder``."""

    folder: Path
    steps: int | None = None
    warm_up: int = WARM_UP
    timeout_s: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class RunTime:
    """One run: durations by step number (ns, the slowest rank of each; empty where there are none) and the whole (s)."""

    folder: Path
    steps: dict[int, int]
    whole_s: float


@dataclass(frozen=True)
class Pair:
    """One pair: seconds per step, or of the whole command where ``steps`` is 0; ``first`` is the side that ran first."""

    number: int
    a_s: float
    b_s: float
    steps: int
    first: str
    folders: tuple[str, str]


@dataclass
class Pairs:
    """Measures pairs of two sides, one after the other, and keeps them."""

    sides: tuple[Side, Side]
    protocol: Protocol
    done: list[Pair] = field(default_factory=list)

    def measure(self, number: int) -> tuple[float, float]:
        """Run both sides in random order; seconds of A and B."""
        order = (0, 1) if random.Random(f"{self.protocol.seed}/{number}").random() < 0.5 else (1, 0)
        runs = {i: self._run(i, number) for i in order}
        pair = self._pair(number, runs[0], runs[1], "ab"[order[0]])
        self.done.append(pair)
        return pair.a_s, pair.b_s

    def _run(self, i: int, number: int) -> RunTime:
        folder = self.protocol.folder / f"{number:03d}{'ab'[i]}"
        return run_once(self.sides[i], folder, timeout_s=self.protocol.timeout_s, warm_up=self.protocol.warm_up)

    def _pair(self, number: int, a: RunTime, b: RunTime, first: str) -> Pair:
        folders = a.folder.name, b.folder.name
        if bool(a.steps) != bool(b.steps):
            with_steps, without = (self.sides[0], self.sides[1]) if a.steps else (self.sides[1], self.sides[0])
            raise InputError(
                f"the {with_steps.name} command has dtprof steps and the {without.name} command has none",
                "mark steps in both (prof.step()), or in neither",
            )
        if not a.steps:
            return Pair(number, a.whole_s, b.whole_s, 0, first, folders)
        common = sorted(set(a.steps) & set(b.steps))
        wanted = self.protocol.steps
        used = common[:wanted]
        if len(used) < max(LEAST_STEPS, wanted or 0):
            raise InputError(
                f"pair {number}: both runs have {counted(len(common), 'step')} after {self.protocol.warm_up} of warm-up; "
                f"{max(LEAST_STEPS, wanted or 0)} are needed",
                "let the commands run longer, or give a smaller --steps or --warm-up",
            )
        times = [median(run.steps[s] for s in used) / 1e9 for run in (a, b)]
        return Pair(number, times[0], times[1], len(used), first, folders)

    def capture(self) -> tuple[Path, Path] | None:
        """One traced run of each side, for the cause; None where there are no steps to trace."""
        if not self.done or not self.done[-1].steps:
            return None
        begin = self.protocol.warm_up
        # a window that the loop does not pass is not written whole
        last = max(step_times(self.protocol.folder / self.done[-1].folders[0], 0), default=0)
        window = f"{begin}:{max(min(begin + CAPTURED, last), begin + 1)}"
        folders = tuple(self.protocol.folder / f"capture-{'ab'[i]}" for i in (0, 1))
        for side, folder in zip(self.sides, folders, strict=True):
            run_once(side, folder, timeout_s=self.protocol.timeout_s, warm_up=begin, capture=window, collectors=None)
        return folders[0], folders[1]


def run_once(
    side: Side,
    folder: Path,
    *,
    timeout_s: float | None = None,
    warm_up: int = WARM_UP,
    capture: str | None = None,
    collectors: Sequence[str] | None = LIGHT,
) -> RunTime:
    """Run one side to its end; what it prints goes to ``output.log``. CommandFailed where it does not end with 0."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    given = ("capture",) if collectors is None else ("capture", "collectors")
    command = ("/bin/sh", "-c", f"exec 2>&1\n{_in_place(side.command)}")
    launch = Launch(command, folder, capture=capture, edits=side.edits, collectors=collectors, given=given)
    with log.open("wb") as output:
        begin = time.perf_counter()
        outcome = run_launch(launch, stdout=output.fileno(), timeout_s=timeout_s)
        whole = time.perf_counter() - begin
    if outcome.code != 0 or outcome.problem:
        why = f"was {outcome.problem}" if outcome.problem else f"ended with exit code {outcome.code}"
        tail = last_lines(log)
        said = "its last lines are above" if tail else "it printed nothing"
        raise CommandFailed(f"the {side.name} command {why} ({side.command})", said, tail)
    for edit in side.edits:
        if not any(text.startswith(f"{edit}: ") for text in outcome.told("edit")):
            refused = [text for text in outcome.told("edit failed") if text.startswith(f"{edit}: ")]
            why = refused[0] if refused else f"{edit}: had no effect, for the command constructed nothing of the kind"
            raise InputError(f"the {side.name} command: {why}", "an edit without effect proves nothing")
    return RunTime(folder, step_times(folder, warm_up), whole)


def _in_place(command: str) -> str:
    """A program with its arguments takes the shell's place, so that a signal reaches it; anything else the shell runs."""
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError):
        return command
    simple = not set(command) & set(";&|<>()`\n{}")
    return f"exec {command}" if simple and shutil.which(program) else command


def last_lines(log: Path) -> list[str]:
    """The end of what a command printed."""
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - 20_000, 0))
        lines = deque(file.read().decode(errors="replace").splitlines(), maxlen=_LAST_LINES)
    return [line for line in lines if line.strip()]


def step_times(folder: Path, warm_up: int) -> dict[int, int]:
    """Training steps of a run folder after ``warm_up``: number -> ns of the slowest rank; untraced ones, where there are."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for part in sorted(folder.glob("part[0-9]*")):
        rows, _ = read_lines(part / "steps.jsonl")
        for row in rows:
            step, length = row.get("step"), row.get("host_dur")
            if isinstance(step, int) and isinstance(length, int) and row.get("kind", "train") == "train" and length > 0:
                longest = found[bool(row.get("captured"))]
                longest[step] = max(longest.get(step, 0), length)
    longest = found[0] or found[1]
    begin = min(longest, default=0)
    # the first step is marked as warm-up already: ``warm_up`` counts from the first that is not
    return {s: ns for s, ns in sorted(longest.items()) if s >= begin + max(warm_up - 1, 0)}
