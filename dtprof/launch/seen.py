"""What a job has constructed by the time that its first optimizer steps: sharded models and the mesh of devices.

Found among the live objects, without wrapping a constructor. DistributedDataParallel is the collector ddp's own subject.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterable
from typing import Any

from dtprof.session import Layout
from dtprof.session.identity import process_group

MAX_RANKS_LISTED = 4096


def facts() -> dict[str, Any]:
    """``fsdp``: one entry per sharded model: ``kind``, ``module``, ``units``, ``parameters``, ``mesh`` (sizes by axis), and how
    often it frees parameters after the forward pass. Nothing where there is none."""
    found = [*_sharded(), *_sharded_1()]
    return {"fsdp": found} if found else {}


def layout() -> Layout:
    """Mesh, coordinates and groups from the job's DeviceMesh, if it has one with named axes that covers all ranks."""
    dist = process_group()
    for mesh in _live("torch.distributed.device_mesh", "DeviceMesh"):
        names = getattr(mesh, "mesh_dim_names", None)
        ranks = getattr(mesh, "mesh", None)
        if not names or dist is None or ranks is None or ranks.numel() != dist.get_world_size():
            continue
        return _layout(tuple(names), ranks.tolist(), tuple(ranks.shape))
    return Layout()


def _layout(names: tuple[str, ...], ranks: Any, shape: tuple[int, ...]) -> Layout:
    """Every rank's place, and the ranks of every group along every axis of more than one."""
    if len(names) != len(shape):
        return Layout()
    places: dict[int, tuple[int, ...]] = {}
    for place in itertools.product(*map(range, shape)):
        rank = ranks
        for index in place:
            rank = rank[index]
        places[int(rank)] = place
    groups = []
    for axis, name in enumerate(names):
        rows: dict[tuple[int, ...], list[int]] = {}
        for rank, place in places.items():
            rows.setdefault(place[:axis] + place[axis + 1 :], []).append(rank)
        groups += [{"name": name, "axis": name, "ranks": row} for row in rows.values() if len(row) > 1]
    coordinates = {str(rank): dict(zip(names, place, strict=True)) for rank, place in places.items()}
    if len(places) > MAX_RANKS_LISTED:
        coordinates, groups = {}, []
    return Layout(dict(zip(names, shape, strict=True)), coordinates, groups)


def _sharded() -> Iterable[dict[str, Any]]:
    """FSDP2: roots are the sharded modules that lie in no other."""
    modules = _live("torch.distributed.fsdp", "FSDPModule")
    known = set(map(id, modules))
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    for root in modules:
        if id(root) in inner:
            continue
        units = [child for child in root.modules() if id(child) in known]
        groups = [getattr(unit._get_fsdp_state(), "_fsdp_param_group", None) for unit in units]
        groups = [group for group in groups if group is not None]
        mesh = getattr(getattr(groups[0], "mesh_info", None), "mesh", None) if groups else None
        yield {
            "kind": "FSDP2", "module": type(root).__name__.removeprefix("FSDP"), "units": len(units),
            "parameters": sum(p.numel() for p in root.parameters()),
            "mesh": _sizes(mesh),
            "resharding_units": sum(getattr(group, "post_forward_mesh_info", None) is not None for group in groups),
        }  # fmt: skip


def _sharded_1() -> Iterable[dict[str, Any]]:
    """FSDP1."""
    modules = _live("torch.distributed.fsdp", "FullyShardedDataParallel")
    known = set(map(id, modules))
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    for root in modules:
        if id(root) not in inner:
            units = [child for child in root.modules() if id(child) in known]
            yield {
                "kind": "FSDP1", "module": type(root.module).__name__, "units": len(units),
                "parameters": sum(p.numel() for p in root.parameters()),
                "sharding_strategy": str(getattr(root.sharding_strategy, "name", root.sharding_strategy)),
            }  # fmt: skip


def _sizes(mesh: Any) -> dict[str, int]:
    names = getattr(mesh, "mesh_dim_names", None)
    shape = tuple(getattr(mesh, "shape", ()))
    return dict(zip(names or [f"axis {n}" for n in range(len(shape))], shape, strict=False))


def _live(module: str, name: str) -> list[Any]:
    """Live objects of a class of a loaded module, subclasses included."""
    base = getattr(sys.modules.get(module), name, None)
    if base is None:
        return []
    classes, todo = [], [base]
    while todo:
        classes.append(todo.pop())
        todo.extend(classes[-1].__subclasses__())
    return [o for o in gc.get_referrers(*classes) if isinstance(o, base)]
