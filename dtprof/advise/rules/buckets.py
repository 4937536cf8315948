"""Rules that price what DDP sends: in buckets of which size, and in which type. Each predicts the step, or keeps silent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import sqrt

from dtprof.advise.compiled import owns_backward
from dtprof.advise.places import ranks_of, steps_of
from dtprof.advise.predicted import in_words, notes_of, outcome, severity_of_saving
from dtprof.analyse.results import AccountingResult
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding
from dtprof.model.outcome import Outcome
from dtprof.numbers import counted, percent, time
from dtprof.protocols import Lens
from dtprof.run import Run

# caps that are tried, MiB
CAPS = (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)
# a saving below this share of the step is not worth a change
LEAST_SAVING = 0.03
# a change of the numbers has to bring more
LEAST_COMPRESSED = 0.10


def best_cap(run: Run) -> tuple[float, Outcome] | None:
    """The bucket cap to advise, in MiB, and its prediction; None where nothing can be predicted.

    Tried are CAPS, then the geometric means of the best one and its neighbours. The best one has the shortest cautious step:
    what a collective costs its thread is known least, so many small ones have to gain more than that could be.
    """
    found = {cap: predicted for cap in CAPS if (predicted := _of(run, cap)) is not None}
    if not found:
        return None
    near = min(found, key=lambda cap: found[cap].cautious_ns or 0.0)
    between = [round(sqrt(a * b), 1) for a, b in pairwise(CAPS) if near in (a, b)]
    found |= {cap: predicted for cap in between if (predicted := _of(run, cap)) is not None}
    best = min(found, key=lambda cap: found[cap].cautious_ns or 0.0)
    return best, found[best]


def _of(run: Run, cap: float) -> Outcome | None:
    predicted = outcome(run, [Edit("ddp.bucket_cap_mb", cap)])
    return predicted if predicted is not None and predicted.predicted_ns is not None else None


def worth_it(found: Outcome) -> bool:
    """Is the saving above LEAST_SAVING of the step, and its whole interval above nothing?"""
    saving = found.saving()
    return saving is not None and saving.low > 0 and saving.seconds_per_step * 1e9 > LEAST_SAVING * (found.measured_ns or 0.0)


class BucketSize:
    """Another bucket size makes the step shorter."""

    id = "ddp.bucket_size"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs our DDP collector, gloo, and a replay within 5%; silent where the interval holds no saving, or torch.compile
        owns the backward pass.
        """
        best = None if owns_backward(study.run) else best_cap(study.run)
        if best is None or not worth_it(best[1]):
            return
        accounting: AccountingResult = study.result("accounting")
        cap, found = best
        saving = found.saving()
        assert saving is not None
        share = saving.seconds_per_step * 1e9 / (found.measured_ns or 1.0)
        told = f"bucket_cap_mb={cap:g}"
        yield Finding(
            rule=self.id,
            severity=severity_of_saving(found),
            title=f"Gradient buckets of {cap:g} MiB are predicted to save {percent(share)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(f"Predicted with {told}: {in_words(found)}."),
                Evidence(
                    f"{counted(len(CAPS), 'size')} from {CAPS[0]:g} to {CAPS[-1]:g} MiB were tried, and sizes near the best."
                ),
                *notes_of(found),
            ),
            why=f"the buckets fill too late or too often: with {told} the step is predicted to last {time(found.predicted_ns)}",
            next=f"{told}. Predicted: {in_words(found)}",
            apply=f"DistributedDataParallel(model, {told})",
            verify=f"dtprof verify RUN --rule {self.id} -- CMD, which measures both settings in pairs",
            edit={"ddp.bucket_cap_mb": cap},
            prediction=saving,
        )


class Compression:
    """Gradients that travel in half the bytes make the step shorter."""

    id = "ddp.compression"

    def find(self, study: Lens) -> Iterator[Finding]:
        """As ``BucketSize``; silent where the gradients already travel in less, or the saving is below LEAST_COMPRESSED.

        torch has a hook for bf16 on NCCL only.
        """
        kind = "bf16" if study.result("comm").backend == "nccl" else "fp16"
        found = outcome(study.run, [Edit("comm.dtype", kind)])
        saving = found.saving() if found is not None else None
        if found is None or saving is None or saving.low <= 0:
            return
        share = saving.seconds_per_step * 1e9 / (found.measured_ns or 1.0)
        if share < LEAST_COMPRESSED:
            return
        accounting: AccountingResult = study.result("accounting")
        yield Finding(
            rule=self.id,
            severity="low",
            title=f"Gradients sent as {kind} are predicted to save {percent(share)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(f"Predicted with half of the bytes and three passes over each bucket: {in_words(found)}."),
                Evidence("It changes the numbers: gradients lose half of their bits in each reduction. Compare losses, too."),
                *notes_of(found),
            ),
            why=f"the step waits for the network: with half of the bytes it is predicted to last {time(found.predicted_ns)}",
            next=f"a {kind} communication hook, if the losses stay as they are. Predicted: {in_words(found)}",
            apply=f"model.register_comm_hook(None, default_hooks.{kind}_compress_hook), of torch's ddp_comm_hooks",
            verify=f"dtprof verify RUN --rule {self.id} -- CMD, with the hook on one side; and compare the losses",
            edit={"comm.dtype": kind},
            prediction=saving,
        )
