"""The edit ``fsdp.prefetch=N``: as soon as a script has sharded a module, the units in it name those to gather ahead.

Units are taken in the order in which their modules are defined, which is nearly always that of the forward pass; where it is
not, a unit is gathered too early or too late, and nothing breaks. What the script names itself is left out. On the CPU gathers
are also made asynchronous, since gloo's would otherwise be waited for where they are asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from dtprof.edits import Edit
from dtprof.session import launched
from dtprof.session.guard import caught

_SETTERS = ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch")


def prefetching(original: Callable[..., Any], edit: Edit) -> Callable[..., Any]:
    """``fully_shard`` that sets what each unit inside the sharded module gathers ahead."""
    owner = importlib.import_module("torch.distributed.fsdp").FSDPModule
    setters = [getattr(owner, name) for name in _SETTERS]
    for name, setter in zip(_SETTERS, setters, strict=True):
        setattr(owner, name, _left_out(setter, edit))

    @functools.wraps(original)
    def construct(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        error = caught(_arrange, module, int(edit.value), setters, owner, edit)  # type: ignore[arg-type]
        if error is not None:
            launched.edit_failed(edit, "fully_shard", error)
        return result

    return construct


def _left_out(setter: Callable[..., None], edit: Edit) -> Callable[..., None]:
    @functools.wraps(setter)
    def left_out(self: Any, modules: Any) -> None:
        _tell(edit, own_lists="left out")

    return left_out


def _arrange(module: Any, depth: int, setters: list[Callable[..., None]], owner: type, edit: Edit) -> None:
    """Name the next ``depth`` units for forward and the ones before for backward; a unit that holds others is not named."""
    if isinstance(module, list | tuple):
        return
    sharded: list[Any] = [m for m in module.modules() if isinstance(m, owner) and m is not module]
    inner = [m for m in sharded if not any(isinstance(child, owner) for child in m.modules() if child is not m)]
    units = list({id(m._get_fsdp_state()): m for m in reversed(inner)}.values())[::-1]
    if len(units) < 2:
        return
    if depth and next(module.parameters()).device.type == "cpu":
        module._set_unshard_async_op(True)
    for place, unit in enumerate(units):
        setters[0](unit, units[place + 1 : place + 1 + depth])
        setters[1](unit, units[max(place - depth, 0) : place][::-1])
    _tell(edit, applied_to=len(units))
    launched.tell("edit", f"{edit}: applied to {len(units)} units of fully_shard")


def _tell(edit: Edit, **facts: Any) -> None:
    launched.told_of(edit).update({"target": "fully_shard", "before": None} | facts)
