"""The whole extension contract: what a collector, reader, analysis, rule, exporter or command must be.

Third parties announce theirs through the entry-point groups ``dtprof.collectors``, ``.readers``, ``.analyses``,
``.rules``, ``.exporters`` and ``.commands``. Nothing here imports anything heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from dtprof.findings import Finding
    from dtprof.run import Run
    from dtprof.table import Table


@dataclass
class Status:
    """What a collector tells the session while it runs.

    ``tracing``: operators are being recorded now. ``warm_up``: the step that has just ended did what later ones do not, such
    as compiling; where the job does not say its kind, it is a warm-up step. ``facts`` and ``missing`` (sentences) go into
    part.json; set ``changed`` to have it written at the next step, and call ``late()`` where they change after ``stop``.
    ``own_ns``: time that the collector took outside its three hooks. ``idle``, set in ``start``: there is nothing to do at a
    step, so ``on_step`` need not be called. ``sampled``, set in ``start``: it is called after each of the first steps and
    around captures, and otherwise twice a second; a callback that has seen something calls ``ask()``, and it is called
    after the running step, too.
    """

    tracing: bool = False
    warm_up: bool = False
    changed: bool = False
    own_ns: int = 0
    idle: bool = False
    sampled: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    late: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    ask: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def miss(self, what: str) -> None:
        """Note something that will be missing, once."""
        if what not in self.missing:
            self.missing.append(what)
            self.changed = True


@dataclass
class Window:
    """Steps ``first`` to ``end`` - 1 are captured next, or now; -1 and -1: none are. ``number`` counts windows of the run.

    One object for the whole session: it changes when a window is over and another one was asked for. Read it in ``on_step``,
    where it is already that of the steps to come.
    """

    first: int = -1
    end: int = -1
    number: int = 0


@dataclass(frozen=True)
class Context:
    """What a collector is told when it starts: its rank, where it may write, and the steps that are captured.

    ``capture`` is (first, end): steps first to end - 1; both are -1 where nothing is captured as far as is known at the
    start. ``window`` is the same as an object that follows what is asked for later. ``first_step`` is the number of the
    step that begins now. ``options`` are this collector's own.
    """

    rank: int
    world_size: int
    folder: Path
    capture: tuple[int, int]
    options: Mapping[str, Any]
    first_step: int = 0
    status: Status = field(default_factory=Status)
    window: Window = field(default_factory=Window)

    def __post_init__(self) -> None:
        if self.window == Window():
            self.window.first, self.window.end = self.capture


@runtime_checkable
class Collector(Protocol):
    """Both halves of one source of data.

    In the job: ``start``, then ``on_step`` after every step, then ``stop``. Whatever these raise is caught, logged
    once and noted in the manifest, and the collector is switched off. They may write below ``context.folder`` only.
    At ingest: ``tables`` reads that folder back; it must accept what a killed job left.
    """

    name: str

    def start(self, context: Context) -> None:
        """Begin; the process group may or may not exist yet."""

    def on_step(self, step: int) -> None:
        """Step ``step`` has just ended."""

    def stop(self) -> None:
        """Finish and close files."""

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """The tables that this collector's raw files in ``folder`` give; problems go into a ``quality`` table."""


class Reader(Protocol):
    """A trace format."""

    name: str

    def sniff(self, path: Path) -> bool:
        """Is this file or folder of the format? Decides on content, never raises."""

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open it; raises InputError where nothing can be read."""


class Lens(Protocol):
    """What an analysis or a rule may look at: the run, and the results of other analyses, each computed once."""

    run: Run

    def result(self, name: str) -> Any:
        """The result of analysis ``name``; KeyError lists the known ones."""


Analysis = Callable[["Lens"], Any]


class Rule(Protocol):
    """One piece of knowledge: looks at results, yields findings, and abstains where it cannot tell."""

    id: str

    def find(self, study: Lens) -> Iterable[Finding]:
        """The findings, with evidence and price; none when nothing is wrong or nothing can be told."""


class Exporter(Protocol):
    """Writes a run in another tool's format."""

    name: str

    def export(self, run: Run, folder: Path) -> list[Path]:
        """Write below ``folder`` and return the files."""


class Command(Protocol):
    """A verb of the command line."""

    name: str
    summary: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments; ``--json`` and ``--help`` are there already."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code; raise DtprofError for user errors."""
