"""The reading half of the DDP collector: lines to ``grads``, ``buckets`` and ``quality`` tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtprof.run import quality_rows
from dtprof.table import Table
from dtprof_collectors.ddp_lines import Config, Grads, Layout, Line, Operation, Ready


def ddp_tables(lines: Sequence[Line], operations: Sequence[Operation], bad: int) -> dict[str, Table]:
    """Tables of one part. ``bad`` lines of ddp.jsonl, which a killed job leaves, are named in ``quality``.

    A gradient's ``ready`` is that of its last accumulation in the step. A bucket is ready when its last member is, and
    starts when its all-reduce was issued, where the recorded operations of the step hold the buckets' sizes in order.
    """
    configs = {line.model: line for line in lines if isinstance(line, Config)}
    layouts = [line for line in lines if isinstance(line, Layout)]
    grads: list[dict[str, Any]] = []
    buckets: list[dict[str, Any]] = []
    for line in lines:
        config = configs.get(line.model)
        if isinstance(line, Ready) and config is not None:
            buckets += light_rows(line, [layout for layout in layouts if layout.model == line.model])
        if not isinstance(line, Grads) or config is None:
            continue
        ready = last_ready(line, config)
        shapes = {name: shape for (name, _, _), shape in zip(config.parameters, config.matrices, strict=False)}
        grads += [
            {"step": line.step, "parameter": name, "bytes": size, "ready": ready[name], **_matrix(shapes.get(name))}
            for name, size, _dtype in config.parameters
            if name in ready
        ]
        if line.sync and ready:
            mine = [layout for layout in layouts if layout.model == line.model]
            buckets += bucket_rows(line.step, mine, ready, operations)
    tables = {"grads": Table.from_rows("grads", grads), "buckets": Table.from_rows("buckets", buckets)}
    if bad:
        lost = ("ddp.jsonl", "torn lines", bad, "those steps lack gradient times")
        tables["quality"] = quality_rows([lost])
    return tables


def _matrix(shape: tuple[int, int] | None) -> dict[str, int]:
    return {} if shape is None else {"rows": shape[0], "columns": shape[1]}


def last_ready(line: Grads, config: Config) -> dict[str, int]:
    """Parameter name -> time of its last accumulation."""
    return {config.parameters[i][0]: ts for i, ts in line.ready if 0 <= i < len(config.parameters)}


def bucket_rows(
    step: int, layouts: Sequence[Layout], ready: dict[str, int], operations: Sequence[Operation]
) -> list[dict[str, Any]]:
    """Buckets of one step, by the newest layout read at its end or before; else by the first one read after it."""
    before = [layout for layout in layouts if layout.step <= step]
    layout = before[-1] if before else next(iter(layouts), None)
    if layout is None:
        return []
    starts = bucket_starts(step, [b.bytes for b in layout.buckets], operations)
    rows = []
    for bucket, start in zip(layout.buckets, starts, strict=True):
        times = [ready[name] for name in bucket.members or () if name in ready]
        last = max(times, default=None)
        row = {"step": step, "bucket": bucket.bucket, "bytes": bucket.bytes, "members": bucket.members, "ready": last}
        rows.append({**row, "start": start})
    return rows


def light_rows(line: Ready, layouts: Sequence[Layout]) -> list[dict[str, Any]]:
    """Buckets of a step of which only their ready times are known: members and starts are left out."""
    layout = next((one for one in reversed(layouts) if one.step <= line.step), None)
    if not line.sync or layout is None or len(layout.buckets) != len(line.buckets):
        return []
    return [
        {"step": line.step, "bucket": bucket.bucket, "bytes": bucket.bytes, "members": None, "ready": ready}
        for bucket, ready in zip(layout.buckets, line.buckets, strict=True)
    ]


def bucket_starts(step: int, sizes: Sequence[int], operations: Sequence[Operation]) -> list[int | None]:
    """Issue times of the step's bucket all-reduces, in order; all unknown where the recorded sizes do not fit."""
    found = [o for o in operations if o.step == step and o.op == "all_reduce" and o.created_ns is not None]
    starts: list[int | None] = []
    position = 0
    for size in sizes:
        while position < len(found) and found[position].bytes_in != size:
            position += 1
        if position == len(found):
            return [None] * len(sizes)
        starts.append(found[position].created_ns)
        position += 1
    return starts
