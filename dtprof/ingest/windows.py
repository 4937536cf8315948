"""Several traces of one process, one per capture window, as the tables of one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.schema import MISSING, MISSING32
from dtprof.table import Table

Tables = Mapping[str, Table]
Rows = NDArray[np.int32]

# columns that hold a row of ``events``, a lane, a group; numbers that are unique in one trace only
_EVENTS = {"events": ("parent", "launch"), "kernel_args": ("event",), "deps": ("src", "dst"), "comm": ("event", "record")}
_UNIQUE = {"events": ("correlation", "op_id"), "comm": ("batch",)}
# what makes two lanes, or two groups, the same
_LANE = ("process", "device", "context", "stream", "thread")
_GROUP = ("name", "description", "ranks", "size", "backend")


def join_windows(traces: Sequence[Tables]) -> dict[str, Table]:
    """One set of tables from those of traces in order of time; lanes and groups are told by what they are.

    Traces of one process do not overlap; should two, their events are sorted again.
    """
    if len(traces) == 1:
        return dict(traces[0])
    moved = [dict(tables) for tables in traces]
    lanes = _unify(moved, "lanes", _LANE, (("events", "lane"),))
    groups = _unify(moved, "groups", _GROUP, (("comm", "group"),))
    events = 0
    ahead: dict[tuple[str, str], int] = {}
    for tables in moved:
        for name, columns in _UNIQUE.items():
            for column in columns:
                _shift(tables, name, column, ahead)
        for name, columns in _EVENTS.items():
            if name in tables:
                tables[name] = _moved(tables[name], {c: _plus(tables[name][c], events) for c in columns})
        events += len(tables["events"]) if "events" in tables else 0
    joined = {name: Table.concat([t[name] for t in moved if name in t]) for name in dict.fromkeys(n for t in moved for n in t)}
    joined |= {name: table for name, table in (("lanes", lanes), ("groups", groups)) if table is not None}
    return _sorted(joined)


def _moved(table: Table, columns: Mapping[str, Any]) -> Table:
    stored = {name: values for name, values in columns.items() if name in table.stored}
    return table.with_columns(**stored) if stored and len(table) else table


def _plus(values: Any, offset: int) -> Any:
    missing = MISSING if values.dtype == np.int64 else MISSING32
    return np.where((values == missing) | (values < 0), values, values + offset).astype(values.dtype)


def _shift(tables: dict[str, Table], name: str, column: str, ahead: dict[tuple[str, str], int]) -> None:
    """Move numbers of one trace past those of the traces before it."""
    if name not in tables or not len(tables[name]) or column not in tables[name].stored:
        return
    offset = ahead.get((name, column), 0)
    values = _plus(tables[name][column], offset)
    ahead[name, column] = max(int(values.max()) + 1, offset)
    tables[name] = _moved(tables[name], {column: values})


def _unify(traces: list[dict[str, Table]], name: str, key: Sequence[str], users: Sequence[tuple[str, str]]) -> Table | None:
    """One table of lanes or groups for all traces, ids counted from 0; the columns that use the ids follow."""
    rows: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    for tables in traces:
        if name not in tables:
            continue
        to: dict[int, int] = {}
        for row in (tables[name].row(i) for i in range(len(tables[name]))):
            what = repr([row[column] for column in key])
            if what not in known:
                known[what] = len(rows)
                rows.append({**row, "id": len(rows)})
            to[int(row["id"])] = known[what]
        for user, column in users:
            if user in tables and len(tables[user]) and column in tables[user].stored:
                ids, inverse = np.unique(tables[user][column], return_inverse=True)
                new = np.array([to.get(i, i) for i in ids.tolist()], np.int32)
                tables[user] = _moved(tables[user], {column: new[inverse]})
    return Table.from_rows(name, rows) if any(name in t for t in traces) else None


def _sorted(tables: dict[str, Table]) -> dict[str, Table]:
    """Events ascending by time, which they are unless two traces overlap."""
    ts: Ints = tables["events"]["ts"]
    if len(ts) < 2 or bool(np.all(ts[1:] >= ts[:-1])):
        return tables
    order = np.argsort(ts, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    for name, columns in _EVENTS.items():
        if name in tables:
            table = tables[name]
            changed = {c: np.where(table[c] >= 0, place[np.maximum(table[c], 0)], table[c]) for c in columns}
            tables[name] = _moved(table, changed)
    return {**tables, "events": tables["events"].take(order)}


def renumber(tables: Tables, lines: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Table], dict[int, int]]:
    """Tables of a trace whose steps were counted by somebody else, in our numbers: {theirs: ours}.

    A step of theirs is the one of ours that shares the most time with it, half of it at least. What they call a step and
    we do not is none; events outside of our steps belong to none.
    """
    steps = tables.get("steps", Table.empty("steps"))
    begins = np.array([int(line["host_ts"]) for line in lines] or [0], np.int64)
    ends = begins + np.array([int(line["host_dur"]) for line in lines] or [0], np.int64)
    ours: dict[int, int] = {}
    for i in range(len(steps)):
        begin, end = int(steps["host_ts"][i]), int(steps["host_ts"][i] + steps["host_dur"][i])
        shared = np.minimum(ends, end) - np.maximum(begins, begin)
        at = int(np.argmax(shared))
        if lines and 2 * int(shared[at]) >= end - begin > 0:
            ours[int(steps["step"][i])] = int(lines[at]["step"])
    out = dict(tables)
    for name, table in tables.items():
        if "step" in table.stored and len(table):
            old, inverse = np.unique(table["step"], return_inverse=True)
            new = np.array([ours.get(step, MISSING32) for step in old.tolist()], np.int32)
            out[name] = _moved(table, {"step": new[inverse]})
    if len(steps):
        out["steps"] = out["steps"].take(out["steps"]["step"] != MISSING32)
    return out, ours
