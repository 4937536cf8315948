"""The rule about gathers and reductions of sharded parameters that nothing hides, with the cause."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.fsdp import Exposed, FsdpResult
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, percent, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05
_WORDS = {"all_gather": "gathers of parameters", "reduce_scatter": "reductions of gradients"}
_WHY = {
    "sync": "the host is held by {behind} until the device has caught up, and can ask for the next one only then",
    "launch": "the host asks for them only when they are needed",
    "order": "they stand behind {behind} on one stream, although asked for earlier",
    "dependency": "they were asked for earlier and wait for another stream",
    "bandwidth": "they run beside computing and take longer than it does",
}
_NEXT = {
    "sync": "remove {behind} (counts that stay on the device, fixed capacities), or ask for the next unit before it: explicit "
    "prefetch",
    "launch": "ask earlier: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch",
    "order": "put the two on streams, and where that is so in groups, of their own",
    "dependency": "look at what the stream waits for: a limit on gathers in flight, an event of the compute stream",
    "bandwidth": "more computing per unit (larger batch), fewer bytes (bf16), or shards inside a host (HSDP)",
}
# what is reduced cannot be asked for earlier
_LATE_REDUCTION = (
    "the host waits for each where the unit's backward pass has ended",
    "reduce beside the next unit's backward pass (an asynchronous reduction on a stream or thread of its own), or reduce less "
    "often: set_requires_gradient_sync(False) for all passes of a step but the last",
)


class ExposedUnits:
    """Gathers or reductions of FSDP's units that computing does not hide, by cause."""

    id = "overlap.fsdp_exposed"

    def find(self, study: Lens) -> Iterator[Finding]:
        """One finding per operation, for its largest cause; the first gather and the last reduction cannot be hidden."""
        result: FsdpResult = study.result("fsdp")
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        for op in _WORDS:
            causes = {cause: e for (o, cause), e in result.exposed.items() if o == op and cause != "first"}
            if not causes:
                continue
            cause = max(causes, key=lambda c: causes[c].ns)
            if causes[cause].ns >= _LEAST_SHARE * whole:
                yield self._finding(accounting, result, op, cause, causes, whole)

    def _finding(
        self, accounting: AccountingResult, result: FsdpResult, op: str, cause: str, causes: dict[str, Exposed], whole: float
    ) -> Finding:
        found, word = causes[cause], _WORDS[op]
        behind = max(found.behind, key=lambda b: found.behind[b]) if found.behind else "another operation"
        why, remedy = _WHY[cause].format(behind=behind), _NEXT[cause].format(behind=behind)
        if op == "reduce_scatter" and cause == "launch":
            why, remedy = _LATE_REDUCTION
        units = [
            f"{name or 'a unit without a name'} {time(ns)}" for name, ns in sorted(found.units.items(), key=lambda i: -i[1])
        ]
        others = ", ".join(f"{c} {time(e.ns)}" for c, e in causes.items() if c != cause)
        cost = found.bound_ns
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{percent(found.ns / whole)} of the step is {word} that nothing hides: {why}",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"{counted(found.count, 'operation')} in all, {time(found.ns)} per rank and step"
                    + (f" (and {others} for other causes)" if others else "")
                    + f"; longest: {', '.join(units[:4])}.",
                    {part: tuple(rows) for part, rows in found.events.items()},
                ),
                Evidence(
                    f"Of {time(result.moving_ns)} that parameters move per step, computing hides {time(result.hidden_ns)}."
                ),
            ),
            why=f"{word} of {time(found.ns)} per step are exposed because {why}",
            next=remedy,
            apply=remedy,
            verify="measure again: the same operations beside computing",
            share=cost / whole,
            bound=True,
        )  # fmt: skip
