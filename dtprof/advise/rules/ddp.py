"""Rules about DistributedDataParallel: its flags and its buckets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.compiled import REMEDY, WHY, owns_backward
from dtprof.advise.places import ddp_models, per_rank, ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, percent, size, time
from dtprof.protocols import Lens
from dtprof.run import Run

_LEAST_SHARE = 0.05
# a bucket smaller than this is mostly latency on any network
_SMALL_BYTES = 256 * 1024
# the last bucket is a tail worth naming from this share of all bytes
_TAIL_SHARE = 0.25


class FindUnusedParameters:
    """find_unused_parameters=True although every parameter is used."""

    id = "ddp.find_unused_parameters"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs our DDP collector; abstains where a parameter had no gradient in some step."""
        accounting: AccountingResult = study.result("accounting")
        flagged = []
        for ordinal, models in ddp_models(study.run).items():
            if any(m.get("find_unused_parameters") is True for m in models):
                if not _all_used(study.run, ordinal, sum(int(m.get("n_parameters", 0)) for m in models)):
                    return
                flagged.append(ordinal)
        if not flagged:
            return
        ranks = tuple(sorted(p.rank for p in study.run.parts if p.ordinal in flagged and p.rank is not None))
        yield Finding(
            rule=self.id,
            severity="low",
            title="find_unused_parameters=True, but every parameter is used in every captured step",
            ranks=ranks,
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence("Every parameter of the wrapped module received its gradient in every captured step."),
                Evidence("With the flag DDP walks the autograd graph after each forward pass; the walk is not "
                "recorded, so its cost is not known."
                         " On models with few operators it is near zero: do not expect the flag to explain "
                         "exposed communication."),
            ),
            why="DDP searches the autograd graph for unused parameters in every step, and there are none",
            next="drop find_unused_parameters=True",
            apply="DistributedDataParallel(model, find_unused_parameters=False)",
            verify="measure both settings in turn; the losses stay the same",
            edit={"ddp.find_unused_parameters": False},
        )  # fmt: skip


def _all_used(run: Run, part: int, parameters: int) -> bool:
    """Did every parameter get its gradient in every step that was watched?"""
    steps = run.table("grads", part)["step"]
    per_step = np.unique(steps, return_counts=True)[1]
    return len(per_step) > 0 and parameters > 0 and bool(np.all(per_step == parameters))


class Buckets:
    """The gradient buckets leave communication exposed at the end of the backward pass."""

    id = "ddp.buckets"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Says what the buckets do, not which size is best: that takes a prediction. Needs our DDP collector."""
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        part = next((p for p in study.run.parts if len(study.run.table("buckets", p.ordinal))), None)
        exposed = per_rank(accounting, "comm_transfer_ns", "comm_unsplit_ns")
        if part is None or not exposed or (cost := float(np.mean(list(exposed.values())))) < _LEAST_SHARE * whole:
            return
        table = study.run.table("buckets", part.ordinal)
        first = table.take(table["step"] == table["step"].max())
        order = np.argsort(first["bucket"], kind="stable")
        sizes = [int(b) for b in first["bytes"][order].tolist() if b >= 0]
        if not sizes:
            return
        total, tail = sum(sizes), sizes[-1]
        listed = ", ".join(size(b) for b in sizes[:8]) + (", …" if len(sizes) > 8 else "")
        evidence = [Evidence(f"{counted(len(sizes), 'bucket')} of {size(total)} in the order of their reduction: {listed}.")]
        reason = _compiled(len(sizes)) if owns_backward(study.run) else self._reason(sizes, total, tail)
        if reason is None:
            return
        evidence.append(Evidence(f"{time(cost)} per step is exposed communication: the bound of what other buckets can save."))
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=reason[0],
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=tuple(evidence),
            why=reason[1],
            next=reason[2],
            apply=reason[2],
            verify="measure several bucket_cap_mb in turn; note that bucket_cap_mb=25 is not the default, which "
            "has a small first bucket",
        )

    def _reason(self, sizes: list[int], total: int, tail: int) -> tuple[str, str, str] | None:
        if len(sizes) == 1:
            return (
                f"All gradients travel in one bucket of {size(total)}: nothing overlaps with the backward pass",
                "a single bucket is ready only when the backward pass has ended",
                "a smaller bucket_cap_mb, so that the first buckets travel while the backward pass goes on",
            )
        if np.median(sizes) < _SMALL_BYTES:
            return (
                f"{counted(len(sizes), 'bucket')} of {size(int(np.median(sizes)))} each: latency dominates",
                "many small buckets pay the latency of an all-reduce each",
                "a larger bucket_cap_mb",
            )
        if tail >= _TAIL_SHARE * total:
            return (
                f"The last bucket holds {percent(tail / total)} of the gradients and nothing is left to hide it",
                f"the last bucket ({size(tail)}) is ready only at the end of the backward pass, because its "
                f"gradients come last",
                "a smaller bucket_cap_mb, so that the tail shrinks; embeddings tied to the first layer come "
                "last whatever the size",
            )
        return None


def _compiled(buckets: int) -> tuple[str, str, str]:
    """Where no bucket can leave early, no size is better than another."""
    return f"The compiled backward pass ends before any of {counted(buckets, 'bucket')} leaves: nothing overlaps", WHY, REMEDY
