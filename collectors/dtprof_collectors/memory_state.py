"""What the training state takes: parameters, gradients, optimizer state, DDP's buckets, each tensor counted once.

Bytes are elements times element size: the local shard of a DTensor, the inner tensors of a wrapper subclass, values and
indices of a sparse tensor, nothing for a meta tensor. A tensor that several modules share belongs to the first.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
Row = tuple[str, str | None, int, int]


def pieces(tensor: Any) -> Iterator[Any]:
    """The plain tensors that hold a tensor's data on this rank."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        yield from pieces(local)
    elif hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from pieces(getattr(tensor, name))
    elif tensor.is_sparse:
        yield from (tensor._indices(), tensor._values())
    elif tensor.device.type != "meta":
        yield tensor


class Tally:
    """Sums by category, module and device; a tensor that was counted before counts no more."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int, int]] = set()
        self._sums: dict[tuple[str, str | None, int], int] = defaultdict(int)

    def add(self, category: str, module: str | None, tensor: Any) -> None:
        """Count a tensor; one whose memory was given away (FSDP1 does that) or cannot be told takes nothing."""
        for piece in pieces(tensor):
            try:
                key = (piece.data_ptr(), piece.numel(), piece.element_size())
                held = piece.untyped_storage().size()
            except RuntimeError:
                continue
            if held and piece.numel() and key not in self._seen:
                self._seen.add(key)
                self.bytes(category, module, device_of(piece), piece.numel() * piece.element_size())

    def bytes(self, category: str, module: str | None, device: int, count: int) -> None:
        """Count bytes that are no tensor at hand."""
        self._sums[(category, module, device)] += count

    def rows(self) -> list[Row]:
        """(category, module, device, bytes), by category and module."""
        order = sorted(self._sums, key=lambda k: (k[0], k[1] or "", k[2]))
        return [(*key, self._sums[key]) for key in order if self._sums[key]]


def device_of(tensor: Any) -> int:
    """Device ordinal; -1 is the host."""
    device = tensor.device
    return -1 if device.type == "cpu" else device.index or 0


def living(*classes: tuple[str, str]) -> list[list[Any]]:
    """Live objects of each (module, class), subclasses included, without touching any object: one walk over all."""
    bases = [getattr(sys.modules.get(module), name, None) for module, name in classes]
    found: list[list[Any]] = [[] for _ in bases]
    kinds: dict[type, tuple[int, ...]] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        wanted = kinds.get(kind)
        if wanted is None:
            wanted = kinds[kind] = tuple(i for i, base in enumerate(bases) if base is not None and base in kind.__mro__)
        for i in wanted:
            found[i].append(thing)
    return found


def roots(modules: Iterable[Any]) -> list[Any]:
    """Modules that are nobody's child, the largest first; those that were never initialised are passed over."""
    every = [m for m in modules if isinstance(m.__dict__.get("_modules"), dict)]
    children = {id(child) for module in every for child in module._modules.values() if child is not None}
    top = [m for m in every if id(m) not in children]
    return sorted(top, key=lambda m: -sum(1 for _ in m.modules()))


def path_of(name: str) -> str:
    """A module's path as its author wrote it: the names that wrappers add are taken out."""
    parts = name.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(p for p in parts if p not in _WRAPPERS or p == "module")


def owners(tops: Iterable[Any]) -> dict[int, str]:
    """id of a parameter or buffer -> path of the module that holds it; the class name stands for the outermost one."""
    found: dict[int, str] = {}
    for path, tensor in holdings(tops):
        found.setdefault(id(tensor), path)
    return found


def holdings(tops: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(path of its module, tensor) of every parameter and buffer."""
    for top in tops:
        for name, module in top.named_modules():
            path = path_of(name) or type(module).__name__
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    yield path, tensor


def tensors_in(value: Any, tensor_class: type) -> Iterator[Any]:
    """Tensors in nested dicts, lists and tuples."""
    if isinstance(value, tensor_class):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, tensor_class)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, tensor_class)


def take(gradients: dict[tuple[int, int], int]) -> list[Row]:
    """The state of this process now. ``gradients`` are (id of the parameter, device) -> bytes as its optimizer saw them."""
    import torch

    modules, optimizers, wrappers = living(
        ("torch.nn", "Module"), ("torch.optim", "Optimizer"), ("torch.nn.parallel", "DistributedDataParallel")
    )
    tops = roots(modules)
    tally, names = Tally(), owners(tops)
    trained = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    for path, tensor in holdings(tops):
        tally.add("parameter", path, tensor)
    for key, parameter in trained.items():
        tally.add("parameter", names.get(key), parameter)
    for (key, device), count in gradients.items():
        tally.bytes("gradient", names.get(key), device, count)
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for tensor in tensors_in(state, torch.Tensor):
                tally.add("optimizer", names.get(id(parameter)), tensor)
    for wrapper in wrappers:
        for device, count in bucket_bytes(wrapper).items():
            tally.bytes("communication", "DistributedDataParallel", device, count)
    return tally.rows()


def bucket_bytes(wrapper: Any) -> dict[int, int]:
    """Bytes of a wrapper's buckets by device; none where gradients are views of them, for then they are the gradients."""
    if getattr(wrapper, "gradient_as_bucket_view", False) or not hasattr(wrapper, "reducer"):
        return {}
    ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
    sums: dict[int, int] = defaultdict(int)
    for name, parameter in wrapper.module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            sums[device_of(parameter)] += parameter.numel() * parameter.element_size()
    return dict(sums)


def gradients_of(optimizer: Any) -> dict[tuple[int, int], int]:
    """(id of the parameter, device) -> bytes of its gradient."""
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                for piece in pieces(parameter.grad):
                    sums[(id(parameter), device_of(piece))] += piece.numel() * piece.element_size()
    return dict(sums)
