"""Rules about slowness that grows, and slowness that goes from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import severity_of, step_ns, timed_steps
from dtprof.analyse.stragglers_time import MovingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, listing, named, percent, time
from dtprof.protocols import Lens

_NEXT = {
    "tokens": "even out the tokens of the ranks in every step: batches by tokens, not by texts, or packed sequences",
    "garbage collection": "collect on all ranks in the same step: gc.disable(), and gc.collect() every few hundred steps",
    "input": "more loader workers or a longer prefetch: a slow batch then waits in a queue and not in a step",
}
_LEAST_SHARE = 0.03


class GrowingRank:
    """A rank gets slower and slower than its peers."""

    id = "straggler.growing"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs twenty timed steps on all ranks; silent where a lack of cores explains it."""
        result: MovingResult = study.result("moving_stragglers")
        whole = _step_ns(study)
        for g in result.growing:
            cost = max(g.last_ns, 0.0)
            yield Finding(
                rule=self.id,
                severity=severity_of(cost / whole),
                title=f"Rank {g.rank} gets slower as the run goes on: {time(g.grown_ns)} more per step at its end than at its "
                "beginning",
                ranks=(g.rank,),
                steps=(g.steps[0], g.steps[-1]),
                seconds_per_step=cost / 1e9,
                evidence=(
                    Evidence(
                        f"Data and forward phase against the median of the others: {time(g.first_ns)} longer in the first "
                        f"quarter of {counted(len(g.steps), 'timed step')}, {time(g.last_ns)} in the last."
                    ),
                    Evidence("The trend is one of Mann and Kendall's test at level 0.001; it will go on growing."),
                ),
                why=f"rank {g.rank} needs {time(g.last_ns)} longer than its peers now, and needed {time(g.first_ns)} at first",
                next=f"look at what grows on rank {g.rank}: a list that is kept, a cache, a log, memory that swaps, or "
                "clocks that "
                "fall as it heats",
                apply="compare its memory and its clocks over the run with those of another rank (dtprof dashboard)",
                verify="measure a run of the same length again: the excess stays as it is at first",
                share=cost / whole,
            )


class RotatingRanks:
    """Ranks are the slowest in turn, and what they do in those steps says why."""

    id = "straggler.rotating"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only with a cause that is recorded step by step; noise that nothing explains is no finding."""
        result: MovingResult = study.result("moving_stragglers")
        r, whole = result.rotating, _step_ns(study)
        if r is None or r.cost_ns < _LEAST_SHARE * whole:
            return
        turns = ", ".join(f"rank {rank}: {percent(share)}" for rank, share in sorted(r.turns.items(), key=lambda i: -i[1])[:6])
        told = f"rank correlation {r.explained:.2f}" if r.cause == "tokens" else f"{percent(min(r.explained, 1.0))} of it"
        yield Finding(
            rule=self.id,
            severity=severity_of(r.cost_ns / whole),
            title=f"{named('rank', list(r.turns))} are the slowest in turn, by {time(r.cost_ns)} per step, with their "
            f"{r.cause}",
            ranks=tuple(sorted(r.turns)),
            steps=(r.steps[0], r.steps[-1]),
            seconds_per_step=r.cost_ns / 1e9,
            evidence=(
                Evidence(
                    f"Slowest in {turns} of {counted(len(r.steps), 'timed step')} ({listing(r.steps[:1] + r.steps[-1:])})."
                ),
                Evidence(f"The slowest rank of a step lies {time(r.cost_ns)} beyond the others; {r.cause}: {told}."),
            ),
            why=f"a different rank is the slowest in every step, as its {r.cause} vary, and all others wait for it",
            next=_NEXT[r.cause],
            apply=_NEXT[r.cause],
            verify="measure again: the slowest rank of a step close to the others",
            share=r.cost_ns / whole,
        )


def _step_ns(study: Lens) -> float:
    """Length of a timed step, ns; of a captured one where none is timed."""
    found = timed_steps(study.run)
    return float(np.median(found)) if found else step_ns(study.result("accounting"))
