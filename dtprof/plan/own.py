"""The plan that a measured run was: model, cluster and layout by what its job recorded; and a calibration by its steps.

Knobs of the manifest that are read: ``model`` (a preset), or ``layers``, ``dim``, ``heads`` and ``vocabulary`` (a GPT);
``seq``, ``batch`` (sequences of one pass of a rank), ``microbatches`` or ``accumulate``, ``precision``, ``optimizer``,
``checkpointing``, ``attention``, ``strategy`` or ``zero``, ``schedule``, ``experts`` and ``experts_per_token``. The mesh gives
the axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dtprof.catalogue.hardware import Gpu, gpu_of
from dtprof.errors import InputError
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.plan import presets
from dtprof.plan.calibrated import Calibration, calibration
from dtprof.plan.constants import Constants
from dtprof.plan.machines import memory_called
from dtprof.plan.rows import ports_of
from dtprof.plan.software import software
from dtprof.plan.spec import Cluster, Layout, Model, Moe, Optimizer, Recompute, ScheduleName, Software, check
from dtprof.plan.time.step import Estimator
from dtprof.run import Run

_AXES = ("dp", "tp", "pp", "cp", "ep", "replicate", "shard")
_STRATEGIES = {"zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3, "fsdp1": 3, "ddp": 0}
_OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": "adam",
    "adam": "adam",
    "sgd": "sgd",
    "lamb": "lamb",
    "lion": "lion",
    "muon": "muon",
}
_SCHEDULES: dict[str, ScheduleName] = {"zerobubble": "zero-bubble", "gpipe": "gpipe", "interleaved": "interleaved"}
_RECOMPUTE: dict[str, Recompute] = {"full": "full", "selective": "selective"}
# shares of ceilings, and traffic, of the constants that a run can move; how far it may
_SHARES = ("products_2021", "products_2023", "products_internevo", "flash")
_TRAFFIC = ("scores", "logits", "logits_parallel", "launch_ms")
_FARTHEST = 5.0
# another layout of a model that was measured is expected within this factor: declared, between the spread of fitted tables
# (dtprof.plan.calibrated) and that of the catalogue
_SPREAD = 1.15


@dataclass(frozen=True)
class Own:
    """What a run was; ``step_s``: the median of its training steps that were not traced, None where there is none."""

    model: Model
    cluster: Cluster
    layout: Layout
    software: Software
    step_s: float | None


@dataclass(frozen=True)
class Measured:
    """A calibration by a run: for plans on this ``gpu``, and for models with experts only if the run's has ``experts``; the
    ``software`` that it ran.
    """

    gpu: str
    experts: bool
    software: Software
    rests: Calibration

    def says_of(self, model: Model, cluster: Cluster) -> bool:
        """Whether it holds for this model on this cluster."""
        return cluster.gpu.name == self.gpu and (self.experts or model.moe is None)


def plan_of(run: Run) -> Own | str:
    """The plan, or the reason why it is not known."""
    knobs = run.manifest.knobs
    gpu = _gpu(run)
    if gpu is None:
        named = sorted(set(run.manifest.devices)) or ["no device"]
        return f"{', '.join(named)}: not in the hardware catalogue, or of several kinds"
    if knobs.get("emulate"):
        return "its layers are emulated: they have no dimensions"
    model = _model(knobs)
    if isinstance(model, str):
        return model
    ranks = run.world_size
    if not ranks:
        return "the number of its ranks is not known"
    layout = _layout(run, knobs, ranks)
    if isinstance(layout, str):
        return layout
    cluster = _cluster(run, gpu, ranks)
    broken = check(model, cluster, layout)
    if broken:
        return f"what it recorded cannot be laid out: {broken[0]}"
    ran = software("fsdp2" if layout.zero == 3 or has_fsdp(run) else "ddp-eager")
    # sample jobs and most others call torch's fused attention
    return Own(
        model, cluster, layout, replace(ran, attention="flash-2" if layout.attention == "flash" else "unfused"), _step_s(run)
    )


def measured(run: Run) -> Measured:
    """What a run says of other plans; InputError where it says nothing."""
    own = _known(run)
    rests = calibrated(run, own.cluster.gpu, calibration(own.model, own.cluster, own.software))
    return Measured(own.cluster.gpu.name, own.model.moe is not None, own.software, rests)


def calibrated(run: Run, gpu: Gpu, rests: Calibration) -> Calibration:
    """Constants with which the run itself is predicted as it was measured, for plans on this GPU; InputError where it cannot
    say anything of them.
    """
    own = _known(run)
    where = f"--from {run.path}"
    if own.cluster.gpu.name != gpu.name:
        raise InputError(f"{where} was measured on {own.cluster.gpu.name}", f"the plan is for {gpu.name}")
    if own.step_s is None:
        raise InputError(f"{where} has no training step that was not traced", "record more steps than are captured")
    before = Estimator(own.model, own.cluster, own.software, rests.constants).step(own.layout).seconds
    found = scaled_to(own, rests.constants)
    if found is None:
        what = f"{where}: its step lasts {own.step_s:.3g} s, the model expects {before:.3g} s"
        raise InputError(what, "dtprof report says what it waits for: calibrate with a run that computes")
    name = f"the run {run.path}: {own.step_s:.3g} s a step where {before:.3g} s were expected without it"
    return Calibration(name, found, 1 / _SPREAD, _SPREAD)


def _known(run: Run) -> Own:
    own = plan_of(run)
    if isinstance(own, str):
        raise InputError(f"--from {run.path}: {own}", "docs/planner.md names the knobs that a job has to record")
    return own


def scaled_to(own: Own, constants: Constants) -> Constants | None:
    """Constants of compute slower by one factor, found by halving, so that the run's step is met; None beyond _FARTHEST."""
    if own.step_s is None:
        return None
    low, high = 1 / _FARTHEST, _FARTHEST

    def seconds(factor: float) -> float:
        return Estimator(own.model, own.cluster, own.software, slower(constants, factor)).step(own.layout).seconds

    if not seconds(low) <= own.step_s <= seconds(high):
        return None
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if seconds(middle) < own.step_s else (low, middle)
    return slower(constants, (low * high) ** 0.5)


def slower(constants: Constants, factor: float) -> Constants:
    """Compute ``factor`` times as slow; communication as it is."""
    changed = {name: getattr(constants, name) / factor for name in _SHARES}
    return replace(constants, **changed, **{name: getattr(constants, name) * factor for name in _TRAFFIC})


def _gpu(run: Run) -> Gpu | None:
    found = [gpu_of(name) for name in run.manifest.devices or [part.device or "" for part in run.parts]]
    return found[0] if found and len({one.name if one else "" for one in found}) == 1 else None


def _model(knobs: Mapping[str, Any]) -> Model | str:
    named = knobs.get("model")
    if isinstance(named, str):
        found = presets.find(named)
        return found if found is not None else f"its model {named!r} is not a preset"
    sizes = [knobs.get(name) for name in ("layers", "dim", "heads", "vocabulary")]
    if not all(isinstance(one, int) and one > 0 for one in sizes):
        return "the job does not record its model: knobs model, or layers, dim, heads and vocabulary"
    layers, dim, heads, vocabulary = (int(one) for one in sizes if isinstance(one, int))
    experts = knobs.get("experts")
    moe = Moe(experts, int(knobs.get("experts_per_token") or 1), 4 * dim) if isinstance(experts, int) and experts else None
    return Model("the run's GPT", layers, dim, heads, 4 * dim, vocabulary, heads, dim // heads, biases=True,
                 positions="learned", max_positions=0, moe=moe)  # fmt: skip


def _layout(run: Run, knobs: Mapping[str, Any], ranks: int) -> Layout | str:
    mesh = {axis: size for axis, size in run.manifest.mesh.items() if size > 1}
    other = [axis for axis in mesh if axis not in _AXES]
    if other:
        return f"the axis {other[0]} of its mesh is not one of {', '.join(_AXES)}"
    seq, batch = knobs.get("seq"), knobs.get("micro_batch", knobs.get("batch"))
    if not isinstance(seq, int) or not isinstance(batch, int):
        return "the job does not record the knobs seq and batch"
    tp, pp, cp, ep = (mesh.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    dp = ranks // (tp * pp * cp)
    passes = next((n for key in ("microbatches", "accumulate") if isinstance(n := knobs.get(key), int)), 1)
    zero = knobs.get("zero") if isinstance(knobs.get("zero"), int) else _STRATEGIES.get(str(knobs.get("strategy")))
    if zero is None:
        zero = 3 if has_fsdp(run) else 0
    return Layout(
        dp, batch, dp * batch * passes, seq, tp, pp, 1, cp, ep,
        sequence_parallel=tp > 1 and bool(knobs.get("sequence_parallel", True)),
        zero=zero if dp * cp > 1 else 0,
        shard=mesh.get("shard", 0) if "replicate" in mesh else 0,
        recompute=_RECOMPUTE.get(str(knobs.get("checkpointing")), "none"),
        precision=knobs.get("precision", "fp32"),
        optimizer=_OPTIMIZERS.get(str(knobs.get("optimizer") or "adamw"), "adam"),
        attention="unfused" if knobs.get("attention") == "math" else "flash",
        schedule=_SCHEDULES.get(str(knobs.get("schedule")), "1f1b") if pp > 1 else "1f1b",
    )  # fmt: skip


def _cluster(run: Run, gpu: Gpu, ranks: int) -> Cluster:
    on_host = Counter(part.host for part in run.parts if part.host is not None and part.rank is not None)
    node = max(on_host.values(), default=ranks) if len(on_host) > 1 else ranks
    device = next(iter(run.manifest.devices), gpu.name)
    total = memory_total(run)
    return Cluster(
        gpu, ranks, max(node, 1), total or memory_called(device, gpu), gpu.fast.gb_s if gpu.fast else 0.0, ports_of(gpu)
    )


def memory_total(run: Run) -> int | None:
    """Bytes of the smallest device, where NVML was read."""
    collectors = [one for part in run.parts for one in part.extra.get("collectors", ())]
    found = [total for one in collectors if one.get("name") == "nvml" and (total := one.get("facts", {}).get("memory_total"))]
    return int(min(found)) if found else None


def _step_s(run: Run) -> float | None:
    told: list[float] = []
    for part in run.parts:
        steps = run.table("steps", part.ordinal)
        rows = steps.is_("kind", "train") & steps.known("host_dur") & ~steps["captured"]
        told += steps["host_dur"][rows].tolist()
    return float(np.median(told)) * 1e-9 if told else None
