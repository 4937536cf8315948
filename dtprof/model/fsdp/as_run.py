"""A simulated FSDP2 step as a run: the ranges, the operations and the thread's work, as a trace of a gloo job has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtprof.edits import Edit
from dtprof.model.fsdp.predict import Change, FsdpModel, Simulated
from dtprof.model.fsdp.running import WORKERS
from dtprof.model.simulate.as_run import assembled, note
from dtprof.run import Part, Run
from dtprof.table import Table

TRAINING = 0
_CALLS = {
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_reduce": "c10d::allreduce_",
}


def simulated_run(run: Run, model: FsdpModel, change: Change, edits: Sequence[Edit]) -> Run:
    """One step per captured step of ``run``, one after the other."""
    steps = {number: model.step(number, change) for number in model.seen.steps}
    parts = {p.rank: p for p in run.parts}
    held = {parts[rank].ordinal: _tables(run, parts[rank], model, steps, i, edits) for i, rank in enumerate(model.seen.ranks)}
    return assembled(run, held, edits)


def _tables(
    run: Run, part: Part, model: FsdpModel, steps: Mapping[int, Simulated], place: int, edits: Sequence[Edit]
) -> Mapping[str, Table]:
    origin = min(int(run.table("steps", part.ordinal)["host_ts"].min()), 1 << 62)
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for number, step in steps.items():
        begin, end = round(model.seen.steps[number].begins[place]), round(step.times.ends[place])
        own = _thread(step, place) + _operations(step, place)
        for row in own:
            row |= {"ts": row["ts"] + origin, "step": number}
        rows += own
        lines.append({
            "step": number, "host_ts": origin + begin, "host_dur": end - begin, "complete": True, "kind": "train",
            "marked": "marked", "captured": True,
        })  # fmt: skip
        origin += max(end, round(step.times.length))
    rows.sort(key=lambda row: (row["ts"], -row["dur"]))
    _link(rows)
    comm = [
        {"event": i, "record": row["record"], "op": row["op"], "group": 0, "seq": None, "bytes_in": row["given"],
         "bytes_out": row["got"], "bytes_known": "exact", "known_by": "collector"}
        for i, row in enumerate(rows) if row["kind"] == "comm"
    ]  # fmt: skip
    for number, line in enumerate(comm):
        line["seq"] = number
    n = len(model.seen.ranks)
    group = {"id": 0, "name": "default", "ranks": tuple(model.seen.ranks), "size": n, "backend": "gloo", "axis": "shard"}
    hidden = ("record", "op", "given", "got", "number", "inside")
    events = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    made = {"events": events, "steps": lines, "comm": comm, "groups": [group]}
    return {name: Table.from_rows(name, found) for name, found in made.items()} | {"lanes": _lanes(), "quality": note(edits)}


def _thread(step: Simulated, place: int) -> list[dict[str, Any]]:
    """Ranges, work and calls of the training thread."""
    rank, times = step.ranks[place], step.times.acts[place]
    rows: list[dict[str, Any]] = []
    opened: list[dict[str, Any]] = []
    inside = ""
    for act, (begin, end) in zip(rank.acts, times, strict=True):
        within = {"inside": opened[-1]} if opened else {}
        if act.doing == "open":
            rows.append(_row("range", act.name, TRAINING, begin, begin) | within)
            opened.append(rows[-1])
            inside = act.name if act.name in ("forward", "backward") else inside
        elif act.doing == "close":
            phase = {"phase": act.name} if act.name in ("forward", "backward") else {}
            row = opened.pop()
            row |= phase | {"dur": round(end) - row["ts"]}
            inside = "" if phase else inside
        elif act.doing == "work" and round(end) > round(begin):
            rows.append(_row("cpu_op", f"simulated: {inside or 'between the passes'}", TRAINING, begin, end) | within)
        elif act.doing == "issue":
            op = rank.ops[act.op]
            rows.append(_row("cpu_op", _CALLS.get(op.op, f"c10d::{op.op}"), TRAINING, begin, end) | {"number": act.op} | within)
    return rows


def _operations(step: Simulated, place: int) -> list[dict[str, Any]]:
    """The collectives on the workers of gloo, from their handing over on this rank, or from when a worker is free."""
    rank, times = step.ranks[place], step.times
    free = [0.0] * WORKERS
    n = len(step.ranks)
    rows = []
    for number, op in enumerate(rank.ops):
        worker = min(range(WORKERS), key=lambda w: free[w])
        begin = max(times.handed[number][place], free[worker])
        free[worker] = times.end[number]
        share = op.bytes // n
        given = share if op.op == "all_gather" else op.bytes
        got = share if op.op == "reduce_scatter" else op.bytes
        row = _row("comm", f"gloo:{op.op}", 1 + worker, begin, times.end[number] - step.moving.early[number][place])
        rows.append(row | {"op": op.op, "given": given, "got": got, "number": number})
    return rows


def _link(rows: list[dict[str, Any]]) -> None:
    """Records of the operations, and the innermost enclosing event of every row of the training thread."""
    places = {id(row): place for place, row in enumerate(rows)}
    calls = {
        (row["step"], row["number"]): place for place, row in enumerate(rows) if row["kind"] == "cpu_op" and "number" in row
    }
    for row in rows:
        if "inside" in row:
            row["parent"] = places[id(row["inside"])]
        if row["kind"] == "comm":
            row["record"] = calls[row["step"], row["number"]]


def _row(kind: str, name: str, lane: int, begin: float, end: float) -> dict[str, Any]:
    return {"ts": round(begin), "dur": round(end) - round(begin), "kind": kind, "name": name, "lane": lane}


def _lanes() -> Table:
    training = {"id": TRAINING, "process": 0, "device": -1, "thread": 0, "name": "training thread", "role": "training"}
    workers = [
        {"id": 1 + w, "process": 0, "device": -1, "thread": 1 + w, "name": f"gloo worker {w}", "role": "gloo"}
        for w in range(WORKERS)
    ]
    return Table.from_rows("lanes", [training, *workers])
