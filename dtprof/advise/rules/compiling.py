"""Rules about torch.compile: code that is compiled again and again, and graphs that break."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import severity_of
from dtprof.analyse.compute_compile import CompileResult, RankCompiles
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, listing, named, percent, time
from dtprof.protocols import Lens

# the first recompilation makes a size dynamic, the second may be another one: from the third on it is a habit
_HABIT, _LEAST_SHARE = 3, 0.05
_MOST_REASONS = 3


class Recompiles:
    """Code is compiled again for other sizes, and all ranks wait for the one that compiles."""

    id = "compute.recompiles"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the collector ``compile``. The price is the compiling of the rank that does most, spread over all steps."""
        result: CompileResult = study.result("compile")
        bad = [r for r in result.ranks if r.again and (len(r.again) >= _HABIT or r.again_ns >= _LEAST_SHARE * r.run_ns)]
        if not bad:
            return
        worst = max(bad, key=lambda r: (r.again_ns, len(r.again)))
        share = worst.again_ns / worst.run_ns if worst.run_ns else 0.0
        ranks = tuple(sorted({r.rank for r in bad}))
        alone = len(ranks) < len(study.run.ranks)
        others = "; the other ranks wait for them meanwhile" if alone else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"torch.compile compiles again in {counted(len(worst.again), 'step')} on {named('rank', ranks)}: "
            f"{percent(share)} of the run",
            ranks=ranks if alone else (),
            steps=worst.again,
            seconds_per_step=worst.again_ns / max(worst.steps, 1) / 1e9,
            evidence=(
                Evidence(
                    f"Rank {worst.rank}: steps {listing(worst.again)}, {time(worst.again_ns)} in all of {time(worst.run_ns)}."
                ),
                *(Evidence(f"torch says: {reason}") for reason in worst.reasons[:_MOST_REASONS]),
            ),
            why=f"a guard of compiled code failed, as where every length is a new one{others}",
            next="one shape, by padding or bucketing lengths; or mark what varies: torch._dynamo.mark_dynamic(x, 1), "
            "torch.compile(dynamic=True). TORCH_LOGS=recompiles names every guard",
            apply="torch.compile(model, dynamic=True); pad batches to a few lengths",
            verify="run again: the metric recompiles stays 0 after the first steps",
            share=share,
        )


class GraphBreaks:
    """Compiled code goes back to Python in the middle."""

    id = "compute.graph_breaks"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the collector ``compile``. What a break costs is not recorded: no price, and a low finding."""
        result: CompileResult = study.result("compile")
        bad = [r for r in result.ranks if r.breaks]
        if not bad:
            return
        worst: RankCompiles = max(bad, key=lambda r: r.breaks)
        yield Finding(
            rule=self.id,
            severity="low",
            title=f"The compiled graph breaks in {counted(worst.breaks, 'place')}",
            ranks=(),
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(f"{counted(worst.breaks, 'graph break')} on rank {worst.rank}."),
                *(Evidence(f"torch says: {reason}") for reason in worst.break_reasons[:_MOST_REASONS]),
            ),
            why="what lies on both sides of a break is compiled by itself: nothing is fused across, and CUDA graphs end there",
            next="take the call out of the compiled part (print, .item(), an unsupported function); fullgraph=True names "
            "each place",
            apply="torch.compile(model, fullgraph=True) until it passes",
            verify="run again: the metric graph_breaks is 0",
        )
