"""Launch parameters, dependencies and allocations of a Kineto file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto.events import Events, base_ns
from dtprof.ingest.kineto.raw import Ints, RawTrace, Sparse
from dtprof.ingest.kineto.spans import Rows, kind_code
from dtprof.schema import DEP_KINDS, MISSING, MISSING32
from dtprof.table import Strings, Table


def kernel_args(events: Events) -> Table:
    """Launch parameters of every kernel."""
    rows = np.flatnonzero((events.kind == kind_code("kernel")) | ((events.kind == kind_code("comm")) & events.device))
    if len(rows) == 0:
        return Table.empty("kernel_args")
    out: dict[str, Any] = {"event": rows.astype(np.int32)}
    for key in ("grid", "block"):
        text = events.argument(key, rows)
        if text is not None:
            out[key] = Strings(text.codes, tuple(v.strip("[]").replace(" ", "") for v in text.values))
    registers, shared = events.argument("registers per thread", rows), events.argument("shared memory", rows)
    if registers is not None:
        out["registers"] = np.where(registers == MISSING, MISSING32, registers).astype(np.int32)
    if shared is not None:
        out["shared_memory"] = shared
    occupancy = events.argument("est. achieved occupancy %", rows)
    if occupancy is not None:
        out["occupancy"] = occupancy / 100.0
    warps = events.argument("warps per SM", rows)
    if warps is not None:
        out["warps_per_sm"] = warps
    return Table.of("kernel_args", **out)


def dependencies(events: Events, flows: tuple[Ints, Ints]) -> Table:
    """Forward-to-backward ``flows`` (from, to), and waits of one stream for an event recorded on another."""
    waits, lanes = _stream_waits(events)
    if len(flows[0]) + len(waits[0]) == 0:
        return Table.empty("deps")
    codes = [DEP_KINDS.index("forward_backward")] * len(flows[0]) + [DEP_KINDS.index("stream_wait")] * len(waits[0])
    return Table.of(
        "deps",
        src=np.concatenate([flows[0], waits[0]]),
        dst=np.concatenate([flows[1], waits[1]]),
        kind=np.array(codes, np.int8),
        src_lane=np.concatenate([np.full(len(flows[0]), MISSING32), lanes]).astype(np.int32),
    )


def flow_pairs(events: Events) -> tuple[Ints, Ints]:
    """Operators joined by forward-to-backward flows: those that start exactly at the flow's points on its threads."""
    raw = events.raw
    codes = [i for i, c in enumerate(raw.flow_cat.values) if c == "fwdbwd"]
    rows = np.flatnonzero(np.isin(raw.flow_cat.codes, codes))
    start, end = rows[raw.flow_phase[rows] == 0], rows[raw.flow_phase[rows] == 2]
    _, at, other = np.intersect1d(raw.flow_id[start], raw.flow_id[end], return_indices=True)
    if len(at) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ops = np.flatnonzero(events.kind == kind_code("cpu_op"))
    keys = _place(raw.track[events.order[ops]], raw.ts[events.order[ops]])
    by_key = np.argsort(keys, kind="stable")
    keys, ops = keys[by_key], ops[by_key]
    ends = []
    for points in (start[at], end[other]):
        wanted = _place(raw.flow_track[points], raw.flow_ts[points])
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        ends.append(np.where(keys[found] == wanted, ops[found], -1))
    good = (ends[0] >= 0) & (ends[1] >= 0)
    return ends[0][good], ends[1][good]


def _place(track: Rows, ts: Ints) -> NDArray[np.uint64]:
    """Thread and instant as one key; 40 bits of ns are 18 minutes, and two operators of one thread that far apart differ."""
    return (track.astype(np.uint64) << np.uint64(40)) | (ts.astype(np.uint64) & np.uint64((1 << 40) - 1))


def _stream_waits(events: Events) -> tuple[tuple[Ints, Ints], Ints]:
    """(recording call, synchronisation event) of every wait, and the lane whose work was recorded."""
    syncs = np.flatnonzero(events.kind == kind_code("sync"))
    recorded = events.argument("wait_on_cuda_event_record_corr_id", syncs)
    nothing = np.empty(0, np.int64)
    if recorded is None:
        return (nothing, nothing), nothing
    streams = events.argument("wait_on_stream", syncs)
    if streams is None:
        streams = np.full(len(syncs), MISSING)
    calls = np.flatnonzero((events.kind == kind_code("runtime")) & (events.correlation != MISSING))
    by_id = dict(zip(events.correlation[calls].tolist(), calls.tolist(), strict=True))
    places = zip(events.lanes.device.tolist(), events.lanes.stream.tolist(), strict=True)
    lane_of = {place: lane for lane, place in enumerate(places) if place[0] >= 0}
    found = []
    for sync, record, stream in zip(syncs.tolist(), recorded.tolist(), streams.tolist(), strict=True):
        if record != MISSING and record in by_id:
            lane = lane_of.get((int(events.lanes.device[events.lane[sync]]), stream), MISSING32)
            found.append((by_id[record], sync, lane))
    columns = np.array(found, np.int64).reshape(-1, 3)
    return (columns[:, 0], columns[:, 1]), columns[:, 2]


def allocations(raw: RawTrace) -> Table:
    """Allocator events, from the [memory] instants."""
    size, address, device = (raw.memory_args.get(k) for k in ("Bytes", "Addr", "Device Id"))
    if size is None:
        return Table.empty("allocations")

    def column(found: Sparse | None) -> Ints:
        out = np.full(len(raw.memory_ts), MISSING, np.int64)
        if found is not None:
            out[found.rows] = found.values
        return out

    where = column(device)
    return Table.of(
        "allocations",
        ts=raw.memory_ts + base_ns(raw.header),
        device=np.where(where == MISSING, MISSING32, where).astype(np.int32),
        address=column(address),
        size=column(size),
    )
