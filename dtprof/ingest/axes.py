"""Mesh axes of process groups: a backend knows a group's members, and the job's layout the axis that they lie along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dtprof.table import Table


def with_axes(groups: Table, layout: Iterable[Mapping[str, Any]]) -> Table:
    """``groups`` with ``axis`` filled in from the manifest's groups ({"ranks", "axis", …}) that have the same members."""
    axes: dict[tuple[int, ...], str] = {}
    for group in layout:
        ranks, axis = group.get("ranks"), group.get("axis")
        if isinstance(ranks, list | tuple) and isinstance(axis, str) and all(isinstance(rank, int) for rank in ranks):
            axes[tuple(sorted(ranks))] = axis
    if not axes or not len(groups):
        return groups
    rows = [groups.row(i) for i in range(len(groups))]
    named = [row if row["axis"] or not row["ranks"] else {**row, "axis": axes.get(tuple(row["ranks"]))} for row in rows]
    return Table.from_rows("groups", named)
