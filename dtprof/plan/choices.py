"""What other layouts would make of a measured run: their memory, and their step by a model that its own step calibrates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dtprof.plan.calibrated import calibration
from dtprof.plan.memory import fits, peak_bytes
from dtprof.plan.own import Own, plan_of, scaled_to
from dtprof.plan.search.found import Candidate
from dtprof.plan.spec import Layout, check
from dtprof.plan.time.step import Estimator
from dtprof.run import Run

# a step this many times what the uncalibrated model expects, or fewer, is bound by what the model does not know
_FARTHEST = 3.0


@dataclass(frozen=True)
class Choices:
    """``own``: the run's plan; ``now``: its layout as predicted, which is as measured; ``replay_error`` of the model before it
    was calibrated, a ratio; ``rests``: what that rested on. What the run takes fits, whatever the memory model says of it.
    """

    own: Own
    now: Candidate
    clock: Estimator
    replay_error: float
    rests: str

    def of(self, layout: Layout) -> Candidate | None:
        """Another layout; None where it breaks a constraint."""
        if check(self.own.model, self.own.cluster, layout):
            return None
        found = _candidate(self.own, self.clock, layout)
        return replace(found, fit="fits") if found.memory.device <= self.now.memory.device else found

    def changed(self, **values: object) -> Candidate | None:
        """The layout with some values changed."""
        return self.of(replace(self.own.layout, **values))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Option:
    """A way to need less memory: ``saved`` bytes on the fullest GPU, for ``seconds`` more (or, negative, less) a step."""

    name: str
    candidate: Candidate
    saved: int
    seconds: float


def choices(run: Run) -> Choices | str:
    """The model of other layouts of a run, or the reason why there is none."""
    own = plan_of(run)
    if isinstance(own, str):
        return own
    rests = calibration(own.model, own.cluster, own.software)
    expected = Estimator(own.model, own.cluster, own.software, rests.constants).step(own.layout).seconds
    if own.step_s is None:
        return "no training step was recorded that was not traced"
    if not 1 / _FARTHEST <= own.step_s / expected <= _FARTHEST:
        return (
            f"its step lasts {own.step_s:.3g} s and the model expects {expected:.3g} s: something else than its layout counts"
        )
    constants = scaled_to(own, rests.constants)
    if constants is None:
        return f"no speed of its GPUs explains a step of {own.step_s:.3g} s where {expected:.3g} s are expected"
    clock = Estimator(own.model, own.cluster, own.software, constants)
    return Choices(own, _candidate(own, clock, own.layout), clock, abs(expected / own.step_s - 1), rests.name)


def options(found: Choices) -> list[Option]:
    """Every single change that needs less memory, cheapest first: for rules about memory."""
    out = []
    for name, layout in _lighter(found.own.layout):
        one = found.of(layout)
        saved = found.now.memory.device - one.memory.device if one is not None else 0
        if one is not None and saved > 0:
            out.append(Option(name, one, saved, one.seconds - found.now.seconds))
    return sorted(out, key=lambda option: option.seconds)


def _lighter(layout: Layout) -> Iterator[tuple[str, Layout]]:
    for mode in ("selective", "full"):
        if mode != layout.recompute and layout.recompute != "full":
            yield f"recompute {mode}", replace(layout, recompute=mode)
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield f"ZeRO-{zero}", replace(layout, zero=zero)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "sequence parallelism", replace(layout, sequence_parallel=True)
    if layout.micro_batch > 1 and layout.micro_batch % 2 == 0:
        half = layout.micro_batch // 2
        yield f"micro-batches of {half}, twice as many", replace(layout, micro_batch=half)
    for part in ("optimizer", "activations"):
        if part not in layout.offload:
            yield f"{part} on the host", replace(layout, offload=(*layout.offload, part))


def _candidate(own: Own, clock: Estimator, layout: Layout) -> Candidate:
    memory = peak_bytes(own.model, own.cluster, layout, own.software)
    time = clock.step(layout)
    return Candidate(layout, time, memory, fits(memory, own.cluster), time.seconds, 0.0)
