"""How the training itself is done: epochs of samplers, clipping beside loss scaling, skipped steps, batch and noise.

``study.result("training")`` is a ``TrainingResult``: from what the collector ``training`` noted, from the metrics ``skipped``,
``loss_scale``, ``gradient_noise_scale`` and ``learning_rate`` that a job may record (``dtprof.metric``), and from its knobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dtprof.analyse.host_steps import facts, metric, usable
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING

# axes whose ranks have data of their own, and those whose ranks work on the same
_DATA_AXES = ("dp", "ddp", "fsdp", "dp_shard", "dp_replicate", "replicate", "shard", "data")
_SHARING_AXES = ("tp", "sp", "cp", "pp")


@dataclass(frozen=True)
class Skips:
    """Steps that a gradient scaler left out: ``first`` in a row at the start, while it looks for its scale, ``later`` after
    those, of ``steps`` in all; ``numbers`` of the later ones; ``scale`` at the end."""

    first: int
    later: int
    steps: int
    numbers: tuple[int, ...]
    scale: float | None


@dataclass(frozen=True)
class TrainingResult:
    """What is known; None where it is not.

    ``repeated``: rank -> epochs that a shuffling DistributedSampler had in turn, where it had the same one each time;
    ``epochs``: whether any sampler was heard; ``clips``: (scaled, unscaled) clippings, most of any rank; ``batch``: samples
    per step of all ranks; ``noise``: gradient noise scale in samples, median of the second half of the run; ``rate``:
    learning rate at the end.
    """

    epochs: bool
    repeated: dict[int, tuple[int, ...]]
    clips: tuple[int, int] | None
    skips: Skips | None
    batch: float | None
    noise: float | None
    rate: float | None
    base_batch: float | None
    scaling: str | None
    step_ns: float | None


def analyse(study: Lens) -> TrainingResult:
    """All of it, over all ranks."""
    run = study.run
    heard, repeated = _epochs(run)
    clips = [c for p in run.parts if isinstance(c := facts(p, "training").get("clips"), dict)]
    told = [(int(c.get("scaled", 0)), int(c.get("unscaled", 0))) for c in clips]
    knobs = run.manifest.knobs
    rate = _last(run, "learning_rate")
    lengths = [ns for part in run.parts for ns in usable(run, part.ordinal).values()]
    return TrainingResult(
        heard, repeated, max(told, default=None), _skips(run), batch_of(run), _noise(run),
        _number(knobs.get("lr")) if rate is None else rate, _number(knobs.get("base_batch")),
        str(knobs["lr_scaling"]) if "lr_scaling" in knobs else None, float(np.mean(lengths)) if lengths else None,
    )  # fmt: skip


def _epochs(run: Run) -> tuple[bool, dict[int, tuple[int, ...]]]:
    heard, same = False, {}
    for part in run.parts:
        for sampler in facts(part, "training").get("samplers", ()):
            epochs = tuple(sampler.get("epochs", ())) if isinstance(sampler, dict) else ()
            heard = heard or bool(epochs)
            if part.rank is not None and len(epochs) > 1 and len(set(epochs)) == 1 and sampler.get("shuffle"):
                same[part.rank] = epochs
    return heard, same


def _skips(run: Run) -> Skips | None:
    """Of the rank with most; all ranks skip together unless something is wrong."""
    found = [_skips_of(run, part.ordinal) for part in run.parts]
    return max((s for s in found if s is not None), key=lambda s: s.later, default=None)


def _skips_of(run: Run, part: int) -> Skips | None:
    told = metric(run, part, "skipped")
    if not told:
        return None
    steps = sorted(told)
    left = [step for step in steps if told[step] > 0]
    first = next((i for i, step in enumerate(steps) if told[step] == 0), len(steps))
    later = tuple(step for step in left if step >= (steps[first] if first < len(steps) else steps[-1] + 1))
    scales = metric(run, part, "loss_scale")
    return Skips(first, len(later), len(steps), later, scales[max(scales)] if scales else None)


def data_ranks(run: Run) -> int | None:
    """How many ranks have data of their own; None where an axis of the mesh is not known to share it or not."""
    mesh = run.manifest.mesh
    if not mesh:
        return run.world_size or len(run.ranks) or None
    if any(size > 1 and axis not in (*_DATA_AXES, *_SHARING_AXES) for axis, size in mesh.items()):
        return None
    return int(np.prod([size for axis, size in mesh.items() if axis in _DATA_AXES], dtype=np.int64))


def batch_of(run: Run) -> float | None:
    """Samples per step of all ranks: the usual rank's, times the ranks with data of their own; None where not told."""
    told: list[float] = []
    for part in run.parts:
        steps = run.table("steps", part.ordinal)
        samples = steps["samples"][steps.is_("kind", "train", "warm-up", "checkpoint")]
        known = samples[samples != MISSING]
        if not len(known):
            return None
        told.append(float(np.median(known)))
    ranks = data_ranks(run)
    return float(np.mean(told)) * ranks if told and ranks else None


def _noise(run: Run) -> float | None:
    for part in run.parts:
        if told := metric(run, part.ordinal, "gradient_noise_scale"):
            steps = sorted(told)
            return float(np.median([told[s] for s in steps[len(steps) // 2 :]]))
    return None


def _last(run: Run, name: str) -> float | None:
    found = [told for part in run.parts if (told := metric(run, part.ordinal, name))]
    return found[0][max(found[0])] if found else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
