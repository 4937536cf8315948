"""The rule about parameter servers: one slow worker."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import severity_of, step_ns, steps_of
from dtprof.analyse.parameter_server import ServerResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import digits, time
from dtprof.protocols import Lens


class SlowWorker:
    """One worker computes longer than the others: they wait for it at the server, or train on older parameters."""

    id = "straggler.slow_worker"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the metrics of staleness; silent where no worker stands out."""
        result: ServerResult = study.result("parameter_server")
        slow, excess = result.slow, result.excess
        if slow is None or excess is None:
            return
        accounting = study.result("accounting")
        whole = step_ns(accounting)
        others = [w for w in result.workers if w is not slow]
        stale = ", ".join(
            f"rank {w.rank}: {digits(w.updates)} updates ({digits(w.most_updates)} at most)" for w in result.workers
        )
        waits = ", ".join(f"rank {w.rank}: {time(w.waits_ns)}" for w in result.workers)
        waiting = sum(w.waits_ns for w in others) / len(others) - slow.waits_ns
        held = waiting > 0.5 * excess.centre
        how = (
            "the others wait for it at the server, as far ahead as the bound on staleness lets them"
            if held
            else "the others go on, and its gradients come late"
        )
        yield Finding(
            rule=self.id,
            severity=severity_of(excess.centre / whole),
            title=f"Worker {slow.rank} computes {time(excess.centre)} longer per step than the others, and {how}",
            ranks=(slow.rank,),
            steps=steps_of(accounting),
            seconds_per_step=excess.cost / 1e9,
            evidence=(
                Evidence(
                    "Forward and backward pass per step: "
                    + ", ".join(f"rank {w.rank}: {time(w.computes_ns)}" for w in result.workers)
                    + ".",
                    {slow.part: slow.rows},
                ),
                Evidence(f"In pull and push: {waits} per step."),
                Evidence(f"Gradients are that much behind when they are applied: {stale}."),
            ),
            why=f"worker {slow.rank} needs {time(excess.centre)} longer for the same passes; {how}",
            next=f"look at rank {slow.rank}'s machine; a larger bound on staleness lets the others go on (and changes "
            "training), "
            "synchronous updates make all as slow as it is",
            apply="give the slow worker smaller batches, or replace it",
            verify="measure again: workers compute equally long, and staleness evens out",
            share=excess.centre / whole,
        )
