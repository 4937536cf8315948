"""Rules about how the model lies on the GPUs: priced by the planner's models, which the run's own step calibrates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from dtprof.advise.places import severity_of
from dtprof.analyse.memory_room import Room
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding, Prediction
from dtprof.model.pipeline.observe import observe
from dtprof.numbers import counted, percent, seconds, size
from dtprof.plan.choices import Choices, choices
from dtprof.plan.search import Candidate, Wanted, search
from dtprof.plan.search.explain import difference
from dtprof.plan.search.words import brief
from dtprof.plan.spec import Layout, Recompute
from dtprof.plan.time.step import Estimator
from dtprof.protocols import Lens
from dtprof.run import Run

# a predicted saving below this share of the step is not worth a change; a wholly other layout has to bring more
LEAST_SAVING, LEAST_OTHER = 0.03, 0.10
# a bubble below this share of the work is the usual price of a pipeline
LEAST_BUBBLE = 0.10
# what another layout gains is believed within this share of the change (docs/planner.md)
_DOUBT = 0.5
_known: WeakKeyDictionary[Run, Choices | str] = WeakKeyDictionary()


def _choices(run: Run) -> Choices | str:
    if run not in _known:
        _known[run] = choices(run)
    return _known[run]


class _Rule(ABC):
    """Asks the planner once per run; abstains with its reason."""

    id = ""

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs a device of the catalogue, the model's dimensions among the knobs, and a step that the model explains."""
        found = _choices(study.run)
        if not isinstance(found, str):
            yield from self.findings(study, found)

    def abstains(self, study: Lens) -> str:
        """Why nothing can be told; empty where something can."""
        found = _choices(study.run)
        return found if isinstance(found, str) else ""

    @abstractmethod
    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """What the rule says of this run."""

    def finding(self, found: Choices, other: Candidate, title: str, why: str, apply: str) -> Finding:
        """A finding whose remedy is another layout."""
        saving = found.now.seconds - other.seconds
        share = saving / found.now.seconds
        spare = found.own.cluster.memory_bytes - other.memory.device
        return Finding(
            rule=self.id,
            severity=severity_of(share),
            title=title,
            ranks=(),
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"Now: {brief(found.now.layout)}, {seconds(found.now.seconds)} a step measured, "
                    f"{size(found.now.memory.device)} of {size(found.own.cluster.memory_bytes)} by the memory model."
                ),
                Evidence(
                    f"Predicted: {brief(other.layout)}, {seconds(other.seconds)} a step, {size(other.memory.device)}, which "
                    f"leaves {size(spare)}."
                ),
                Evidence(
                    f"Before it was calibrated by this run the model was {percent(found.replay_error)} off; {found.rests}."
                ),
            ),
            why=why,
            next=f"{apply}. Predicted: {seconds(other.seconds)} a step, {percent(share)} less",
            apply=apply,
            verify="dtprof gate with two commands, one for each layout; and compare the peaks of memory",
            share=share,
            prediction=Prediction(saving, (1 - _DOUBT) * saving, (1 + _DOUBT) * saving, found.replay_error, None),
        )


def _fastest(found: Choices, tried: Iterable[Candidate | None]) -> Candidate | None:
    """The fastest that fits and is worth it; None where none is."""
    return min((one for one in tried if one is not None and _faster(found, one)), key=lambda one: one.seconds, default=None)


def _faster(found: Choices, other: Candidate | None, least: float = LEAST_SAVING) -> bool:
    return other is not None and other.fit == "fits" and other.seconds < (1 - least) * found.now.seconds


class WideTensor(_Rule):
    """Tensor parallelism is wider than a node: its all-reduces go over the network."""

    id = "layout.tensor_across_nodes"

    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """Tried is tp = the GPUs of a node, with more copies, or else with a longer pipeline."""
        layout, node = found.own.layout, found.own.cluster.gpus_per_node
        if layout.tp <= node or layout.tp % node:
            return
        wider = layout.tp // node
        tried = [found.changed(tp=node, dp=layout.dp * wider), found.changed(tp=node, pp=layout.pp * wider)]
        other = _fastest(found, tried)
        if other is None:
            return
        yield self.finding(
            found, other,
            f"TP={layout.tp} crosses nodes of {counted(node, 'GPU')}: inside them the step is predicted to be "
            f"{percent(1 - other.seconds / found.now.seconds)} shorter",
            "the all-reduces of each layer share the network, and nothing hides them (Narayanan et al. 2021, takeaway 1)",
            f"tensor parallelism {node}, {brief(other.layout)}",
        )  # fmt: skip


class Bubble(_Rule):
    """More, smaller micro-batches shorten the pipeline's bubble."""

    id = "layout.bubble"

    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """Silent where the passes were recorded: pipeline.microbatches measures then what this only expects."""
        layout = found.own.layout
        share = (layout.pp - 1) / (layout.vpp * layout.microbatches)
        if share < LEAST_BUBBLE or layout.micro_batch % 2 or not isinstance(observe(study.run), str):
            return
        other = found.changed(micro_batch=layout.micro_batch // 2)
        if other is None or not _faster(found, other):
            return
        gain = percent(1 - other.seconds / found.now.seconds)
        yield self.finding(
            found, other,
            f"A bubble of {percent(share)}: {layout.microbatches} -> {other.layout.microbatches} micro-batches of the same "
            f"batch are predicted to gain {gain}",
            f"{counted(layout.pp, 'stage')} are filled and drained once a step, and {layout.microbatches} micro-batches do not "
            "outweigh it",
            f"micro-batches of {counted(other.layout.micro_batch, 'sequence')}",
        )  # fmt: skip


class LowerStage(_Rule):
    """A lower stage of ZeRO fits too, and communicates less."""

    id = "layout.zero_stage"

    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """Tried are all lower stages, the fastest that fits is told. Silent where states were measured: memory.zero_stage."""
        room: Room = study.result("memory_room")
        if room.fullest is not None and room.fullest.categories.get("parameter"):
            return
        now = found.own.layout
        other = _fastest(found, (found.changed(zero=zero, shard=0) for zero in range(now.zero)))
        if other is None:
            return
        spare = found.own.cluster.memory_bytes - other.memory.device
        yield self.finding(
            found, other,
            f"ZeRO-{other.layout.zero} fits with {size(spare)} to spare: drop ZeRO-{now.zero}",
            f"stage {now.zero} gathers and sums more than its memory is needed for: {difference(other.time, found.now.time)}",
            f"ZeRO stage {other.layout.zero}",
        )  # fmt: skip


class LessRecomputation(_Rule):
    """Activations are computed again although they would fit."""

    id = "layout.recompute"

    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """Tried are the modes that recompute less; the fastest that fits is told. Silent where recomputation was measured:
        memory.checkpointing looks at that.
        """
        accounting: AccountingResult = study.result("accounting")
        if any(step.recompute_ns is not None for part in accounting.parts for step in part.steps):
            return
        now = found.own.layout.recompute
        less: dict[Recompute, tuple[Recompute, ...]] = {"full": ("selective", "none"), "selective": ("none",), "none": ()}
        other = _fastest(found, (found.changed(recompute=mode) for mode in less[now]))
        if other is None:
            return
        spare = found.own.cluster.memory_bytes - other.memory.device
        yield self.finding(
            found, other,
            f"recompute {now} -> {other.layout.recompute} fits with {size(spare)} to spare, and is predicted to gain "
            f"{percent(1 - other.seconds / found.now.seconds)}",
            f"the backward pass computes again what would fit: {difference(other.time, found.now.time)}",
            f"activation checkpointing {other.layout.recompute}",
        )  # fmt: skip


class Faster(_Rule):
    """Another layout of the same batch on the same GPUs is predicted to be much faster."""

    id = "layout.faster"

    def findings(self, study: Lens, found: Choices) -> Iterator[Finding]:
        """A search under memory; silent where one of the other rules' single changes is as good."""
        own = found.own
        layout = own.layout
        wanted = Wanted(
            own.model, own.cluster, own.software, layout.seq, layout.global_batch, precision=(layout.precision,),
            optimizer=layout.optimizer, gradient_dtype=layout.gradient_dtype, attention=layout.attention,
        )  # fmt: skip

        def clock(_: object) -> Estimator:
            return found.clock

        best = search(wanted, clock).best
        if best is None or not _faster(found, best, LEAST_OTHER) or _one_change(layout, best.layout):
            return
        yield self.finding(
            found, best,
            f"{brief(best.layout)} is predicted to be {percent(1 - best.seconds / found.now.seconds)} faster than "
            f"{brief(layout)}",
            f"of all layouts that fit this one is the fastest: {difference(best.time, found.now.time)} now",
            f"the layout {brief(best.layout)}",
        )  # fmt: skip


def _one_change(layout: Layout, other: Layout) -> bool:
    """Do they differ in ZeRO stage or recomputation alone?"""
    return replace(layout, zero=other.zero, shard=other.shard, recompute=other.recompute) == other
