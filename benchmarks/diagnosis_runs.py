"""Runs of the diagnosis benchmark: each a real ``dtprof job``, recorded once in a folder that is read again and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchmarks.diagnosis_cases import SETTINGS, STEPS, options_of

LONGEST_S = 180
RECORD = "runs.jsonl"


@dataclass(frozen=True)
class Case:
    """One run: a setting with its planted faults, none for a healthy one; ``number`` tells healthy runs apart."""

    setting: str
    faults: tuple[str, ...] = ()
    number: int = 0

    @property
    def name(self) -> str:
        """Its folder's."""
        what = "+".join(self.faults).replace("=", "-").replace(":", "-") or f"healthy-{self.number}"
        return f"{self.setting}.{what}"


@dataclass(frozen=True)
class Recorded:
    """A run that was made: its exit code, seconds, and the machine's load average (1 minute) as it began."""

    name: str
    code: int
    seconds: float
    load: float


def single_cases() -> Iterator[Case]:
    """One for each fault of each setting."""
    for name, setting in SETTINGS.items():
        yield from (Case(name, (text,)) for text in setting.faults)


def pair_cases() -> Iterator[Case]:
    """Two faults at a time."""
    for name, setting in SETTINGS.items():
        yield from (Case(name, pair) for pair in setting.pairs)


def healthy_cases(count: int) -> Iterator[Case]:
    """``count`` runs without a fault, over all settings in turn."""
    names = list(SETTINGS)
    yield from (Case(names[n % len(names)], (), n // len(names)) for n in range(count))


def command_of(case: Case, folder: Path) -> list[str]:
    """The words after ``dtprof``; writes the emulated layers into ``folder``."""
    setting = SETTINGS[case.setting]
    words = ["job", setting.job, "--ranks", str(setting.ranks), "--json", *STEPS, *setting.words]
    if setting.layers is not None:
        layers = folder / f"{case.setting}.toml"
        layers.write_text(setting.layers.toml())
        words += ["--emulate", str(layers)]
    if setting.lab is not None:
        words += ["--lab", setting.lab]
    return [*words, "--seed", str(case.number), *options_of(setting, case.faults), "--out", str(folder / case.name)]


def record(case: Case, folder: Path) -> Recorded:
    """Make one run, and note it in the folder's record; what it said is kept beside it."""
    load, began = os.getloadavg()[0], time.monotonic()
    words = [sys.executable, "-m", "dtprof", *command_of(case, folder)]
    with (folder / f"{case.name}.log").open("w") as log:
        code = _run(words, log)
    made = Recorded(case.name, code, round(time.monotonic() - began, 2), round(load, 2))
    with (folder / RECORD).open("a") as notes:
        notes.write(json.dumps(asdict(made)) + "\n")
    return made


def recorded(folder: Path) -> dict[str, Recorded]:
    """The runs of a folder that ended well, by name; a line that a killed benchmark left half is passed over."""
    notes = folder / RECORD
    found = {}
    for line in notes.read_text().splitlines() if notes.exists() else []:
        try:
            made = Recorded(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        if (folder / made.name / "manifest.json").exists():
            found[made.name] = made
    return found


def _run(words: list[str], log: IO[str]) -> int:
    """Exit code of a command; with all that it started it is ended after LONGEST_S."""
    process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
