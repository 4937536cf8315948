"""The mesh of a job: named axes, the ranks' coordinates on them, and the groups that they make."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtprof.errors import InputError


@dataclass(frozen=True)
class Mesh:
    """``Mesh({"dp": 2, "pp": 3})``: ranks lie row by row, the last axis fastest, as in ``torch``'s ``init_device_mesh``."""

    axes: dict[str, int]

    @property
    def size(self) -> int:
        """Ranks on the mesh."""
        return math.prod(self.axes.values())

    def check(self, ranks: int) -> None:
        """InputError unless the mesh has exactly ``ranks`` places."""
        shape = " x ".join(f"{axis} {n}" for axis, n in self.axes.items())
        if min(self.axes.values()) < 1 or self.size != ranks:
            raise InputError(
                f"a mesh of {shape} does not fit {ranks} ranks", "its sizes, multiplied, must be the number of ranks"
            )

    def coordinates(self) -> dict[int, dict[str, int]]:
        """Rank to axis to index."""
        places = itertools.product(*(range(n) for n in self.axes.values()))
        return {rank: dict(zip(self.axes, place, strict=True)) for rank, place in enumerate(places)}

    def groups(self) -> list[dict[str, Any]]:
        """Every group along every axis that has more than one rank: ``{"name": "dp", "axis": "dp", "ranks": [0, 3]}``."""
        found = []
        for axis in self.axes:
            rows: dict[tuple[int, ...], list[int]] = {}
            for rank, place in self.coordinates().items():
                rows.setdefault(tuple(n for a, n in place.items() if a != axis), []).append(rank)
            found += [{"name": axis, "axis": axis, "ranks": ranks} for ranks in rows.values() if len(ranks) > 1]
        return found

    def device_mesh(self, device: str) -> DeviceMesh:
        """The same as a torch DeviceMesh on ``device`` ("cpu", "cuda"); makes the process groups."""
        return init_device_mesh(device, tuple(self.axes.values()), mesh_dim_names=tuple(self.axes))
