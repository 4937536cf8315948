"""Offloading in small: activations, optimizer states and parameters wait on the host or in files until they are needed.

What ZeRO-Infinity (Rajbhandari et al., 2021) does by the layer, done plainly: written when it is no longer needed, read when it
is needed again, nothing in advance. The moves lie in ranges named ``offload``; ``train`` records what each step moved as the
metrics ``offload_out`` and ``offload_in`` (bytes).

Parameters and states keep their tensors and lose their storage meanwhile, as FSDP does with what it has gathered.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dtprof
from dtprof.errors import InputError

HOST = "cpu"
WHAT = ("activations", "states", "parameters")


def add_options(parser: argparse.ArgumentParser) -> None:
    """--offload-activations, --offload-states and --offload-parameters."""
    told = {"activations": "what blocks keep for backward", "states": "optimizer states", "parameters": "blocks' parameters"}
    for what in WHAT:
        parser.add_argument(f"--offload-{what}", metavar="WHERE", help=f"{told[what]}: to cpu, or to files in a folder")


def check_offload(args: argparse.Namespace) -> None:
    """InputError for a place that is none."""
    for what in WHAT:
        where = getattr(args, f"offload_{what}", None)
        if where == HOST and not torch.cuda.is_available():
            raise InputError(f"--offload-{what} cpu: they are there already", "give a folder, or leave it out")
        if where is not None and where != HOST and not os.path.isdir(where):
            raise InputError(f"--offload-{what} {where}: there is no such folder", "make it first")


class Store:
    """Where tensors wait: the host's memory, or files of this process in a folder."""

    def __init__(self, where: str, name: str) -> None:
        self.folder = None if where == HOST else Path(where) / f"{name}-{os.getpid()}"
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._kept: dict[int, Tensor] = {}
        self.out = self.back = 0
        self.free, self.unused = list[int](), itertools.count()

    def put(self, number: int, tensor: Tensor) -> None:
        """Keep the elements of a tensor."""
        flat = tensor.detach().contiguous().view(-1)
        self.out += flat.nbytes
        with dtprof.annotate("offload"):
            if self.folder is None:
                self._kept[number] = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat)
            else:
                # numpy pins what it has seen: a copy, for the tensor's own storage is to be freed
                flat.cpu().clone().view(torch.uint8).numpy().tofile(self.folder / str(number))

    def get(self, number: int, into: Tensor) -> Tensor:
        """Give the elements back, into a contiguous tensor of the same size."""
        flat = into.view(-1)
        self.back += flat.nbytes
        with dtprof.annotate("offload"):
            if self.folder is None:
                flat.copy_(self._kept[number])
            else:
                flat.copy_(torch.from_numpy(np.fromfile(self.folder / str(number), dtype=np.uint8)).view(flat.dtype))
        return into

    def forget(self) -> None:
        """Remove the files."""
        self._kept.clear()
        for path in self.folder.iterdir() if self.folder is not None else ():
            path.unlink()
        if self.folder is not None:
            self.folder.rmdir()


_stores: list[Store] = []


def _store(where: str, name: str) -> Store:
    _stores.append(Store(where, name))
    return _stores[-1]


def record() -> None:
    """The step ends: what was moved in it becomes two metrics."""
    if _stores:
        dtprof.metric("offload_out", sum(s.out for s in _stores), unit="bytes")
        dtprof.metric("offload_in", sum(s.back for s in _stores), unit="bytes")
    for store in _stores:
        store.out = store.back = 0


def forget() -> None:
    """The job ends: remove every file."""
    while _stores:
        _stores.pop().forget()


def offload_activations(blocks: Iterable[nn.Module], where: str) -> None:
    """Have what each block saves for its backward pass written as it is saved and read as it is used; not its parameters."""
    store = _store(where, "activations")
    for block in blocks:
        own = {p.untyped_storage()._cdata for p in block.parameters()}
        block.forward = functools.partial(_with_hooks, block.forward, *_hooks(store, own))


def _with_hooks(forward: Callable[..., Any], pack: Any, unpack: Any, *inputs: Any, **named: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return forward(*inputs, **named)


class _Ticket:
    """The number under which a saved tensor waits; free again when autograd lets go of it."""

    def __init__(self, free: list[int], unused: Iterator[int]) -> None:
        self._free = free
        self.number = free.pop() if free else next(unused)

    def __del__(self) -> None:
        self._free.append(self.number)


def _hooks(store: Store, own: set[int]) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    def pack(tensor: Tensor) -> Any:
        if tensor.numel() == 0 or tensor.untyped_storage()._cdata in own:
            return tensor
        once = tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]
        ticket = _Ticket(store.free, store.unused)
        store.put(ticket.number, once)
        return ticket, once.shape, once.stride(), tensor.dtype, tensor.device, tensor.shape

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        ticket, shape, strides, dtype, device, whole = saved
        back = store.get(ticket.number, torch.empty(shape, dtype=dtype, device=device))
        # other strides could mean another kernel, and another rounding
        return torch.empty_strided(shape, strides, dtype=dtype, device=device).copy_(back).expand(whole)

    return pack, unpack


class _Fleeting:
    """Tensors that have a storage only between ``fetch`` and ``drop``."""

    def __init__(self, store: Store, first: int, tensors: Iterable[Tensor]) -> None:
        self.store = store
        self.tensors = list(enumerate(tensors, first))
        self.here = True

    def fetch(self, *_: object) -> None:
        """Read them, if they are away."""
        for number, tensor in () if self.here else self.tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
            self.store.get(number, tensor.data)
        self.here = True

    def drop(self, *_: object, changed: bool = False) -> None:
        """Free the storage; write it first where it was changed."""
        for number, tensor in self.tensors if self.here else ():
            if changed:
                self.store.put(number, tensor)
            tensor.untyped_storage().resize_(0)
        self.here = False


def offload_states(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Have the optimizer's states away but for its step."""
    store, away = _store(where, "states"), list[_Fleeting]()

    def before(*_: object) -> None:
        for states in away:
            states.fetch()

    def after(*_: object) -> None:
        if not away:
            states = [t for of in optimizer.state.values() for t in of.values() if isinstance(t, Tensor) and t.numel() > 1]
            away.append(_Fleeting(store, 0, states))
        away[0].drop(changed=True)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def offload_parameters(blocks: Iterable[nn.Module], optimizer: torch.optim.Optimizer, where: str) -> None:
    """Have the parameters of each block away but for its forward pass, its backward pass and the optimizer's step."""
    store, away, count = _store(where, "parameters"), list[_Fleeting](), 0
    for block in blocks:
        own = _Fleeting(store, count, block.parameters())
        count += len(own.tensors)
        away.append(own)
        own.drop(changed=True)
        block.register_forward_pre_hook(own.fetch)
        block.register_forward_hook(own.drop)
        block.register_full_backward_pre_hook(own.fetch)
        block.register_full_backward_hook(own.drop)

    def before(*_: object) -> None:
        for block in away:
            block.fetch()

    def after(*_: object) -> None:
        for block in away:
            block.drop(changed=True)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
