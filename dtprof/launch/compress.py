"""The edits ``comm.dtype`` and ``comm.powersgd_rank``: gradients travel by one of torch's own communication hooks.

The hook is registered as soon as the script has constructed a DistributedDataParallel. One that the script registers itself is
left out, and this is told; ``comm.dtype=fp32`` does that alone.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from dtprof.edits import Edit
from dtprof.session import launched
from dtprof.session.guard import caught

_DTYPE_HOOKS = {"fp16": "fp16_compress_hook", "bf16": "bf16_compress_hook"}
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
# the first reductions of PowerSGD are whole; torch allows no earlier start with error feedback
_FIRST_COMPRESSED = 2
_TARGET = "DistributedDataParallel"
_MARK = "_dtprof_comm_hook"


def compress(edits: list[Edit]) -> None:
    """Every DistributedDataParallel constructed from now on compresses as the edits say."""
    if len(edits) > 1:
        for edit in edits:
            launched.edit_failed(edit, _TARGET, f"one communication hook at a time: {' and '.join(map(str, edits))}")
        return
    edit = edits[0]
    owner = importlib.import_module("torch.nn.parallel.distributed").DistributedDataParallel
    original, register = owner.__init__, owner.register_comm_hook

    def hook_up(ddp: Any) -> None:
        hook = _hook(edit, ddp.process_group)
        if hook is not None:
            register(ddp, *hook)
        setattr(ddp, _MARK, True)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        error = caught(hook_up, self)
        if error is not None:
            launched.edit_failed(edit, _TARGET, error)
            return
        told = launched.told_of(edit)
        told.update(applied_to=told["applied_to"] + 1, target=_TARGET, before=None)
        launched.tell("edit", f"{edit}: applied to {_TARGET}")

    @functools.wraps(register)
    def register_unless_ours(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self, _MARK, False):
            launched.told_of(edit)["own_hook"] = "left out"
        else:
            register(self, *args, **kwargs)

    owner.__init__, owner.register_comm_hook = construct, register_unless_ours


def _hook(edit: Edit, group: Any) -> tuple[Any, Any] | None:
    """(state, hook) as ``register_comm_hook`` takes them; None where gradients travel as they are."""
    if edit.key == "comm.powersgd_rank":
        if importlib.import_module("torch.distributed").get_backend(group) == "gloo":
            raise TypeError("on gloo PowerSGD's collectives abort where there are several buckets")
        module = importlib.import_module(f"{_HOOKS}.powerSGD_hook")
        state = module.PowerSGDState(
            process_group=group, matrix_approximation_rank=int(edit.value),  # type: ignore[arg-type]
            start_powerSGD_iter=_FIRST_COMPRESSED,
        )  # fmt: skip
        return state, module.powerSGD_hook
    name = _DTYPE_HOOKS.get(str(edit.value))
    return None if name is None else (group, getattr(importlib.import_module(f"{_HOOKS}.default_hooks"), name))
