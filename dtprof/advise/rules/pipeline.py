"""Rules about pipelines: too few micro-batches, stages of unequal length, and the order of the work."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.advise.predicted import in_words, notes_of, predicted, severity_of_saving
from dtprof.advise.rules.buckets import LEAST_SAVING, worth_it
from dtprof.analyse.pipeline import Pipeline, PipelineResult, RankPasses
from dtprof.analyse.results import AccountingResult, CommResult
from dtprof.analyse.stragglers import StragglerResult
from dtprof.edits import Edit, as_mapping
from dtprof.findings import Evidence, Finding
from dtprof.model.outcome import Outcome
from dtprof.numbers import counted, named, percent, time
from dtprof.protocols import Lens
from dtprof.schema import POINT_TO_POINT

# a bubble below this share of the ranks' time is the usual price of a pipeline
LEAST_BUBBLE = 0.15
# a stage that needs this much longer than the next slowest per micro-batch, and costs this share of the step, is unequal
LEAST_EXCESS, LEAST_SHARE = 0.10, 0.05
_WORDS = {"F": "forward", "B": "backward", "I": "backward for the input", "W": "backward for the weights"}
_SCHEDULES = ("1f1b", "interleaved", "zero-bubble")


class MicroBatches:
    """Too few micro-batches for the number of stages: filling and draining take a large share of the step."""

    id = "pipeline.microbatches"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where passes are not tagged, ranks are missing, or the bubble is not that of filling and draining."""
        result: PipelineResult = study.result("pipeline")
        whole = step_ns(study.result("accounting"))
        worst = max(result.pipelines, key=lambda p: p.bubble, default=None)
        if worst is None or worst.bubble < LEAST_BUBBLE:
            return
        ends = sum(r.waits("warm-up") + r.waits("drain") for r in worst.ranks) / len(worst.ranks)
        if ends < 0.5 * worst.bubble_ns or ends / whole < LEAST_SHARE:
            return
        if worst.theory is not None and worst.theory < LEAST_BUBBLE:
            return
        tried = [predicted(study.run, [Edit("pipeline.microbatches", worst.microbatches * n)]) for n in (2, 4)]
        best = min((o for o in tried if o is not None), key=lambda o: o.predicted_ns or 0.0, default=None)
        yield self._finding(study, worst, ends, whole, best if best is not None and worth_it(best) else None)

    def _finding(self, study: Lens, pipeline: Pipeline, ends: float, whole: float, best: Outcome | None) -> Finding:
        p, m = len(pipeline.ranks), pipeline.microbatches
        told = f" Theory for equal stages: {percent(pipeline.theory)}." if pipeline.theory is not None else ""
        remedy = f"more micro-batches in a step: 4 per stage or more, that is {4 * p}"
        return Finding(
            rule=self.id,
            severity=severity_of(ends / whole),
            title=f"{counted(m, 'micro-batch', 'micro-batches')} on {counted(pipeline.stages, 'stage')}: "
            f"{percent(pipeline.bubble)} of the ranks' time is the pipeline's bubble",
            ranks=tuple(r.rank for r in pipeline.ranks),
            steps=pipeline.steps,
            seconds_per_step=ends / 1e9,
            evidence=(
                Evidence(
                    f"Waiting between passes is {percent(pipeline.bubble)} of the time of {counted(p, 'rank')}.{told}",
                    {r.part: r.rows for r in pipeline.ranks},
                ),
                *_bubbles(pipeline),
                *([Evidence(f"Predicted with {_told(best)}: {in_words(best)}.")] if best is not None else []),
            ),
            why=f"filling and draining {counted(pipeline.stages, 'stage')} takes {time(ends)} per rank and step, however many "
            f"micro-batches there are, and {m} do not outweigh it",
            next=remedy if best is None else f"{_told(best)}. Predicted: {in_words(best)}",
            apply=f"{remedy}, of the same batch (smaller passes) or of a larger one; 1F1B keeps the activations of {p} of them "
            "at most, whatever their number",
            verify="measure again with more micro-batches: the bubble should be (p-1)/(m+p-1) of the passes",
            share=ends / whole,
            bound=True,
            edit=as_mapping(best.edits) if best is not None else None,
            prediction=best.saving() if best is not None else None,
        )  # fmt: skip


class Imbalance:
    """One rank's stages take longer than those of the others: every micro-batch waits for it."""

    id = "pipeline.imbalance"

    def find(self, study: Lens) -> Iterator[Finding]:
        """The price is the excess over the next slowest rank, once per micro-batch. Where ranks were found slower than others
        of their stage only these are named: the passes of the others wait for them.
        """
        slower, whole = _slower(study), step_ns(study.result("accounting"))
        found = _uneven(study)
        if found:
            cost, pipeline, slow = max(found, key=lambda f: f[0])
            stage = _where(pipeline, slow)[0]
            # side by side: other pipelines' ranks with the same stage are as slow
            alike = {r.rank for c, p, r in found if 2 * c >= cost and _where(p, r)[0] == stage} - {slow.rank}
            ranks = (slow.rank,) if slower else tuple(sorted({slow.rank, *alike}))
            yield self._finding(study, cost, pipeline, slow, whole, ranks)

    def _finding(
        self, study: Lens, cost: float, pipeline: Pipeline, slow: RankPasses, whole: float, ranks: tuple[int, ...]
    ) -> Finding:
        others = [r for r in pipeline.ranks if r is not slow]
        stage, kind = _where(pipeline, slow)
        each = cost / pipeline.microbatches
        lengths = ", ".join(
            f"rank {r.rank} ({named('stage', r.stages)}) {time(pipeline.per_microbatch(r))}" for r in pipeline.ranks
        )
        waits = ", ".join(f"rank {r.rank}: {time(r.waits('steady'))}" for r in others[:6])
        even = predicted(study.run, [Edit("pipeline.balance", "even")])
        saving = even.saving() if even is not None and worth_it(even) else None
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"Stage {stage} ({named('rank', ranks)}) takes {time(each)} longer per micro-batch than the next slowest "
            f"rank, most of it in its {_WORDS[kind]} pass",
            ranks=ranks,
            steps=pipeline.steps,
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"Per micro-batch: {lengths} (medians of {counted(len(pipeline.steps), 'step')}).",
                    {slow.part: slow.rows},
                ),
                Evidence(f"Meanwhile the others wait in the middle of the step: {waits} per step; rank {slow.rank} "
                         f"{time(slow.waits('steady'))}."),
                *([Evidence(f"Predicted with all stages of the mean length: {in_words(even)}.")] if even and saving else []),
            ),
            why=f"every one of {counted(pipeline.microbatches, 'micro-batch', 'micro-batches')} goes through stage {stage}, "
            f"which takes {time(each)} longer than any other: {time(cost)} per step",
            next=f"move layers from stage {stage} to the others, or see why rank {slow.rank} computes longer"
            + (f". All stages alike: {in_words(even)}" if even and saving else ""),
            apply="divide the layers by measured time, not by number: embeddings, head and loss are layers too; if the stages "
            f"have equal work, rank {slow.rank}'s machine is slow",
            verify="measure again: passes of all stages should take equally long, and the others stop waiting in the middle",
            share=cost / whole,
            edit={"pipeline.balance": "even"} if saving else None,
            prediction=saving,
        )  # fmt: skip


class Schedule:
    """Another order of the passes makes the step shorter, or the one in use does not pay."""

    id = "pipeline.schedule"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs tagged passes of all ranks and a replay within 5%; silent where the interval holds no saving. Only a bubble
        above LEAST_BUBBLE is worth a schedule that is more involved than 1F1B; where a stage is longer than the others it must
        save more than stages made alike.
        """
        result: PipelineResult = study.result("pipeline")
        if not result.pipelines:
            return
        names = _SCHEDULES if result.pipelines[0].bubble >= LEAST_BUBBLE else _SCHEDULES[:1]
        several = any(len(r.stages) > 1 for r in result.pipelines[0].ranks)
        found = [o for name in names if (o := predicted(study.run, _edits(name, several))) is not None]
        best = min(found, key=lambda o: o.predicted_ns or 0.0, default=None)
        saving = best.saving() if best is not None else None
        if best is None or saving is None:
            return
        name = str(best.edits[0].value)
        back = name == "1f1b" and several
        # what is simpler and keeps less need not gain
        if not worth_it(best) and not (back and saving.seconds_per_step > 0):
            return
        if _uneven(study) and not _beyond_even(study, best):
            return
        accounting: AccountingResult = study.result("accounting")
        share = saving.seconds_per_step / (step_ns(accounting) / 1e9)
        why = (
            "more stages on a rank mean more messages and more passes, and here they cost more than the shorter bubble saves"
            if back
            else "with several stages on a rank filling takes less, and work of the weights can fill what is left"
        )
        yield Finding(
            rule=self.id,
            severity=severity_of_saving(best),
            title=f"The schedule {name} is predicted to save {percent(share)} of the step"
            + (": several stages on a rank do not pay" if back else ""),
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(f"Predicted with {_told(best)}: {in_words(best)}."),
                *notes_of(best),
            ),
            why=f"{why}: the step is predicted to last {time(best.predicted_ns)}",
            next=f"{_told(best)}. Predicted: {in_words(best)}",
            apply="torch.distributed.pipelining: Schedule1F1B, ScheduleInterleaved1F1B or ScheduleInterleavedZeroBubble; "
            "several stages on a rank keep more activations",
            verify="dtprof gate with two commands, one for each schedule; and compare the peaks of memory",
            edit=as_mapping(best.edits),
            prediction=saving,
        )


class Untagged:
    """Stages wait for messages of each other, and nothing says which passes they wait in."""

    id = "pipeline.bubble"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only where passes are not tagged; abstains in rings (context parallelism), which exchange messages too."""
        result: PipelineResult = study.result("pipeline")
        accounting: AccountingResult = study.result("accounting")
        comm: CommResult = study.result("comm")
        if result.pipelines or study.run.manifest.mesh.get("cp", 1) > 1:
            return
        waits = [s.message_wait_ns for p in accounting.parts for s in p.steps if s.complete]
        whole = step_ns(accounting)
        cost = sum(waits) / len(waits) if waits else 0.0
        if cost < LEAST_BUBBLE * whole:
            return
        moving = sum(s.accounting["comm_transfer_ns"] for p in accounting.parts for s in p.steps if s.complete) / len(waits)
        rows: dict[int, list[int]] = {}
        for o in comm.operations:
            if o.op in POINT_TO_POINT:
                for part, event in o.events.items():
                    rows.setdefault(part, []).append(event)
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{percent(cost / whole)} of the step is waiting inside sends and receives for other stages to compute",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"Of the exposed time of sends and receives {time(cost)} per rank and step is waiting; moving data takes "
                    f"{time(moving)}, and a faster network does not help with the rest.",
                    {part: tuple(events) for part, events in rows.items()},
                ),
                Evidence(f"Why they wait cannot be told: {result.abstained}."),
            ),
            why=f"a receive lasts until the other stage has computed: {time(cost)} per rank and step is the pipeline's bubble",
            next="mark the passes, dtprof.annotate('forward', stage=…, microbatch=…): then it can be told whether stages are "
            "unequal or micro-batches too few",
            apply="more micro-batches, stages of equal length, or an interleaved schedule: the tags tell which",
            verify="measure again with the passes marked",
            share=cost / whole,
            bound=True,
        )


def _slower(study: Lens) -> set[int]:
    stragglers: StragglerResult = study.result("stragglers")
    return {s.rank for s in stragglers.found}


def _uneven(study: Lens) -> list[tuple[float, Pipeline, RankPasses]]:
    """(ns per step, pipeline, its slowest rank) where that exceeds the next one considerably."""
    result: PipelineResult = study.result("pipeline")
    slower, whole = _slower(study), step_ns(study.result("accounting"))
    found = []
    for pipeline in result.pipelines:
        ordered = sorted(pipeline.ranks, key=pipeline.per_microbatch)
        if slower and ordered[-1].rank not in slower:
            continue
        slow, next_ = pipeline.per_microbatch(ordered[-1]), pipeline.per_microbatch(ordered[-2])
        cost = pipeline.microbatches * (slow - next_)
        if slow - next_ >= LEAST_EXCESS * next_ and cost / whole >= LEAST_SHARE:
            found.append((cost, pipeline, ordered[-1]))
    return found


def _beyond_even(study: Lens, best: Outcome) -> bool:
    """Does a schedule keep its saving where the stages have been made alike? Dividing a slow stage saves what that saves."""
    even = Edit("pipeline.balance", "even")
    alike, both = predicted(study.run, [even]), predicted(study.run, [even, *best.edits])
    if alike is None or both is None or both.predicted_ns is None or both.high_ns is None or alike.predicted_ns is None:
        return False
    beyond = alike.predicted_ns - both.predicted_ns
    return both.high_ns < alike.predicted_ns and beyond > LEAST_SAVING * (both.measured_ns or 0.0)


def _edits(name: str, several: bool) -> list[Edit]:
    edits = [Edit("pipeline.schedule", name)]
    return [*edits, Edit("pipeline.virtual_stages", 1)] if name == "1f1b" and several else edits


def _told(found: Outcome) -> str:
    return ", ".join(map(str, found.edits))


def _where(pipeline: Pipeline, slow: RankPasses) -> tuple[int, str]:
    """Stage of the slow rank, and its kind of pass, that exceeds the mean of the other ranks' stages most."""
    excess = {}
    for (kind, stage), ns in pipeline.takes.items():
        if stage in slow.stages:
            like = [v for (k, s), v in pipeline.takes.items() if k == kind and s not in slow.stages]
            excess[stage, kind] = ns - (sum(like) / len(like) if like else 0.0)
    stage, kind = max(excess, key=lambda place: excess[place])
    return stage, str(kind)


def _bubbles(pipeline: Pipeline) -> Iterator[Evidence]:
    """Each rank's waiting by where it lies, with the receives that block; the longest four ranks."""
    for r in sorted(pipeline.ranks, key=lambda r: -r.waits())[:4]:
        if not r.bubbles:
            continue
        longest = max(r.bubbles, key=lambda b: b.ns)
        before = "at the end"
        if longest.before is not None:
            kind, stage, microbatch = longest.before
            before = f"before the {_WORDS[kind]} pass of micro-batch {microbatch} on stage {stage}"
        yield Evidence(
            f"Rank {r.rank} waits {time(r.waits('warm-up'))} warming up, {time(r.waits('steady'))} in between and "
            f"{time(r.waits('drain'))} draining; longest {before}, {time(longest.ns)}.",
            {r.part: tuple(e for b in r.bubbles for e in b.receives)},
        )
