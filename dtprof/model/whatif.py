"""What edits would make of a run: a predicted step with its interval and the model's own record, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dtprof.edits import Edit
from dtprof.errors import InputError
from dtprof.model.cost import CostTable, from_calibration
from dtprof.model.cost.allowed import calibration_of
from dtprof.model.ddp.accumulated import predict_accumulation
from dtprof.model.ddp.as_run import simulated_run as ddp_run
from dtprof.model.ddp.buckets import Caps
from dtprof.model.ddp.observe import Seen, observe
from dtprof.model.ddp.powersgd import KEY as POWERSGD
from dtprof.model.ddp.powersgd import predict_powersgd
from dtprof.model.ddp.predict import Change, DdpModel, cost_of_run
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.model.fsdp.whatif import predict as predict_fsdp
from dtprof.model.moe.whatif import predict as predict_experts
from dtprof.model.on_device import knows as on_graph
from dtprof.model.on_device import predict as predict_on_graph
from dtprof.model.outcome import MORE_STEPS, Outcome, withheld
from dtprof.model.pipeline.whatif import predict as predict_pipeline
from dtprof.run import Run
from dtprof.schema import DEVICE_KINDS

# replay of a DDP run on gloo may be off by this much
MOST_REPLAY_ERROR = 0.05
_WIRE = {"fp32": 1.0, "bf16": 0.5, "fp16": 0.5}
# edits of what ranks do themselves, which any step graph answers
_OF_WORK = ("ideal.rank", "ideal.loader", "compute.")
_BUCKETS = {"ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list", "ddp.first_bucket_mb"}


def what_if(run: Run, edits: Sequence[Edit], calibration: Path | None = None) -> Outcome:
    """The step of ``run`` under ``edits``.

    ``calibration``: the run folder of ``dtprof job collectives`` on the same network; without it a DDP run takes its file from
    its own folder, else its own collectives. InputError for edits that contradict each other.
    """
    if not edits:
        raise InputError("no edit to predict", "give --set KEY=VALUE")
    if any(edit.key.startswith("moe.") for edit in edits):
        return predict_experts(run, edits)
    if _on_device(run):
        if any(edit.key.startswith("fsdp.") for edit in edits):
            return predict_fsdp(run, edits, calibration)
        return predict_on_graph(run, edits)
    if any(edit.key.startswith("pipeline.") for edit in edits):
        return predict_pipeline(run, edits)
    if any(edit.key.startswith("fsdp.") for edit in edits):
        return predict_fsdp(run, edits, calibration)
    if (accumulated := predict_accumulation(run, edits)) is not None:
        return accumulated
    seen = observe(run)
    if isinstance(seen, str):
        if has_fsdp(run) and not any(edit.key.startswith(_OF_WORK) for edit in edits):
            return predict_fsdp(run, edits, calibration)
        if on_graph(edits):
            return predict_on_graph(run, edits)
        return withheld(edits, (f"{seen}; a CPU job is modelled by its DDP steps",))
    return _of_ddp(run, seen, edits, calibration)


def _on_device(run: Run) -> bool:
    return any(run.table("events", p.ordinal).is_("kind", *DEVICE_KINDS[:3]).any() for p in run.parts)


def _of_ddp(run: Run, seen: Seen, edits: Sequence[Edit], calibration: Path | None) -> Outcome:
    beside = calibration_of(run) if calibration is None else None
    try:
        made = model_of(seen, calibration or beside)
    except InputError as error:
        if beside is None:
            raise
        made = str(error)
    if isinstance(made, str):
        return predict_on_graph(run, edits) if on_graph(edits) else withheld(edits, (made,))
    powersgd = any(edit.key == POWERSGD for edit in edits)
    change, unknown = (Change(), ()) if powersgd else change_of(edits, made)
    if unknown:
        return withheld(edits, unknown, made.replay_error)
    if made.replay_error > MOST_REPLAY_ERROR:
        reason = (
            f"the replay of the measured steps is {made.replay_error:.1%} off (limit {MOST_REPLAY_ERROR:.0%}); {MORE_STEPS}"
        )
        return withheld(edits, (reason,), made.replay_error)
    if powersgd:
        return predict_powersgd(run, seen, made, edits)
    found = made.predict(change)
    notes = [f"costs of communication from {made.cost.source}"]
    if all(r.backward is None for ranks in seen.steps.values() for r in ranks):
        notes.append("the end of the backward pass is not marked: copies out of the buckets count as the rest of the step")
    if made.cost.per_op is None and seen.handover_ns is None:
        notes.append("what handing over a collective costs was not measured: nothing, with up to 0.6 ms in the interval")
    if not seen.untraced:
        notes.append("no untraced steps: the step is compared as it was under the tracer")
    if change.accumulate > 1:
        notes.append(f"one step is {change.accumulate} micro-batches, {found.step_ns / change.accumulate / 1e6:.1f} ms each")
    return Outcome(
        edits=tuple(edits), model="DDP on gloo", measured_ns=found.base_ns, predicted_ns=found.step_ns, low_ns=found.low_ns,
        high_ns=found.high_ns, replay_error=made.replay_error, unexplained=None, withheld=(), notes=tuple(notes),
        make_run=lambda: ddp_run(run, made, change, edits), cautious_ns=found.cautious_ns,
    )  # fmt: skip


def model_of(seen: Seen, calibration: Path | None = None) -> DdpModel | str:
    """The model of a run's DDP steps, or why there is none."""
    if seen.backend != "gloo":
        return f"the buckets of DDP on {seen.backend} are not modelled: only gloo's are"
    cost: CostTable | None = from_calibration(calibration, "all_reduce", seen.n) if calibration else cost_of_run(seen)
    if cost is None:
        return (
            "all buckets of the run have one size, which tells nothing of other sizes: give --calibration RUN of dtprof job "
            "collectives on the same network"
        )
    return DdpModel(seen, cost)


def change_of(edits: Sequence[Edit], model: DdpModel) -> tuple[Change, tuple[str, ...]]:
    """The change that some edits make, and why those that the model cannot follow are withheld."""
    values = {edit.key: edit.value for edit in edits}
    reasons: list[str] = []
    fields: dict[str, Any] = {}
    if values.keys() & _BUCKETS:
        fields["caps"] = _caps(values)
    for key, value in values.items():
        if key in _BUCKETS:
            continue
        reader = _READERS.get(key)
        if reader is None:
            reasons.append(f"{key} is not part of the model of DDP on gloo")
            continue
        made = reader(value, model)
        if isinstance(made, str):
            reasons.append(made)
        else:
            fields |= made
    return Change(**fields), tuple(reasons)


def _caps(values: dict[str, Any]) -> Caps:
    if "ddp.bucket_cap_mb" in values and "ddp.bucket_cap_mb_list" in values:
        raise InputError("ddp.bucket_cap_mb and ddp.bucket_cap_mb_list contradict each other", "give one of them")
    return Caps.of(values.get("ddp.bucket_cap_mb"), values.get("ddp.bucket_cap_mb_list"), values.get("ddp.first_bucket_mb"))


def _ideal_rank(value: Any, model: DdpModel) -> dict[str, Any] | str:
    if value not in model.ranks:
        return f"rank {value} is not in the run, which has {', '.join(map(str, model.ranks))}"
    return {"ideal_rank": value} if len(model.ranks) > 1 else "one rank has no others to be like"


def _flag_of_view(value: Any, model: DdpModel) -> dict[str, Any] | str:
    if not value and model.seen.config.get("gradient_as_bucket_view"):
        return "the run has gradient_as_bucket_view, so what copying costs was not measured"
    return {"view": bool(value)}


_READERS: dict[str, Callable[[Any, DdpModel], dict[str, Any] | str]] = {
    "ddp.gradient_as_bucket_view": _flag_of_view,
    "ddp.accumulation": lambda value, _: {"accumulate": int(value)},
    "comm.dtype": lambda value, _: {"wire": _WIRE[value]},
    "net.bandwidth_scale": lambda value, _: {"bandwidth": float(value)},
    "net.latency_scale": lambda value, _: {"latency": float(value)},
    "ideal.rank": _ideal_rank,
    "ideal.communication": lambda value, _: {"free": bool(value)},
}
DDP_KEYS = frozenset({*_BUCKETS, *_READERS, POWERSGD})
