"""What a training loop does with its data and its gradients: loaders, samplers' epochs, clipping beside loss scaling.

Raw files
    none: a few facts in part.json, read by the analysis ``training``
Facts in part.json: ``loaders`` (arguments of each live DataLoader, once the first step is over), ``samplers`` (for each
DistributedSampler that was iterated: ``shuffle`` and the ``epochs`` that it had, in turn), ``clips`` (how often gradients were
clipped while they were ``scaled`` by torch's GradScaler, and how often after they had been ``unscaled``).

Functions of torch get a function around them that notes the call and calls them: ``DistributedSampler.__iter__``,
``GradScaler.scale`` and ``unscale_``, what ``clip_grad_norm_`` clips with, and ``clip_grads_with_norm_``. No tensor is
read.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.session.guard import Guard
from dtprof.table import Table
from dtprof_collectors import memory_state

MOST_EPOCHS, MOST_OBJECTS = 64, 16
_ARGUMENTS = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "batch_size")
_CLIP = "torch.nn.utils.clip_grad"


class TrainingCollector:
    """Notes the order of calls; nothing of it happens at a step, but for one look at the live loaders."""

    name = "training"

    def __init__(self) -> None:
        self._guard = Guard()
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._looked = False
        self._scaled = self._unscaled = False
        self._clips = {"scaled": 0, "unscaled": 0}
        self._samplers: dict[int, dict[str, Any]] = {}

    def start(self, context: Context) -> None:
        """Put the functions around those of torch, as far as it has been loaded."""
        self._status = context.status
        self._status.sampled = True
        self._listen()

    def _listen(self) -> None:
        if self._undo:
            return
        sampler = getattr(sys.modules.get("torch.utils.data.distributed"), "DistributedSampler", None)
        scaler = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
        # newer versions of torch look this one up when they clip, so that it is heard however clip_grad_norm_ was imported
        clip, inner = sys.modules.get(_CLIP), "_clip_grads_with_norm_"
        for owner, name, note in (
            (sampler, "__iter__", self._on_epoch),
            (scaler, "scale", self._on_scale),
            (scaler, "unscale_", self._on_unscale),
            (clip, inner if hasattr(clip, inner) else "clip_grad_norm_", self._on_clip),
            # who has a norm over several groups of ranks clips with it
            (sys.modules.get("torch.nn.utils"), "clip_grads_with_norm_", self._on_clip),
        ):
            if owner is not None and hasattr(owner, name):
                self._wrap(owner, name, note)

    def _wrap(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        original, guard = getattr(owner, name), self._guard
        is_compiling = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            # compiled code is traced as without us
            if not is_compiling():
                guard.call("training", name, -1, note, *args)
            return original(*args, **kwargs)

        setattr(owner, name, noted)
        self._undo.append((owner, name, noted, original))

    def _on_epoch(self, sampler: Any) -> None:
        known = self._samplers.get(id(sampler))
        if known is None:
            if len(self._samplers) >= MOST_OBJECTS:
                return
            known = self._samplers[id(sampler)] = {"shuffle": bool(sampler.shuffle), "epochs": [], "of": sampler}
        if len(known["epochs"]) < MOST_EPOCHS:
            known["epochs"].append(int(sampler.epoch))
            self._tell("samplers", [{"shuffle": s["shuffle"], "epochs": list(s["epochs"])} for s in self._samplers.values()])

    def _on_scale(self, scaler: Any, *_: Any) -> None:
        if scaler.is_enabled():
            self._scaled, self._unscaled = True, False

    def _on_unscale(self, *_: Any) -> None:
        self._unscaled = True

    def _on_clip(self, *_: Any) -> None:
        if self._scaled:
            how = "unscaled" if self._unscaled else "scaled"
            self._clips[how] += 1
            if self._clips[how] == 1:
                self._tell("clips", self._clips)

    def _tell(self, key: str, value: Any) -> None:
        self._status.facts[key] = value
        self._status.changed = True

    def on_step(self, step: int) -> None:
        """After the first step, which is warm-up, look at the live loaders once."""
        if self._looked or "torch" not in sys.modules:
            return
        self._looked = True
        self._listen()
        (loaders,) = memory_state.living(("torch.utils.data", "DataLoader"))
        found = [{name: _plain(getattr(loader, name, None)) for name in _ARGUMENTS} for loader in loaders[:MOST_OBJECTS]]
        if found:
            self._tell("loaders", found)

    def stop(self) -> None:
        """Give torch its functions back, where nobody else has put one around ours."""
        while self._undo:
            owner, name, noted, original = self._undo.pop()
            if getattr(owner, name) is noted:
                setattr(owner, name, original)
        self._samplers.clear()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: what is noted are facts."""
        return {}


def _plain(value: Any) -> int | bool | None:
    return value if isinstance(value, bool | int) else None
