"""A simulated DDP step as a run: what computes, what communicates and when, on the lanes of a gloo job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtprof.edits import Edit
from dtprof.model.ddp.buckets import assign
from dtprof.model.ddp.gloo import StepTimes, ready_at
from dtprof.model.ddp.predict import Change, DdpModel
from dtprof.model.simulate.as_run import assembled, note
from dtprof.run import Part, Run
from dtprof.table import Table

TRAINING, WORKERS = 0, (1, 2)


def simulated_run(run: Run, model: DdpModel, change: Change, edits: Sequence[Edit]) -> Run:
    """One step per captured step of ``run``, each from its own measured work, one after the other.

    Per rank: the pass to the last gradient as one operator, the copies back with the wait before them left out, the rest of the
    step as another, and the collectives on the two workers of gloo.
    """
    steps = {step: model.step_times(step, change) for step in model.works}
    parts = {p.rank: p for p in run.parts if p.rank in model.ranks}
    held: dict[int, Mapping[str, Table]] = {
        parts[rank].ordinal: _tables(run, parts[rank], model, change, i, steps, edits) for i, rank in enumerate(model.ranks)
    }
    return assembled(run, held, edits)


def _tables(
    run: Run, part: Part, model: DdpModel, change: Change, place: int, steps: dict[int, StepTimes], edits: Sequence[Edit]
) -> Mapping[str, Table]:
    seen = model.seen
    buckets = seen.buckets if change.caps is None else assign(seen.sizes, model.order, change.caps)
    held = [round(sum(seen.sizes[i] for i in bucket) * change.wire) for bucket in buckets]
    origin = int(run.table("steps", part.ordinal)["host_ts"].min())
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    filled: list[dict[str, Any]] = []
    grads: list[dict[str, Any]] = []
    for step, times in steps.items():
        length = round(times.length)
        rows += _host_rows(step, origin, times, place, seen.steps[step][place].backward)
        work = model.works[step][place]
        view = change.view or bool(seen.config.get("gradient_as_bucket_view"))
        ready = ready_at(work, seen.sizes, buckets, times.launched[place], view)
        grads += [
            {"step": step, "parameter": name, "bytes": size, "ready": origin + round(at)}
            for name, size, at in zip(seen.names, seen.sizes, ready.tolist(), strict=True)
        ]
        free = [0.0, 0.0]
        for number, size in enumerate(held):
            worker = min(WORKERS, key=lambda w: free[w - 1])
            taken = max(float(times.launched[place, number]), free[worker - 1])
            free[worker - 1] = float(times.end[number])
            ts, end = origin + round(taken), origin + round(float(times.end[number]))
            rows.append(_row("comm", "gloo:all_reduce", worker, ts, end, step) | {"bucket": number, "size": size})
            members = [seen.names[i] for i in buckets[number]]
            filled.append(
                {"step": step, "bucket": number, "members": members, "bytes": size, "ready": ts, "start": ts, "end": end}
            )
        lines.append({
            "step": step, "host_ts": origin, "host_dur": length, "complete": True, "kind": "train", "marked": "marked",
            "captured": True,
        })  # fmt: skip
        origin += length
    rows.sort(key=lambda row: int(row["ts"]))
    comm = [
        {"event": i, "op": "all_reduce", "group": 0, "seq": None, "bytes_in": row["size"], "bytes_out": row["size"],
         "bytes_known": "exact", "known_by": "collector"}
        for i, row in enumerate(rows) if row["kind"] == "comm"
    ]  # fmt: skip
    for number, line in enumerate(comm):
        line["seq"] = number
    group = {"id": 0, "name": "default", "ranks": tuple(model.ranks), "size": len(model.ranks), "backend": "gloo", "axis": "dp"}
    events = [{k: v for k, v in row.items() if k != "size"} for row in rows]
    made = {"events": events, "steps": lines, "buckets": filled, "grads": grads, "comm": comm, "groups": [group]}
    tables = {name: Table.from_rows(name, found) for name, found in made.items()}
    return tables | {"lanes": _lanes(), "quality": note(edits)}


def _host_rows(
    step: int, origin: int, times: StepTimes, place: int, backward: tuple[float, float] | None
) -> list[dict[str, Any]]:
    """The training thread: forward and backward pass to the last gradient, then, after the last bucket, the rest."""
    computed, synced, end = (round(float(t[place])) for t in (times.computed, times.synced, times.ends))
    waited = max(computed, round(float(times.end.max())))
    spans = [("cpu_op", "simulated: forward and backward", 0, computed), ("cpu_op", "simulated: copies, rest", waited, end)]
    if backward is not None:
        begin = min(round(backward[0]), computed)
        spans += [("range", "forward", 0, begin), ("range", "backward", begin, synced), ("range", "optimizer", synced, end)]
    rows = [_row(kind, name, TRAINING, origin + lo, origin + hi, step) for kind, name, lo, hi in spans if hi > lo]
    return [row | {"phase": row["name"]} if row["kind"] == "range" else row for row in rows]


def _row(kind: str, name: str, lane: int, ts: int, end: int, step: int) -> dict[str, Any]:
    return {"ts": ts, "dur": end - ts, "kind": kind, "name": name, "lane": lane, "step": step}


def _lanes() -> Table:
    training = {"id": TRAINING, "process": 0, "device": -1, "thread": 0, "name": "training thread", "role": "training"}
    workers = [{"id": w, "process": 0, "device": -1, "thread": w, "name": f"gloo worker {w}", "role": "gloo"} for w in WORKERS]
    return Table.from_rows("lanes", [training, *workers])
