"""Rules about context parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.parallel import ParallelResult, Split
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, percent, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05
# of a ring's moving that computing may leave exposed
_EXPOSED = 0.5


class UnbalancedSplit:
    """Causal attention over a sequence that is cut into one part per rank: the last rank attends to all of it."""

    id = "cp.unbalanced_split"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the axis cp in the job's layout and all ranks of a group; compute and operators must both grow along it."""
        result: ParallelResult = study.result("parallel")
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        uneven = [s for s in result.splits if s.ascending]
        if not uneven:
            return
        worst: Split = max(uneven, key=lambda s: s.excess_ns)
        if worst.excess_ns < _LEAST_SHARE * whole:
            return
        last = list(worst.compute_ns)[-1]
        counts = ", ".join(f"rank {r}: {time(ns)} and {worst.operators[r]:,.0f}" for r, ns in worst.compute_ns.items())
        ring = f" Its neighbours wait {time(result.ring.wait_ns)} per step for messages." if result.ring else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(worst.excess_ns / whole),
            title=f"Rank {last} computes {time(worst.excess_ns)} more than the mean of its context-parallel group: the "
            "sequence is "
            "cut into one part per rank",
            ranks=(last,),
            steps=steps_of(accounting),
            seconds_per_step=worst.excess_ns / 1e9,
            evidence=(
                Evidence(
                    f"Compute and operations per step: {counts}. Of causal attention rank r of c has (2r + 1) / c of the mean.",
                    result.ring.events if result.ring else {},
                ),
                Evidence(f"Both grow from each rank to the next, which a slow machine does not do.{ring}"),
            ),
            why=f"in causal attention the last part of a text attends to all of it and the first to itself alone: rank "
            f"{last} has "
            f"{time(worst.excess_ns)} more than the mean, and the others wait",
            next="cut the sequence zigzag: twice as many parts as ranks, each rank one from the head and the one as far "
            "from the "
            "tail",
            apply="torch's context_parallel does it (head-tail load balancing); in a hand-written ring give rank r parts r and "
            "2c-1-r",
            verify="measure again: all ranks of the group compute equally long",
            share=worst.excess_ns / whole,
        )  # fmt: skip


class RingOverlap:
    """The messages of a ring are not hidden behind attention."""

    id = "cp.ring_overlap"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Silent where messages cannot be told apart into waiting and moving."""
        ring = study.result("parallel").ring
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        if ring is None or ring.exposed_ns < _LEAST_SHARE * whole or ring.exposed_ns < _EXPOSED * ring.moving_ns:
            return
        yield Finding(
            rule=self.id,
            severity=severity_of(ring.exposed_ns / whole),
            title=f"{percent(ring.exposed_ns / whole)} of the step moves keys and values round the ring while nothing computes",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=ring.exposed_ns / 1e9,
            evidence=(
                Evidence(
                    f"{counted(round(ring.messages), 'message')} per rank and step move {time(ring.moving_ns)}, of which "
                    f"computing hides {time(ring.moving_ns - ring.exposed_ns)}.",
                    ring.events,
                ),
            ),
            why="a message is sent when the attention beside it has ended, or takes longer than that attention",
            next="send the next keys and values before attending to those at hand; where they take longer than attention, "
            "all-to-alls over the heads (Ulysses) send less",
            apply="batch_isend_irecv before the attention of a turn, wait after it; fewer ranks per group, or longer sequences",
            verify="measure again: ring messages behind computing",
            share=ring.exposed_ns / whole,
        )  # fmt: skip
