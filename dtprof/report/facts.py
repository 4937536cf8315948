"""Facts: everything that a report draws, gathered once, so that JSON, terminal and page can never disagree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtprof.analyse.goodput import GoodputResult
from dtprof.analyse.memory import MemoryResult
from dtprof.analyse.results import AccountingResult, CommResult, KernelResult, PhaseResult, settled
from dtprof.findings import Finding, Verdict
from dtprof.protocols import Lens
from dtprof.report import parallel
from dtprof.run import Part, Run

if TYPE_CHECKING:
    from dtprof.advise.verify import VerdictRow


@dataclass(frozen=True)
class QualityRow:
    """One thing wrong or missing, with the rank of its part (None where the part has none)."""

    part: int
    rank: int | None
    source: str
    what: str
    count: int | None
    effect: str


@dataclass(frozen=True)
class Facts:
    """The run, the results of its analyses, the findings and the verdict."""

    run: Run
    accounting: AccountingResult
    comm: CommResult
    kernels: KernelResult
    phases: PhaseResult
    findings: tuple[Finding, ...]
    verdict: Verdict
    quality: tuple[QualityRow, ...]
    memory: MemoryResult | None = None
    goodput: GoodputResult | None = None
    parallel: parallel.ParallelFacts | None = None
    verdicts: tuple[VerdictRow, ...] = ()

    @property
    def parts(self) -> dict[int, Part]:
        """Ordinal -> process."""
        return {p.ordinal: p for p in self.run.parts}

    @property
    def name(self) -> str:
        """What people call the run: the last element of its path."""
        return os.path.basename(os.path.abspath(self.run.path)) or self.run.path

    @property
    def steps(self) -> list[int]:
        """Step numbers that any part has, ascending."""
        return sorted({s.step for p in self.accounting.parts for s in p.steps})

    @property
    def settled_steps(self) -> list[int]:
        """Step numbers that the budget is the mean of, ascending."""
        return sorted({s.step for p in self.accounting.parts for s in settled(p.steps)})

    @property
    def culprits(self) -> frozenset[int]:
        """Ranks that the findings name, where they name some ranks and not all."""
        everyone = set(self.run.ranks)
        named = [set(f.ranks) for f in self.findings if f.severity != "low"]
        return frozenset(rank for ranks in named if ranks and not ranks >= everyone for rank in ranks)


def gather(study: Lens) -> Facts:
    """Ask a study for everything; each analysis runs once however many reports are drawn."""
    from dtprof.advise import findings
    from dtprof.advise.recommend import verdict

    found = findings(study)
    return Facts(
        run=study.run,
        accounting=study.result("accounting"),
        comm=study.result("comm"),
        kernels=study.result("kernels"),
        phases=study.result("phases"),
        findings=tuple(found),
        verdict=verdict(study, found),
        quality=quality_of(study.run),
        verdicts=verdicts_of(study.run),
        memory=study.result("memory"),
        goodput=study.result("goodput"),
        parallel=parallel.gather(study),
    )


def verdicts_of(run: Run) -> tuple[VerdictRow, ...]:
    """What ``dtprof verify`` has measured beside the run."""
    from dtprof.advise.verify import verdicts

    return tuple(verdicts(Path(run.path))) if run.format == "dtprof" else ()


def quality_of(run: Run) -> tuple[QualityRow, ...]:
    """The quality tables of all parts, with ranks."""
    rows = []
    for part in run.parts:
        table = run.table("quality", part.ordinal)
        for i in range(len(table)):
            row = table.row(i)
            rows.append(
                QualityRow(part.ordinal, part.rank, row["source"] or "", row["what"] or "", row["count"], row["effect"] or "")
            )
    return tuple(rows)
