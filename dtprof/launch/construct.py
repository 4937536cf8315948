"""Edits put into force where a script constructs what they change: its arguments are replaced, nothing else.

What was applied to how many objects, and what could not be, is in ``dtprof.session.launched.facts["edits"]`` and is told to
the launcher. Where the changed construction fails, the script's own is done instead.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from dtprof.edits import Edit
from dtprof.launch.compress import compress
from dtprof.launch.prefetch import prefetching
from dtprof.session import launched
from dtprof.session.guard import caught

Change = Callable[[dict[str, Any]], None]
_OF_FSDP1 = {"fsdp.reshard_after_forward": "sharding_strategy", "fsdp.prefetch": "forward_prefetch"}
_TARGETS = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard", "loader": "DataLoader", "comm": "DistributedDataParallel"}


def apply(edits: Iterable[Edit]) -> None:
    """Have every later construction in this process follow the edits; called when torch has just been loaded."""
    families: dict[str, list[Edit]] = {}
    for edit in edits:
        families.setdefault(edit.key.partition(".")[0], []).append(edit)
    for family, mine in families.items():
        if family == "ddp":
            _wrap("torch.nn.parallel.distributed", ("DistributedDataParallel", "__init__"), mine, _replace)
        elif family == "loader":
            _wrap("torch.utils.data.dataloader", ("DataLoader", "__init__"), mine, _replace_loading)
        elif family == "fsdp":
            _wrap_fsdp(mine)
        elif family == "comm":
            compress(mine)


def target_of(edit: Edit) -> str:
    """What must be constructed for the edit to have an effect."""
    return _TARGETS[edit.key.partition(".")[0]]


def _wrap_fsdp(edits: list[Edit]) -> None:
    """FSDP2's function, wherever it can be imported from, and FSDP1's class, which has it as a sharding strategy."""
    original = getattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard", None)
    if original is not None:
        replaced = [e for e in edits if e.key != "fsdp.prefetch"]
        changed = _changed(original, replaced, _replace, "fully_shard") if replaced else original
        for edit in edits:
            if edit not in replaced:
                changed = prefetching(changed, edit)
        for name in ("torch.distributed.fsdp", "torch.distributed.fsdp._fully_shard",
                     "torch.distributed.fsdp._fully_shard._fully_shard", "torch.distributed._composable.fsdp"):  # fmt: skip
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue
            if getattr(module, "fully_shard", None) is original:
                module.fully_shard = changed  # type: ignore[attr-defined]
    _wrap(
        "torch.distributed.fsdp.fully_sharded_data_parallel", ("FullyShardedDataParallel", "__init__"), edits, _replace_sharding
    )


def _wrap(module: str, place: tuple[str, str], edits: list[Edit], change: Callable[..., None]) -> None:
    owner = getattr(importlib.import_module(module), place[0])
    original = getattr(owner, place[1])
    setattr(owner, place[1], _changed(original, edits, change, place[0]))


def _changed(original: Any, edits: list[Edit], change: Callable[..., None], name: str) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(*args: Any, **kwargs: Any) -> Any:
        made: list[Any] = []
        before: dict[str, Any] = {}

        def changed() -> None:
            bound = signature.bind(*args, **kwargs)
            before.update(bound.arguments)
            change(bound.arguments, signature, edits)
            made.append(original(*bound.args, **bound.kwargs))

        error = caught(changed)
        if error is not None:
            made.append(original(*args, **kwargs))
        for edit in edits:
            if error is None:
                _applied(edit, name, before, signature)
            else:
                launched.edit_failed(edit, name, error)
        return made[0]

    return construct


def _replace(arguments: dict[str, Any], signature: inspect.Signature, edits: list[Edit]) -> None:
    for edit in edits:
        argument = _argument(edit)
        if argument not in signature.parameters:
            raise TypeError(f"this version of torch has no argument {argument}")
        arguments[argument] = _plain(edit.value)


def _replace_loading(arguments: dict[str, Any], signature: inspect.Signature, edits: list[Edit]) -> None:
    """What only loading processes have goes with them, and cannot be given without them."""
    _replace(arguments, signature, edits)
    if not arguments.get("num_workers"):
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            arguments.pop(name, None)


def _replace_sharding(arguments: dict[str, Any], signature: inspect.Signature, edits: list[Edit]) -> None:
    """FSDP1: to free parameters after the forward pass is what tells FULL_SHARD from SHARD_GRAD_OP, within a node, too."""
    fsdp = importlib.import_module("torch.distributed.fsdp")
    for edit in edits:
        if edit.key == "fsdp.prefetch":
            if int(edit.value) > 1:  # type: ignore[arg-type]
                raise TypeError("FullyShardedDataParallel gathers one unit ahead at most")
            arguments["forward_prefetch"] = bool(edit.value)
            arguments["backward_prefetch"] = fsdp.BackwardPrefetch.BACKWARD_PRE if edit.value else None
        else:
            arguments["sharding_strategy"] = _strategy(edit, arguments.get("sharding_strategy"), fsdp.ShardingStrategy)


def _strategy(edit: Edit, given: Any, strategies: Any) -> Any:
    if not isinstance(edit.value, bool):
        raise TypeError("FullyShardedDataParallel knows true and false only")
    now = given or strategies.FULL_SHARD
    for pair in (("FULL_SHARD", "SHARD_GRAD_OP"), ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")):
        if now.name in pair:
            return strategies[pair[0] if edit.value else pair[1]]
    raise TypeError(f"the sharding strategy is {now.name}")


def _argument(edit: Edit) -> str:
    return edit.key.partition(".")[2]


def _plain(value: Any) -> Any:
    """A value as a script would write it: 50 for 50.0, a list for a tuple."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _applied(edit: Edit, name: str, before: dict[str, Any], signature: inspect.Signature) -> None:
    argument = _argument(edit) if name != "FullyShardedDataParallel" else _OF_FSDP1[edit.key]
    parameter = signature.parameters.get(argument)
    was = before.get(argument, parameter.default if parameter else None)
    told = launched.told_of(edit)
    told["applied_to"] += 1
    told.update(target=name, before=was if isinstance(was, bool | int | float | None) else str(was))
    launched.tell("edit", f"{edit}: applied to {name}, where it was {was}")
