"""Steps of several passes (gradient accumulation): what other numbers of passes per reduction make of them.

Nothing is replayed here. Where every pass reduces, what a reduction put into the earlier ones is taken out of the measured
step: the communication that no computing hides, DDP's copies into and out of buckets, and what computing loses beside
communication. The last pass then begins earlier, on each rank by its own share, and its reduction when the last is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dtprof.edits import Edit
from dtprof.model.ddp.passes import StepPasses, by_step, passes_of
from dtprof.model.outcome import Outcome, withheld
from dtprof.model.typical import typical_step
from dtprof.numbers import counted, time
from dtprof.run import Part, Run

KEY = "ddp.accumulation"
MODEL = "passes of DDP"
_SIGMAS = 1.96
# computing and communication slow each other by 1.3 (X. Miao et al., "Galvatron", 2022: dp_overlap_coe), or not at all
_SLOWED = (0.0, (1 - 1 / 1.3) / 2, 1 - 1 / 1.3)
_found: WeakKeyDictionary[Run, dict[int, list[StepPasses]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Rank:
    part: Part
    passes: StepPasses

    def saved(self, slowed: float) -> float:
        """ns that all passes but the last reducing one last less where they do not reduce."""
        reducing = [p for p, reduces in zip(self.passes.passes, self.passes.reducing, strict=True) if reduces][:-1]
        return sum(p.exposed + p.copies + slowed * p.hidden for p in reducing)

    def meets(self, slowed: float = 0.0, changed: bool = True) -> float:
        """When the rank issues the last pass's first reduction, run clock."""
        last = max(i for i, reduces in enumerate(self.passes.reducing) if reduces)
        at = self.passes.passes[last].launched + self.part.clock_offset_ns
        return at - (self.saved(slowed) if changed else 0.0)


def predict_accumulation(run: Run, edits: Sequence[Edit]) -> Outcome | None:
    """The step with another number of passes per reduction; None where that is left to the model of one pass.

    Where all passes reduce, whatever else is asked for is withheld: only the last reduction has times of its own.
    """
    wanted = next((int(e.value) for e in edits if e.key == KEY), None)  # type: ignore[arg-type]
    if run not in _found:
        _found[run] = by_step(passes_of(run))
    steps = _found[run]
    count = {len(mine[0].passes) for mine in steps.values()}
    if not count or count == {1}:
        return None
    if wanted is None:
        several = any(sum(m.reducing) > 1 for mine in steps.values() for m in mine)
        reason = f"several passes of a step reduce: predict {KEY} first, and the rest on a run that reduces once per step"
        return withheld(edits, (reason,), model=MODEL) if several else None
    if len(count) > 1:
        return withheld(edits, (f"steps differ in their passes: {', '.join(map(str, sorted(count)))}",), model=MODEL)
    if len(edits) > 1:
        return withheld(edits, (f"{KEY} is predicted alone where a step has several passes",), model=MODEL)
    reducing = {m.reducing for mine in steps.values() for m in mine}
    passes = count.pop()
    if len(reducing) > 1 or not any(next(iter(reducing))):
        return withheld(edits, ("not all steps reduce the gradients in the same passes",), model=MODEL)
    parts = {p.ordinal: p for p in run.parts}
    if sum(reducing.pop()) == 1:
        return _longer(run, steps, wanted, passes, edits)
    if wanted != passes:
        reason = f"all {passes} passes of a step reduce: the saving is known for {KEY}={passes}, which reduces once"
        return withheld(edits, (reason,), model=MODEL)
    found = [[_Rank(parts[m.part], m) for m in mine] for mine in steps.values()]
    if missing := _missing(run, found[0]):
        return withheld(edits, (missing,), model=MODEL)
    least, middle, most = (np.array([_gain(ranks, slowed) for ranks in found]) for slowed in _SLOWED)
    notes = ["nothing is replayed: what the reductions of earlier passes put into the step is taken out of it"]
    if not any(p.copies for ranks in found for r in ranks for p in r.passes.passes):
        notes.append("DDP's copies into and out of buckets are not in the trace: what they cost is left out")
    return _outcome(run, found[0], edits, -middle, (-most, -least), notes)


def _gain(ranks: Sequence[_Rank], slowed: float) -> float:
    """ns by which the last pass's reduction begins earlier: when the last rank is there."""
    return max(r.meets(changed=False) for r in ranks) - max(r.meets(slowed) for r in ranks)


def _longer(run: Run, steps: dict[int, list[StepPasses]], wanted: int, passes: int, edits: Sequence[Edit]) -> Outcome:
    """More or fewer passes that do not reduce, each as long as those that were measured."""
    parts = {p.ordinal: p for p in run.parts}
    each = np.array([max(_typical_plain(m) for m in mine) for mine in steps.values()])
    first = [_Rank(parts[m.part], m) for m in next(iter(steps.values()))]
    change = (wanted - passes) * each
    told = f"a pass that does not reduce lasts {time(float(np.median(each)))}; one step is {counted(wanted, 'pass', 'passes')}"
    return _outcome(run, first, edits, change, (change, change), [told])


def _typical_plain(step: StepPasses) -> float:
    return float(np.median([p.end - p.begin for p, reduces in zip(step.passes, step.reducing, strict=True) if not reduces]))


def _missing(run: Run, ranks: Sequence[_Rank]) -> str | None:
    world = run.world_size
    if world and len(ranks) < world:
        return f"{len(ranks)} of {world} ranks are here: how long the others' passes take is not known"
    return None


def _outcome(
    run: Run,
    ranks: Sequence[_Rank],
    edits: Sequence[Edit],
    changes: NDArray[np.float64],
    ends: tuple[NDArray[np.float64], NDArray[np.float64]],
    notes: Sequence[str],
) -> Outcome:
    parts = [r.part for r in ranks]
    measured, untraced = typical_step(run, parts, _traced(run, parts))
    told = [*notes] if untraced else [*notes, "no untraced steps: the step is compared as it was under the tracer"]
    noise = _SIGMAS * float(np.std(changes)) / len(changes) ** 0.5
    low, value, high = (measured + float(np.median(c)) for c in (ends[0], changes, ends[1]))
    return Outcome(
        edits=tuple(edits), model=MODEL, measured_ns=measured, predicted_ns=value, low_ns=low - noise, high_ns=high + noise,
        replay_error=None, unexplained=None, withheld=(), notes=tuple(told),
    )  # fmt: skip


def _traced(run: Run, parts: Sequence[Part]) -> float:
    lengths: dict[int, int] = {}
    for part in parts:
        steps = run.table("steps", part.ordinal)
        for row in np.flatnonzero(steps["captured"]).tolist():
            step = int(steps["step"][row])
            lengths[step] = max(lengths.get(step, 0), int(steps["host_dur"][row]))
    return float(np.median(list(lengths.values())))
