"""What a Chrome JSON trace has beside its spans: tracks, arguments, counters, arrows between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtprof.catalogue.collectives import dtype_bytes
from dtprof.export.common import aligned, label, unmarked_steps
from dtprof.intervals import Ints
from dtprof.run import Part, Run
from dtprof.schema import MISSING, MISSING32
from dtprof.table import Table

# process numbers in the file of all ranks: this times the number of the part, plus the device, or plus _HOST
_PART, _HOST = 1000, 999
# numbers of arrows: the part and the row that was launched, or one of these and a number; all exact in a float64
_FORWARD, _OPERATION = 1 << 51, 1 << 52
# pid of a part whose process is not known, plus its ordinal
_ASSUMED_PID = 2**22 + 1
_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv",
    "barrier": "barrier",
}  # fmt: skip

Event = dict[str, Any]
Arguments = Callable[[int, bool, int], dict[str, Any]]


@dataclass(frozen=True)
class Tracks:
    """Process and thread of every lane, and whether it is on a device; ``host`` is the process of the host lanes."""

    places: dict[int, tuple[int, int, bool]]
    host: int

    def of(self, lane: int) -> tuple[int, int, bool]:
        """(process, thread, on a device)."""
        return self.places.get(lane, (self.host, 0, False))


def tracks(run: Run, part: Part, number: int) -> Tracks:
    """Host lanes by process and thread, device lanes by device and stream, as torch.profiler writes them."""
    lanes = run.table("lanes", part.ordinal)
    known = lanes["process"][lanes["process"] != MISSING]
    pid = part.pid or (int(known[0]) if len(known) else _ASSUMED_PID + part.ordinal)
    host = number * _PART + _HOST if number else pid
    places: dict[int, tuple[int, int, bool]] = {}
    taken: set[tuple[int, int]] = set()
    rows = zip(*(lanes[c].tolist() for c in ("id", "process", "device", "stream", "thread")), strict=True)
    for lane, process, device, stream, thread in rows:
        if device >= 0:
            place = (number * _PART + device if number else device, 0 if stream == MISSING else stream)
        else:
            place = (host if number or process == MISSING else process, lane if thread == MISSING else thread)
        while place in taken:
            place = (place[0], place[1] + 1_000_000)
        taken.add(place)
        places[lane] = (*place, device >= 0)
    return Tracks(places, host)


def metadata(run: Run, part: Part, where: Tracks, number: int) -> list[Event]:
    """Names and order of processes and threads."""
    lanes = run.table("lanes", part.ordinal)
    out: list[Event] = []

    def say(what: str, pid: int, tid: int, **args: Any) -> None:
        out.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0.0, "args": args})

    seen: set[int] = set()
    names = lanes.text("name")
    for lane, name in zip(lanes["id"].tolist(), names, strict=True):
        pid, tid, on_device = where.of(lane)
        if pid not in seen:
            seen.add(pid)
            device = pid - number * _PART
            about = f"{label(part)}: GPU {device} {part.device or ''}".strip() if on_device else f"{label(part)}: host"
            say("process_name", pid, 0, name=about)
            say("process_labels", pid, 0, labels=f"GPU {device}" if on_device else "CPU")
            say("process_sort_index", pid, 0, sort_index=(number * 2 + on_device))
        if name:
            say("thread_name", pid, tid, name=name)
    return out


def arguments(run: Run, part: Part) -> Arguments:
    """A function from (event row, on a device, lane) to the arguments that torch.profiler would write."""
    events = run.table("events", part.ordinal)
    lanes = run.table("lanes", part.ordinal)
    kernel = _kernel_args(run, part)
    comm = _comm_args(run, part)
    device = dict(zip(lanes["id"].tolist(), lanes["device"].tolist(), strict=True))
    stream = dict(zip(lanes["id"].tolist(), lanes["stream"].tolist(), strict=True))
    context = dict(zip(lanes["id"].tolist(), lanes["context"].tolist(), strict=True))
    plain = (("correlation", "correlation", MISSING), ("External id", "op_id", MISSING), ("bytes", "bytes", MISSING),
             ("graph node id", "graph_node", MISSING))  # fmt: skip
    columns = [(key, events[column], nothing) for key, column, nothing in plain if column in events.stored]

    def of(row: int, on_device: bool, lane: int) -> dict[str, Any]:
        out: dict[str, Any] = {key: int(c[row]) for key, c, nothing in columns if c[row] != nothing}
        if on_device:
            out |= {k: int(v[lane]) for k, v in (("device", device), ("stream", stream), ("context", context)) if v[lane] >= 0}
        return out | kernel.get(row, {}) | comm.get(row, {})

    return of


def _kernel_args(run: Run, part: Part) -> dict[int, dict[str, Any]]:
    args = run.table("kernel_args", part.ordinal)
    found: dict[int, dict[str, Any]] = {}
    grids, blocks = ([_triple(t) for t in args.text(c)] for c in ("grid", "block"))
    columns = ("event", "registers", "shared_memory", "occupancy", "warps_per_sm")
    rows = zip(*(args[c].tolist() for c in columns), grids, blocks, strict=True)
    for event, registers, shared, occupancy, warps, grid, block in rows:
        values = {
            "grid": grid, "block": block, "registers per thread": None if registers == MISSING32 else registers,
            "shared memory": None if shared == MISSING else shared,
            "est. achieved occupancy %": None if np.isnan(occupancy) else round(occupancy * 100, 6),
            "warps per SM": None if np.isnan(warps) else warps,
        }  # fmt: skip
        found[event] = {k: v for k, v in values.items() if v is not None}
    return found


def _triple(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(n) for n in text.split(",")]
    except ValueError:
        return None


def _comm_args(run: Run, part: Part) -> dict[int, dict[str, Any]]:
    """Arguments of communication kernels (of a batch those of its first operation)."""
    comm, groups = run.table("comm", part.ordinal), run.table("groups", part.ordinal)
    names = dict(zip(groups["id"].tolist(), groups.text("name"), strict=True))
    members = dict(zip(groups["id"].tolist(), groups["ranks"].tolist(), strict=True))
    sizes = dict(zip(groups["id"].tolist(), groups["size"].tolist(), strict=True))
    ops, dtypes = comm.text("op"), comm.text("dtype")
    found: dict[int, dict[str, Any]] = {}
    rows = zip(*(comm[c].tolist() for c in ("event", "group", "seq", "bytes_in", "bytes_out", "peer")), strict=True)
    for i, (event, group, seq, bytes_in, bytes_out, peer) in enumerate(rows):
        op = ops[i] or "unknown"
        if event in found or op not in _NAMES:
            continue
        dtype = dtypes[i]
        element = dtype_bytes(dtype)
        if element is None:
            dtype, element = "Byte", 1
        ranks = members.get(group)
        values = {
            "Collective name": _NAMES[op], "dtype": dtype,
            "In msg nelems": None if bytes_in == MISSING else bytes_in // element,
            "Out msg nelems": None if bytes_out == MISSING else bytes_out // element,
            "Group size": None if sizes.get(group, -1) < 0 else sizes[group], "Process Group Name": names.get(group),
            "Process Group Ranks": None if ranks is None else str(list(ranks)), "Seq": None if seq == MISSING else seq,
            "Src Rank" if op == "recv" else "Dst Rank": None if peer == MISSING32 else peer,
        }  # fmt: skip
        found[event] = {k: v for k, v in values.items() if v is not None}
    return found


def steps(run: Run, part: Part, zero: int, where: Tracks) -> list[Event]:
    """Steps that no range marks, as the profiler would mark them, on the training thread."""
    lanes = run.table("lanes", part.ordinal)
    training = lanes["id"][lanes.is_("role", "training")].tolist()
    pid, tid, _ = where.of(training[0]) if training else (where.host, 0, False)
    numbers, starts, durations = unmarked_steps(run, part)
    times = aligned(part, starts, zero).tolist()
    common = {"ph": "X", "cat": "user_annotation", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"ProfilerStep#{number}", "ts": ts / 1000, "dur": dur / 1000}
        for number, ts, dur in zip(numbers.tolist(), times, durations.tolist(), strict=True)
    ]


def forward_backward(run: Run, part: Part, start: Ints, where: Tracks, number: int) -> list[Event]:
    """Arrows from operators of the forward pass to those of the backward pass; ``start`` in ns, of every event."""
    deps, lane = run.table("deps", part.ordinal), run.table("events", part.ordinal)["lane"]
    rows = deps.take(deps.is_("kind", "forward_backward"))
    out: list[Event] = []
    for i, (src, dst) in enumerate(zip(rows["src"].tolist(), rows["dst"].tolist(), strict=True)):
        for phase, at in (("s", src), ("f", dst)):
            pid, tid, _ = where.of(int(lane[at]))
            arrow = {"ph": phase, "id": _FORWARD | number << 32 | i, "pid": pid, "tid": tid, "ts": float(start[at] / 1000)}
            out.append({**arrow, "cat": "fwdbwd", "name": "fwdbwd", **({"bp": "e"} if phase == "f" else {})})
    return out


def allocations(run: Run, part: Part, zero: int, pid: int) -> list[Event]:
    """Allocator events as instants named ``[memory]``."""
    table = run.table("allocations", part.ordinal)
    times = aligned(part, table["ts"], zero).tolist()
    rows = zip(times, *(table[c].tolist() for c in ("device", "address", "size")), strict=True)
    out: list[Event] = []
    for ts, device, address, size in rows:
        values = {"Device Type": int(device >= 0), "Device Id": device, "Addr": address, "Bytes": size}
        args = {k: v for k, v in values.items() if v not in (MISSING, MISSING32)}
        out.append({
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": pid, "tid": 0, "ts": ts / 1000,
            "args": args,
        })  # fmt: skip
    return out


def counters(run: Run, part: Part, zero: int, pid: int) -> list[Event]:
    """Counter readings and memory by category, as counter tracks."""
    out: list[Event] = []
    for metric, unit, times, values in series(run, part, zero):
        name = f"{metric} ({unit})" if unit else metric
        out += [
            {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts / 1000, "args": {"value": value}}
            for ts, value in zip(times, values, strict=True)
        ]
    return out


def series(run: Run, part: Part, zero: int) -> list[tuple[str, str, list[int], list[float]]]:
    """Counters of a part: (name, unit, times in ns from ``zero``, values), by device where one is named."""
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for table, column, value in (("samples", "metric", "value"), ("memory", "category", "bytes")):
        rows: Table = run.table(table, part.ordinal)
        usable = rows.take(rows.known("ts") & rows.known(value))
        units = usable.text("unit") if table == "samples" else ["bytes"] * len(usable)
        times = aligned(part, usable["ts"], zero).tolist()
        columns = (usable.text(column), units, usable["device"].tolist(), times, usable[value].tolist())
        for name, unit, device, ts, reading in zip(*columns, strict=True):
            what = f"{'memory ' if table == 'memory' else ''}{name or 'unnamed'}"
            times_of, values_of = found[(f"{what} of GPU {device}" if device >= 0 else what, unit or "")]
            times_of.append(ts)
            values_of.append(reading)
    return [(name, unit, *_by_time(*of)) for (name, unit), of in found.items()]


def _by_time(times: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    order = sorted(range(len(times)), key=times.__getitem__)
    return [times[i] for i in order], [values[i] for i in order]


def matched(run: Run) -> dict[int, list[tuple[int, int]]]:
    """Operations of several parts: id -> (part, event row), by aligned start."""
    shares = run.table("participations")
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for operation, start, part, event in zip(
        *(shares[c].tolist() for c in ("collective", "start", "part", "event")), strict=True
    ):
        found[operation].append((start, part, event))
    return {op: [(p, e) for _, p, e in sorted(of)] for op, of in found.items() if len({p for _, p, _ in of}) > 1}


def flows(run: Run, zero: int) -> list[Event]:
    """Arrows between the ranks' parts of each matched operation, from the first that starts to the last."""
    by_ordinal = {p.ordinal: (p, tracks(run, p, n)) for n, p in enumerate(run.parts, 1)}
    out: list[Event] = []
    for operation, shares in matched(run).items():
        for place, (ordinal, row) in enumerate(shares):
            part, where = by_ordinal[ordinal]
            events = run.table("events", ordinal)
            pid, tid, _ = where.of(int(events["lane"][row]))
            phase = "s" if place == 0 else "f" if place + 1 == len(shares) else "t"
            ts = float(aligned(part, events["ts"][row : row + 1], zero)[0] / 1000)
            out.append({
                "ph": phase, "id": _OPERATION | operation, "cat": "operation", "name": "operation", "pid": pid, "tid": tid,
                "ts": ts, "bp": "e",
            })  # fmt: skip
    return out
