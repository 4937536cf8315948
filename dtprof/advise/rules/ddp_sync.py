"""The rule about no_sync: which of a step's passes reduce the gradients, and which should."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import ddp_models, severity_of, step_ns
from dtprof.advise.predicted import in_words, outcome
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding
from dtprof.model.ddp.passes import StepPasses, by_step, passes_of
from dtprof.numbers import counted, percent, size, time
from dtprof.protocols import Lens
from dtprof.run import Run

# a reduction of all gradients in every pass sends the same bytes in each
_SAME = 0.01


class NoSync:
    """Gradients are reduced in passes that accumulate them, or never."""

    id = "ddp.no_sync"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs torch's ranges of DDP and of the optimizer; abstains where an optimizer is called between two passes."""
        steps = by_step(passes_of(study.run))
        if not steps or not all(m.one_update for mine in steps.values() for m in mine):
            return
        if any(len(models) > 1 for models in ddp_models(study.run).values()):
            return
        if all(_needless(m) for mine in steps.values() for m in mine):
            yield self._forgotten(study, steps)
        elif (ranks := _never(study.run, steps)) is not None:
            yield self._never_reduced(steps, ranks)

    def _forgotten(self, study: Lens, steps: dict[int, list[StepPasses]]) -> Finding:
        whole = step_ns(study.result("accounting"))
        first = next(iter(steps.values()))[0]
        passes, reductions = len(first.passes), sum(first.reducing)
        alone = bool(study.run.world_size) and len(next(iter(steps.values()))) < (study.run.world_size or 0)
        cost = float(np.mean([_cost(mine) for mine in steps.values()]))
        edit = Edit("ddp.accumulation", passes)
        predicted = outcome(study.run, [edit])
        saving = predicted.saving() if predicted is not None else None
        told = in_words(predicted) if predicted is not None and saving is not None else ""
        each = size(first.passes[-1].bytes)
        rows: dict[int, list[int]] = {}
        for one in (m for mine in steps.values() for m in mine):
            needless = [p for p, reduces in zip(one.passes, one.reducing, strict=True) if reduces][:-1]
            rows.setdefault(one.part, []).extend(row for p in needless for row in p.rows)
        remedy = "with model.no_sync(): around the forward and backward pass of every micro-batch but the last"
        evidence = [
            Evidence(
                f"{counted(passes, 'forward pass', 'forward passes')} of DDP per step, one optimizer step after them, and "
                f"{counted(reductions, 'reduction')} of {each} each, where one of all gradients together gives the same.",
                {part: tuple(found) for part, found in rows.items()},
            ),
            Evidence(
                f"The needless ones expose {time(cost)} of communication per step"
                f"{', waiting for other ranks included, which are not here' if alone else ' on the rank that waits least'}; "
                "what they take from computing beside them, and copies into and out of buckets, come on top."
            ),
            Evidence("no_sync around the backward pass alone has no effect: DDP decides in the forward pass."),
        ]
        if told:
            evidence.append(Evidence(f"Predicted with {edit}: {told}."))
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{reductions} of {passes} micro-batches per step reduce the gradients; one would do",
            ranks=_ranks(steps),
            steps=tuple(steps),
            seconds_per_step=cost / 1e9,
            evidence=tuple(evidence),
            why=f"gradients are accumulated over {passes} micro-batches, and {reductions} of them reduce all gradients: "
            f"no_sync is missing, or stands around the backward pass alone; it exposes {percent(cost / whole)} of the step",
            next=remedy + (f". Predicted: {told}" if told else ""),
            apply=remedy,
            verify="dtprof gate with two commands, without and with no_sync; the losses stay the same but for rounding",
            share=cost / whole,
            bound=alone,
            edit={edit.key: passes},
            prediction=saving,
        )

    def _never_reduced(self, steps: dict[int, list[StepPasses]], ranks: int) -> Finding:
        remedy = "leave no_sync before the forward pass of the last micro-batch"
        return Finding(
            rule=self.id,
            severity="high",
            title="The optimizer steps on gradients that were never reduced: the ranks train models of their own",
            ranks=_ranks(steps),
            steps=tuple(steps),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"In all {counted(len(steps), 'captured step')} every parameter received its gradient and the optimizer "
                    f"stepped, and DDP over {counted(ranks, 'rank')} reduced nothing; it has no communication hook."
                ),
            ),
            why="every pass of every captured step ran under no_sync: the optimizer uses gradients that were not averaged",
            next=remedy,
            apply=remedy,
            verify="measure again: each step should have one reduction; compare a parameter over the ranks",
        )


def _needless(step: StepPasses) -> bool:
    """Does more than one pass reduce, each all gradients?"""
    sent = [p.bytes for p, reduces in zip(step.passes, step.reducing, strict=True) if reduces]
    return len(sent) > 1 and max(sent) - min(sent) <= _SAME * max(sent)


def _cost(ranks: list[StepPasses]) -> float:
    """ns that the needless reductions of a step expose, pass by pass on the rank that waits least."""
    return float(sum(min(sent) for sent in zip(*(_exposed(m) for m in ranks), strict=True)))


def _exposed(step: StepPasses) -> list[int]:
    return [p.exposed for p, reduces in zip(step.passes, step.reducing, strict=True) if reduces][:-1]


def _never(run: Run, steps: dict[int, list[StepPasses]]) -> int | None:
    """Ranks of a DDP without a hook that had gradients in every step and reduced none; None otherwise."""
    models = ddp_models(run)
    sizes = set()
    for mine in steps.values():
        for one in mine:
            config = models.get(one.part, [{}])[0]
            grads, buckets = (run.table(name, one.part)["step"] for name in ("grads", "buckets"))
            ranks = config.get("ranks")
            if any(p.bytes for p in one.passes) or config.get("comm_hook") or not isinstance(ranks, list):
                return None
            if one.step not in grads or one.step in buckets:
                return None
            sizes.add(len(ranks))
    return sizes.pop() if len(sizes) == 1 and min(sizes, default=1) > 1 else None


def _ranks(steps: dict[int, list[StepPasses]]) -> tuple[int, ...]:
    return tuple(sorted({m.rank for mine in steps.values() for m in mine if m.rank is not None}))
