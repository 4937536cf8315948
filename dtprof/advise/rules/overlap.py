"""Rules that price how FSDP2 gathers: how far ahead, once or twice, and in units of which size. Each predicts or abstains."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import ranks_of, steps_of
from dtprof.advise.predicted import in_words, notes_of, outcome, severity_of_saving
from dtprof.advise.rules.buckets import worth_it
from dtprof.analyse.memory import MemoryResult
from dtprof.analyse.results import AccountingResult
from dtprof.edits import Edit, Value, as_mapping
from dtprof.findings import Evidence, Finding
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.model.fsdp.whatif import held_bytes
from dtprof.model.outcome import Outcome
from dtprof.numbers import memory, percent, time
from dtprof.protocols import Lens
from dtprof.run import Run

DEPTHS = (1, 2, 4)
LAYERS = (2, 4, 8)
# a deeper prefetch or larger units have to bring this much of the step more, since they take memory
LEAST_MORE = 0.01
# of a device's memory that a rank may take
MOST_TAKEN = 0.9
# collectives of all ranks up to which a report waits for the model; dtprof whatif always does
MOST_OPERATIONS = 3_000

Found = tuple[Edit, Outcome]


def compiled(run: Run) -> bool:
    """Did torch.compile make part of the model?"""
    for part in run.parts:
        if any(name.startswith("Torch-Compiled Region") for name in run.table("events", part.ordinal).values("name")):
            return True
        metrics = run.table("metrics", part.ordinal)
        if bool((metrics.is_("metric", "compiles") & (metrics["value"] > 0)).any()):
            return True
    return False


def best_of(run: Run, key: str, values: tuple[Value, ...]) -> Found | str:
    """The edit of a key with the shortest predicted step, the smaller value where a larger one brings little more; or why the
    rule abstains.
    """
    if not has_fsdp(run):
        return "no range of FSDP2 was recorded"
    if sum(len(run.table("comm", p.ordinal)) for p in run.parts) > MOST_OPERATIONS:
        return "the run has more operations than a report waits for: ask dtprof whatif"
    if compiled(run):
        return "the model is compiled: where the compiler has put FSDP's gathers cannot be told from its ranges"
    best: Found | None = None
    reasons: list[str] = []
    for value in values:
        edit = Edit(key, value)
        found = outcome(run, [edit])
        if found is None:
            return "the run has more device operations than a report waits for: ask dtprof whatif"
        if found.predicted_ns is None or found.measured_ns is None:
            reasons += found.withheld
        elif best is None or found.predicted_ns < (best[1].predicted_ns or 0.0) - LEAST_MORE * found.measured_ns:
            best = edit, found
    if best is None:
        return reasons[0] if reasons else "nothing was tried"
    if not worth_it(best[1]):
        return f"{best[0]} is predicted to gain too little, or its interval holds no gain at all"
    return best


def _finding(study: Lens, rule: str, found: Found, title: str, why: str, apply: str, verify: str) -> Finding:
    edit, predicted = found
    accounting: AccountingResult = study.result("accounting")
    saving = predicted.saving()
    assert saving is not None
    return Finding(
        rule=rule,
        severity=severity_of_saving(predicted),
        title=title,
        ranks=ranks_of(accounting),
        steps=steps_of(accounting),
        seconds_per_step=None,
        evidence=(
            Evidence(f"Predicted with {edit}: {in_words(predicted)}."),
            *notes_of(predicted),
        ),
        why=why,
        next=f"{edit}. Predicted: {in_words(predicted)}",
        apply=apply,
        verify=verify,
        edit=as_mapping([edit]),
        prediction=saving,
    )


def _share(predicted: Outcome) -> float:
    return (predicted.saved_ns or 0.0) / (predicted.measured_ns or 1.0)


class FsdpPrefetch:
    """Gathering further ahead hides gathers that the step waits for."""

    id = "overlap.fsdp_prefetch"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where ``abstains`` says so."""
        best = best_of(study.run, "fsdp.prefetch", DEPTHS)
        if isinstance(best, str):
            return
        edit, found = best
        yield _finding(
            study, self.id, best,
            f"Gathering {edit.value} of FSDP's units ahead is predicted to save {percent(_share(found))} of the step",
            f"units are gathered too late to hide: ahead of their use the step is predicted to last {time(found.predicted_ns)}",
            "unit.set_modules_to_forward_prefetch and set_modules_to_backward_prefetch with the next and the last "
            f"{edit.value} units; on gloo also model._set_unshard_async_op(True)",
            f"dtprof verify RUN --rule {self.id} -- CMD, which measures both settings in pairs",
        )  # fmt: skip

    def abstains(self, study: Lens) -> str:
        """Why there is no finding; empty where there is one."""
        best = best_of(study.run, "fsdp.prefetch", DEPTHS)
        return best if isinstance(best, str) else ""


class Reshard:
    """Keeping gathered parameters from the forward to the backward pass saves the second gather, and costs memory."""

    id = "overlap.reshard"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where ``abstains`` says so."""
        if self.abstains(study):
            return
        best = best_of(study.run, "fsdp.reshard_after_forward", (False,))
        assert not isinstance(best, str)
        _, found = best
        more = self._more(study.run)
        yield _finding(
            study, self.id, best,
            f"Keeping parameters from forward to backward is predicted to save {percent(_share(found))} of the step, for "
            f"{memory(more)} per rank",
            "every unit is gathered twice, in the forward and in the backward pass; kept in between, the step is predicted to "
            f"last {time(found.predicted_ns)}",
            "fully_shard(unit, reshard_after_forward=False)",
            f"dtprof verify RUN --rule {self.id} -- CMD; and compare the peaks of memory",
        )  # fmt: skip

    def abstains(self, study: Lens) -> str:
        """Why there is no finding; empty where there is one. Memory must be known, and where it is a device's, be enough."""
        best = best_of(study.run, "fsdp.reshard_after_forward", (False,))
        if isinstance(best, str):
            return best
        held: MemoryResult = study.result("memory")
        peaks = [p.peak.bytes for p in held.parts if p.peak is not None]
        if len(peaks) < len(study.run.parts):
            return "how much memory the ranks take was not recorded, so whether more fits cannot be told"
        limit = _capacity(study.run)
        after = max(peaks) + self._more(study.run)
        if limit is not None and after > MOST_TAKEN * limit:
            return f"it takes {memory(after)} of {memory(limit)} on the fullest device"
        return ""

    def _more(self, run: Run) -> int:
        """Bytes per rank that keeping the parameters takes more."""
        return max(held_bytes(run, Edit("fsdp.reshard_after_forward", False)), 0)


class WrapSize:
    """Several layers in one unit pay the latency of a gather once."""

    id = "overlap.wrap_size"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where ``abstains`` says so."""
        best = best_of(study.run, "fsdp.wrap", LAYERS)
        if isinstance(best, str):
            return
        edit, found = best
        more = held_bytes(study.run, edit)
        yield _finding(
            study, self.id, best,
            f"Units of {edit.value} layers are predicted to save {percent(_share(found))} of the step, for {memory(more)} per "
            "rank",
            f"small units pay the latency of a gather each: with {edit.value} layers together the step is predicted to last "
            f"{time(found.predicted_ns)}",
            f"fully_shard([layer, …], …) with {edit.value} layers each; a launcher cannot do it",
            "dtprof gate with two commands, one for each way of wrapping; and compare the peaks of memory",
        )  # fmt: skip

    def abstains(self, study: Lens) -> str:
        """Why there is no finding; empty where there is one."""
        best = best_of(study.run, "fsdp.wrap", LAYERS)
        return best if isinstance(best, str) else ""


def _capacity(run: Run) -> int | None:
    """Bytes of the smallest device, where NVML was read."""
    collectors = [c for part in run.parts for c in part.extra.get("collectors", ())]
    facts = [c.get("facts", {}) for c in collectors if c.get("name") == "nvml"]
    found = [told["memory_total"] for told in facts if told.get("memory_total")]
    return int(min(found)) if found else None
