"""Communication: every operation over its ranks, its waiting and its moving, ready to draw."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from dtprof.analyse.calls import calls_of
from dtprof.analyse.results import CommResult, Operation
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING, MISSING32
from dtprof.table import Table

# ranges that say nothing about an operation's purpose
_PLAIN = re.compile(r"^(?:nccl|gloo|c10d|_c10d_functional|mpi|ucc)[:_]|^ProfilerStep#|^record_param_comms$|^aten::|^autograd::")
_DECORATION = re.compile(r"^[#\s]+|[#\s]+$")


def analyse(study: Lens) -> CommResult:
    """All operations of the run, by first start."""
    run = study.run
    table, shares = run.table("collectives"), run.table("participations")
    rows_of: dict[int, list[int]] = defaultdict(list)
    for i, number in enumerate(shares["collective"].tolist()):
        rows_of[number].append(i)
    first = _capture_starts(run, table, shares, rows_of)
    labels = _Labels(run)
    operations = tuple(
        _operation(table.row(i), shares, rows_of[int(table["id"][i])], first, labels, run) for i in range(len(table))
    )
    return CommResult(operations, table, shares, _ungrouped(run), _backend(run))


def _operation(row: dict[str, Any], shares: Table, mine: list[int], first: set[int], labels: _Labels, run: Run) -> Operation:
    parts = [int(shares["part"][i]) for i in mine]
    ranks = [int(shares["rank"][i]) for i in mine]
    waits = [None if shares["wait"][i] == MISSING else int(shares["wait"][i]) for i in mine]
    known = sorted(w for w in waits if w is not None)
    number = int(row["id"])
    comm = run.table("comm", parts[0])
    at = int(shares["row"][mine[0]])
    code = int(comm["bytes_known"][at]) if at < len(comm) else -1
    bytes_known = comm.values("bytes_known")[code] if code >= 0 else None
    precise = bytes_known != "upper_bound"
    return Operation(
        id=number, op=str(row["op"]), group=str(row["group"]), seq=row["seq"], n=row["n"], n_present=row["n_present"],
        bytes=row["bytes"], bytes_known=bytes_known or "unknown", first_start_ns=row["first_start"],
        end_ns=row["last_start"] if row["end"] is None else row["end"],
        transfer_ns=row["transfer"], transfer_upper_ns=row["transfer_upper"], wait_ns=dict(zip(ranks, waits, strict=True)),
        dur_ns={r: max(int(shares["dur"][i]), 0) for r, i in zip(ranks, mine, strict=True)}, last_rank=row["last_rank"],
        last_by_ns=known[1] - known[0] if len(known) > 1 else None, start_skew_ns=row["start_skew"],
        end_skew_ns=row["end_skew"] or 0, algbw_gb_s=row["algbw"] if precise else None,
        busbw_gb_s=row["busbw"] if precise else None, matched_by=str(row["matched_by"]), one_sided=bool(row["one_sided"]),
        capture_start=number in first, step=row["step"], label=labels.of(parts[0], at),
        events={p: int(shares["event"][i]) for p, i in zip(parts, mine, strict=True)},
    )  # fmt: skip


def _capture_starts(run: Run, table: Table, shares: Table, rows_of: dict[int, list[int]]) -> set[int]:
    """The first operation of every capture: its waiting may be a profiler that started later on one rank."""
    session = {p.ordinal: (p.attempt, p.window) for p in run.parts}
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for number, start, present in zip(
        table["id"].tolist(), table["first_start"].tolist(), table["n_present"].tolist(), strict=True
    ):
        if present > 1:
            key = session[int(shares["part"][rows_of[number][0]])]
            first[key] = min(first.get(key, (start, number)), (start, number))
    return {number for _, number in first.values()}


class _Labels:
    """What a person would call an operation: the innermost range of the job or the framework around its record."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names: dict[int, tuple[list[int], tuple[str, ...], list[int], list[int]]] = {}

    def of(self, part: int, row: int) -> str:
        """Label of one comm row; "" where nothing names it."""
        if part not in self._names:
            events, comm = self._run.table("events", part), self._run.table("comm", part)
            records = comm["record"].tolist()
            if len(comm) and bool((comm["record"] == comm["event"]).any()):
                for called, by in calls_of(events, comm).items():
                    records[called] = by
            self._names[part] = (events["name"].tolist(), events.values("name"), events["parent"].tolist(), records)
        codes, names, parents, records = self._names[part]
        at = records[row] if row < len(records) else MISSING32
        while at >= 0:
            name = names[codes[at]] if codes[at] >= 0 else ""
            if name and not _PLAIN.search(name):
                return _DECORATION.sub("", name)
            at = parents[at]
        return ""


def _ungrouped(run: Run) -> dict[int, float]:
    out: dict[int, float] = {}
    for part in run.parts:
        comm, events = run.table("comm", part.ordinal), run.table("events", part.ordinal)
        spent = events["dur"][comm["event"]].astype(float) if len(comm) else np.zeros(0)
        if spent.sum() > 0:
            out[part.ordinal] = float(spent[comm["group"] == MISSING32].sum() / spent.sum())
    return out


def _backend(run: Run) -> str | None:
    for part in run.parts:
        if part.backend:
            return part.backend
    for part in run.parts:
        events = run.table("events", part.ordinal)
        names = {events.values("name")[c] for c in np.unique(events["name"][events.is_("kind", "comm")]).tolist() if c >= 0}
        for backend in ("gloo", "nccl", "mpi", "ucc"):
            if any(n.lower().startswith(backend) for n in names):
                return backend
    return None
