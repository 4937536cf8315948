"""The reading half of the DDP collector: raw lines to ``grads``, ``buckets`` and ``quality`` tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtprof.run import quality_rows
from dtprof.table import Table

Row = Mapping[str, Any]


def ddp_tables(rows: Sequence[Row], operations: Sequence[Row], bad: int) -> dict[str, Table]:
    """Tables of one part; incomplete lines of a killed job are counted and left out.

    A gradient's ``ready`` is that of its last accumulation in the step. A bucket is ready when its last member is, and
    starts when its all-reduce was issued, where the recorded operations of the step hold the buckets' sizes in order.
    """
    configs: dict[int, Row] = {}
    layouts: dict[int, list[Row]] = {}
    grads: list[dict[str, Any]] = []
    buckets: list[dict[str, Any]] = []
    for row in rows:
        kind, model = row.get("type"), row.get("model", 0)
        if kind == "config":
            configs[model] = row
        elif kind == "layout":
            layouts.setdefault(model, []).append(row)
    for row in rows:
        config = configs.get(row.get("model", 0))
        if row.get("type") != "grads" or config is None:
            continue
        ready = _last_ready(row, config)
        grads += [
            {"step": row["step"], "parameter": name, "bytes": size, "ready": ready.get(name)}
            for name, size, _dtype in config["parameters"]
            if name in ready
        ]
        if row.get("sync", True):
            buckets += _buckets(row["step"], layouts.get(row["model"], []), ready, operations)
    tables = {"grads": Table.from_rows("grads", grads), "buckets": Table.from_rows("buckets", buckets)}
    if bad:
        tables["quality"] = quality_rows(
            [("ddp.jsonl, collectives.jsonl", "torn lines", bad, "those steps lack gradient times")]
        )
    return tables


def _last_ready(row: Row, config: Row) -> dict[str, int]:
    names = [name for name, _, _ in config["parameters"]]
    return {names[index]: ts for index, ts in row["ready"] if index < len(names)}


def _buckets(step: int, layouts: list[Row], ready: dict[str, int], operations: Sequence[Row]) -> list[dict[str, Any]]:
    """Buckets of one step, by the newest layout read at its end or before; else the first one read after it."""
    before = [layout for layout in layouts if layout["step"] <= step]
    layout = before[-1] if before else next(iter(layouts), None)
    if layout is None:
        return []
    starts = _starts(step, [b["bytes"] for b in layout["buckets"]], operations)
    out = []
    for bucket, start in zip(layout["buckets"], starts, strict=True):
        times = [ready[m] for m in bucket["members"] or () if m in ready]
        out.append({
            "step": step, "bucket": bucket["bucket"], "bytes": bucket["bytes"], "members": bucket["members"],
            "ready": max(times, default=None), "start": start,
        })  # fmt: skip
    return out


def _starts(step: int, sizes: list[int], operations: Sequence[Row]) -> list[int | None]:
    """Issue times of the step's bucket all-reduces, in order; all unknown where the recorded sizes do not fit."""
    found = [
        (row["bytes_in"], row["created_ns"])
        for row in operations
        if row.get("step") == step and row.get("op") == "all_reduce" and row.get("created_ns") is not None
    ]
    starts: list[int | None] = []
    position = 0
    for size in sizes:
        while position < len(found) and found[position][0] != size:
            position += 1
        if position == len(found):
            return [None] * len(sizes)
        starts.append(found[position][1])
        position += 1
    return starts
