"""Tensor parallelism of ``common.model.GPT``, for the jobs tensor_parallel and hybrid: the plan, its optimizer, its norm.

Every matrix is divided among the ranks of a group (Shoeybi et al., Megatron-LM, 2019): ``qkv`` and ``up`` by columns, ``proj``
and ``down`` by rows, the embeddings by rows, the head by columns. A column-wise matrix takes the whole input; a row-wise one
gives a part of the sum. So in each of the two passes a block has two all-reduces of batch x sequence x dim. With sequence
parallelism (Korthikanti et al., 2022) what lies between them is divided along the sequence, and each all-reduce becomes a
reduce-scatter and an all-gather, which move as much.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from dtprof.errors import InputError


def check_tensor(ranks: int, *, heads: int, dim: int, sequence: int, vocabulary: int, divided: bool) -> None:
    """InputError where the model cannot be divided among ``ranks``; ``divided`` is sequence parallelism."""
    sizes = [("--heads", heads), ("--dim", dim), ("--vocabulary", vocabulary), *([("--seq", sequence)] if divided else [])]
    for option, size in sizes:
        if size % ranks:
            raise InputError(f"{option} {size} cannot be divided among {ranks} ranks of tensor parallelism", "give a multiple")


def parallelize(module: nn.Module, mesh: DeviceMesh, *, sequence: bool, loss: bool = False) -> None:
    """Divide a GPT, or some of its layers, among the ranks of ``mesh``; ``blocks`` are found by their names.

    ``sequence`` divides what lies between the matrices along the sequence, ``loss`` leaves the logits divided along the
    vocabulary, as a DTensor, for ``torch``'s loss_parallel.
    """
    between = Shard(1) if sequence else Replicate()
    column = ColwiseParallel(input_layouts=between)
    row = RowwiseParallel(output_layouts=between)
    head = ColwiseParallel(
        input_layouts=between, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
    )  # fmt: skip
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0) if sequence else Replicate()),
        "blocks.*.qkv": column, "blocks.*.proj": row, "blocks.*.up": column, "blocks.*.down": row,
        "head": head,
    }  # fmt: skip
    if sequence:
        plan |= {name: SequenceParallel() for name in ("norm", "blocks.*.norm1", "blocks.*.norm2")}
    have = {name.partition(".")[0] for name, _ in module.named_modules()}
    parallelize_module(module, mesh, {name: style for name, style in plan.items() if name.partition(".")[0] in have})


def by_layout(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: a fused step takes parameters of one mesh, or such as are on none."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return [{"params": found} for found in groups.values()]


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Give every gradient the layout of its parameter: those of norms are parts of a sum, each rank's own."""
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)


def norm_squared(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Square of the norm of all gradients over the ranks that share the parameters; the same on each of them."""
    found: list[Tensor] = []
    for group in by_layout(parameters):
        norm = torch.nn.utils.get_total_norm([p.grad for p in group["params"] if p.grad is not None])
        found.append((norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2)
    return torch.stack(found).sum()


def clip(parameters: Iterable[nn.Parameter], norm: float, squared: Tensor) -> None:
    """Scale all gradients so that their norm, whose square is given, is at most ``norm``."""
    for group in by_layout(parameters):
        torch.nn.utils.clip_grads_with_norm_(group["params"], norm, squared.sqrt())


class SavedBytes:
    """Counts what autograd keeps of a forward pass for the backward pass, in bytes on this rank: the activations.

    A context manager. Every storage counts once, parameters not at all; blocks that are computed again in backward
    (activation checkpointing) keep their tensors elsewhere and would not be counted.
    """

    def __init__(self, module: nn.Module) -> None:
        self._own = {_local(p).untyped_storage().data_ptr() for p in module.parameters()}
        self._storages: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in self._own:
            self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def total(self) -> int:
        """Bytes so far."""
        return sum(self._storages.values())

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
