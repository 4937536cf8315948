"""Edits of a measured FSDP2 job: predicted from its own steps, with the replay of the measured ones as the record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dtprof.edits import Edit
from dtprof.model.cost import from_calibration
from dtprof.model.fsdp.as_run import simulated_run
from dtprof.model.fsdp.cost import network_of
from dtprof.model.fsdp.device import observe_device
from dtprof.model.fsdp.observe import SeenFsdp, observe
from dtprof.model.fsdp.predict import Change, FsdpModel, Prediction
from dtprof.model.outcome import Outcome, withheld
from dtprof.numbers import memory
from dtprof.run import Run
from dtprof.schema import DEVICE_KINDS

MODEL, ON_DEVICE = "FSDP2 on gloo", "FSDP2 on a device"
# replay of the measured steps may be off by this much
MOST_REPLAY_ERROR = 0.05
KEYS = {
    "fsdp.prefetch": "prefetch",
    "fsdp.reshard_after_forward": "reshard",
    "fsdp.wrap": "wrap",
    "net.bandwidth_scale": "bandwidth",
    "net.latency_scale": "latency",
    "ideal.communication": "free",
}


def predict(run: Run, edits: Sequence[Edit], calibration: Path | None = None) -> Outcome:
    """The FSDP2 step of a CPU run under ``edits``."""
    unknown = [f"{e.key} is not part of the model of FSDP2" for e in edits if e.key not in KEYS]
    if unknown:
        return withheld(edits, unknown, model=MODEL)
    device = on_device(run)
    name = ON_DEVICE if device else MODEL
    model = model_of(run, calibration)
    if isinstance(model, str):
        return withheld(edits, [model], model=name)
    error = model.replay_error
    if error > MOST_REPLAY_ERROR:
        reason = f"the replay of the measured steps is {error:.1%} off (limit {MOST_REPLAY_ERROR:.0%})"
        return withheld(edits, [reason], error, name)
    change = change_of(edits, model.seen)
    if isinstance(change, str):
        return withheld(edits, [change], error, name)
    try:
        if not model.network.sizes_known(model.ops(change)):
            return withheld(edits, [_ONE_SIZE], error, name)
        found = model.predict(change)
    except ValueError as problem:
        return withheld(edits, [str(problem)], error, name)
    return Outcome(
        edits=tuple(edits), model=name, measured_ns=model.seen.typical_ns, predicted_ns=found.step_ns, low_ns=found.low_ns,
        high_ns=found.high_ns, replay_error=error, unexplained=None, withheld=(), notes=tuple(_notes(model, change, found)),
        make_run=None if device else lambda: simulated_run(run, model, change, edits),
    )  # fmt: skip


_ONE_SIZE = (
    "all operations of the run have one size, which tells nothing of larger ones: give --calibration RUN of dtprof job "
    "collectives on the same network"
)


def on_device(run: Run) -> bool:
    """Does any process of the run have work on a device?"""
    return any(run.table("events", p.ordinal).is_("kind", *DEVICE_KINDS[:3]).any() for p in run.parts)


_made: WeakKeyDictionary[Run, FsdpModel | str] = WeakKeyDictionary()


def model_of(run: Run, calibration: Path | None = None) -> FsdpModel | str:
    """The model of a run's FSDP2 steps, made once; or why there is none."""
    if run not in _made:
        seen = observe_device(run) if on_device(run) else observe(run)
        _made[run] = seen if isinstance(seen, str) else FsdpModel(seen)
    model = _made[run]
    if isinstance(model, str) or calibration is None:
        return model
    seen = model.seen
    ops = {taken.op.op for step in seen.steps.values() for taken in step.taken if taken.op.kind != "other"}
    return FsdpModel(seen, network_of(seen, {op: from_calibration(calibration, op, len(seen.ranks)) for op in sorted(ops)}))


def held_bytes(run: Run, edit: Edit) -> int:
    """Bytes of gathered parameters that a rank holds at most under an edit, over what it held as measured; 0 where withheld."""
    model = model_of(run)
    change = "" if isinstance(model, str) else change_of([edit], model.seen)
    if isinstance(model, str) or isinstance(change, str):
        return 0
    base, changed = (max(r.peak for r in model.step(n, c).ranks) for n, c in ((model.number, Change()), (model.number, change)))
    return changed - base


def change_of(edits: Sequence[Edit], seen: SeenFsdp) -> Change | str:
    """The change that some edits make, or why it cannot be followed."""
    values: dict[str, Any] = {KEYS[e.key]: e.value for e in edits}
    reshard = values.get("reshard")
    if reshard is not None and not isinstance(reshard, bool):
        if reshard != len(seen.ranks):
            n = len(seen.ranks)
            return f"fsdp.reshard_after_forward={reshard} gathers over {reshard} of {n} ranks, which was not measured"
        values["reshard"] = True
    if values.keys() & {"prefetch", "reshard"} and sum(u.inner and u.bytes > 0 for u in seen.units) < 2:
        return "the job has a single unit: there is nothing to gather ahead of it, or to keep for it"
    if seen.on_device and values.get("wrap") is not None:
        return "other units on a device are not modelled: their gathers would be issued elsewhere"
    if seen.on_device and values.get("prefetch") == 0:
        return "what torch would gather ahead by itself on a device depends on how far the host runs ahead: give 1 or more"
    return Change(**values)


def _notes(model: FsdpModel, change: Change, found: Prediction) -> list[str]:
    seen = model.seen
    who = "compute stream" if seen.on_device else "thread"
    notes = [
        f"costs of communication from {model.network.source}",
        f"the {who} waits {found.waiting[1] / 1e6:.1f} ms per step instead of {found.waiting[0] / 1e6:.1f} ms",
        f"gathered parameters take {memory(found.peak[1])} per rank at most, instead of {memory(found.peak[0])}",
    ]
    if change.prefetch and seen.waits:
        notes.append(
            "the run waits for every gather as it is asked for; prefetching on gloo takes asynchronous ones "
            "(model._set_unshard_async_op(True), which fsdp.prefetch sets as well)"
        )
        notes.append("how much computing slows a gather beside it was not measured, and is not in the interval")
    if change.wrap:
        notes.append(
            f"units of {change.wrap} layers: fully_shard([layer, …], …) with so many layers each; a launcher cannot do that"
        )
    if seen.on_device:
        notes.append("kernels and what lies between them keep their times; the simulated run cannot be written for a device")
    if not seen.untraced:
        notes.append("no untraced steps: the step is compared as it was under the tracer")
    return notes
