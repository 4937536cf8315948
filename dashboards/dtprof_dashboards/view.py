"""What a page is given, and what a page is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dtprof.findings import Finding
from dtprof.numbers import counted, listing
from dtprof.report.facts import Facts
from dtprof_dashboards import selection
from dtprof_dashboards.listing import Entry
from dtprof_dashboards.opened import Opened, Watermark


@dataclass(frozen=True)
class View:
    """One run on one page: the run's entry among all entries, what was found out about it, and the watermark it was read at."""

    entry: Entry
    entries: tuple[Entry, ...]
    opened: Opened
    stamp: Watermark
    live: bool = False

    @property
    def facts(self) -> Facts:
        """What ``dtprof report`` says of the run."""
        return self.opened.facts

    @property
    def path(self) -> Path:
        """Where the run lies."""
        return self.entry.path

    def found(self, *prefixes: str) -> list[Finding]:
        """Findings of the rules whose names begin with one of these, worst first."""
        return [f for f in self.facts.findings if f.rule.startswith(prefixes)]

    @property
    def meta(self) -> str:
        """The facts of the run for the line of the title: ranks, backend, steps captured, live."""
        run = self.facts.run
        ranks = counted(len(run.ranks), "rank") if run.ranks else counted(len(run.parts), "process", "processes")
        if run.world_size and len(run.ranks) < run.world_size:
            ranks = f"{len(run.ranks)} of {run.world_size} ranks"
        steps = self.facts.settled_steps
        captured = "" if not steps else f"step {steps[0]}" if len(steps) == 1 else f"steps {listing(steps)}"
        said = [self.facts.name, ranks, self.facts.comm.backend or "", captured, "live" if self.live else ""]
        return " · ".join(filter(None, said))

    def choose_rank(self, everyone: str = "") -> int | None:
        """The box of ranks; ``everyone`` names the choice of all of them, where there is one."""
        ranks: list[int | None] = list(self.facts.run.ranks)
        if everyone or not ranks:
            ranks = [None, *ranks]
        return selection.choose("rank", "Rank", ranks, lambda r: everyone or "all" if r is None else f"rank {r}")

    def choose_step(self, every: str = "", default: int | None = None) -> int | None:
        """The box of steps that were captured; ``every`` names the choice of all of them, where there is one."""
        steps: list[int | None] = list(self.facts.steps)
        if every or not steps:
            steps = [None, *steps]
        return selection.choose("step", "Step", steps, lambda s: every or "none" if s is None else f"step {s}", default)


@dataclass(frozen=True)
class Page:
    """One page: ``render`` draws it; ``note`` says in a word or two why it is empty, or how many things it holds."""

    slug: str
    title: str
    group: str
    render: Callable[[View], None]
    note: Callable[[View], str] = lambda _: ""
