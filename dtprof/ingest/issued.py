"""Operations as the job issued them, joined with the spans in which they ran.

A CPU backend's trace has neither group nor sequence nor output size; our collector records them at the moment of issue.
Both are in the order of issue, so that they join by order, bytes and time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtprof.run import Part
from dtprof.schema import MISSING, MISSING32, OPS, POINT_TO_POINT
from dtprof.table import Table

_BY_NAME = ("barrier", "broadcast", "gather", "scatter")
Issued = dict[str, Any]
Quality = list[tuple[str, str, int, str]]


def join_issued(tables: dict[str, Table], issued: Sequence[Issued], part: Part, quality: Quality) -> dict[str, Table]:
    """comm, groups and buckets with what was recorded at issue; rows that the trace itself explains are left alone."""
    comm, events = tables.get("comm", Table.empty("comm")), tables.get("events", Table.empty("events"))
    open_rows = np.flatnonzero(comm["group"] == MISSING32)
    if len(open_rows) == 0:
        return {}
    order = open_rows[np.argsort(events["ts"][comm["event"][open_rows]], kind="stable")]
    starts = events["ts"][comm["event"][order]].tolist()
    rows = [comm.row(i) for i in range(len(comm))]
    spans = [(s, _known(b)) for s, b in zip(starts, comm["bytes_in"][order].tolist(), strict=True)]
    pairs = _pairs_of_a_kind(spans, [rows[row]["op"] for row in order.tolist()], issued)
    groups: dict[tuple[Any, ...], int] = {}
    group_rows: list[dict[str, Any]] = [
        tables["groups"].row(i) for i in range(len(tables.get("groups", Table.empty("groups"))))
    ]
    seen: dict[int, tuple[int, int]] = {}
    for at, operation in pairs:
        row, record = int(order[at]), issued[operation]
        rows[row].update(_row(record, _group(record, part, groups, group_rows)))
        event = int(comm["event"][row])
        if record.get("created_ns") is not None:
            seen[int(record["created_ns"])] = (int(events["ts"][event]), int(events["ts"][event] + events["dur"][event]))
    joined = {at for at, _ in pairs}
    _say_what_is_lost([rows[row]["op"] for place, row in enumerate(order.tolist()) if place not in joined], quality)
    out = {"comm": Table.from_rows("comm", rows), "groups": Table.from_rows("groups", group_rows)}
    if "buckets" in tables:
        out["buckets"] = _bucket_times(tables["buckets"], seen)
    return out


def _pairs_of_a_kind(spans: list[tuple[int, int | None]], ops: list[str], issued: Sequence[Issued]) -> list[tuple[int, int]]:
    """``pair_up``, apart for what a span's name tells for certain, as when a checkpoint's thread talks beside the training.

    So for sends and receives: gloo's are in the trace and not among the recorded operations.
    """
    pairs: list[tuple[int, int]] = []
    kinds = [_kind(op) for op in ops]
    recorded = [_kind(str(row.get("op"))) for row in issued]
    for kind in dict.fromkeys(kinds):
        mine = [at for at, other in enumerate(kinds) if other == kind]
        theirs = [number for number, other in enumerate(recorded) if other == kind]
        found = pair_up([spans[at] for at in mine], [issued[number] for number in theirs])
        pairs += [(mine[at], theirs[number]) for at, number in found]
    return pairs


def _kind(op: str) -> str:
    """What runs under its own name; the others' spans may have another one (gloo reduces and scatters by an all-reduce)."""
    return "message" if op in POINT_TO_POINT else op if op in _BY_NAME else "other"


def _say_what_is_lost(ops: list[str], quality: Quality) -> None:
    """Quality rows for spans without a record, by their operations."""
    source, effect = "collectives.jsonl", "their group is not known"
    peers = sum(op in POINT_TO_POINT for op in ops)
    if peers:
        quality.append((source, "sends and receives, which a CPU backend's flight recorder leaves out", peers, effect))
    if len(ops) > peers:
        what = "communication spans that no recorded operation explains"
        quality.append((source, what, len(ops) - peers, effect))


def pair_up(spans: Sequence[tuple[int, int | None]], issued: Sequence[Issued]) -> list[tuple[int, int]]:
    """Pairs (span, operation): each operation takes the first free span of its size that starts after it was issued.

    ``spans`` are (start, size) in order of start. Operations without a time of issue (``ddp_layout``) join in order within
    equal sizes.
    """
    free: dict[int | None, list[int]] = {}
    for at, (_, width) in enumerate(spans):
        free.setdefault(width, []).append(at)
    pairs = []
    for number, operation in enumerate(issued):
        created, size = operation.get("created_ns"), operation.get("bytes_in")
        queues = list(free.values()) if size is None else [free.get(size, []), free.get(None, [])]
        places = [(queue, _first_from(queue, created, spans)) for queue in queues]
        queue, place = min(
            places, default=([], 0), key=lambda found: found[0][found[1]] if found[1] < len(found[0]) else len(spans)
        )
        if place < len(queue):
            pairs.append((queue.pop(place), number))
    return pairs


def _first_from(queue: list[int], created: int | None, spans: Sequence[tuple[int, int | None]]) -> int:
    """Place in ``queue`` of the first span that starts at ``created`` or later."""
    return 0 if created is None else bisect_left(queue, created, key=lambda at: spans[at][0])


def _known(value: int) -> int | None:
    return None if value == MISSING else value


def _group(record: Issued, part: Part, groups: dict[tuple[Any, ...], int], rows: list[dict[str, Any]]) -> int:
    ranks = tuple(record["ranks"]) if record.get("ranks") else None
    key = (ranks, record.get("group") if ranks is None else None)
    if key not in groups:
        groups[key] = len(rows)
        rows.append({
            "id": len(rows), "name": record.get("group"), "description": record.get("description"), "ranks": ranks,
            "size": len(ranks) if ranks else None, "backend": part.backend,
        })  # fmt: skip
    return groups[key]


def _row(record: Issued, group: int) -> dict[str, Any]:
    op = record.get("op")
    return {
        "op": op if op in OPS else "unknown",
        "group": group,
        "seq": record.get("seq"),
        "bytes_in": record.get("bytes_in"),
        "bytes_out": record.get("bytes_out"),
        "bytes_known": "unknown" if record.get("bytes_in") is None and record.get("bytes_out") is None else "exact",
        "dtype": record.get("dtype"),
        "peer": record.get("peer"),
        "known_by": "collector",
    }


def _bucket_times(buckets: Table, spans: dict[int, tuple[int, int]]) -> Table:
    """Start and end of the communication of every bucket, from the span of the operation issued for it."""
    issued = buckets["start"].tolist()
    got = [spans.get(t, (MISSING, MISSING)) for t in issued]
    return buckets.with_columns(start=np.array([g[0] for g in got], np.int64), end=np.array([g[1] for g in got], np.int64))
