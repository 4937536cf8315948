"""From the columns of a Kineto file to the tables of one part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import marks, spans
from dtprof.ingest.kineto.comm import Arguments, CommBuilder
from dtprof.ingest.kineto.raw import Ints, RawTrace, Sparse
from dtprof.ingest.kineto.spans import Rows, kind_code
from dtprof.ingest.nesting import parents
from dtprof.run import Part, quality_rows
from dtprof.schema import DEP_KINDS, MISSING, MISSING32
from dtprof.table import Strings, Table

# a device span is impossible when it swallows this many later ones on a stream that is otherwise serial …
_SWALLOWED = 3
# … and is this many times longer than the median of its name
_TIMES_MEDIAN = 20

Quality = list[tuple[str, str, int, str]]


@dataclass(frozen=True)
class PartData:
    """One part as a reader hands it over."""

    part: Part
    tables: dict[str, Table]


@dataclass
class Events:
    """The spans in event order (ascending ts) with what is concluded about each."""

    raw: RawTrace
    order: Ints
    kind: NDArray[np.int8]
    ts: Ints
    dur: Ints
    name: Strings
    correlation: Ints
    lanes: spans.Lanes
    lane: Rows
    launch: Rows
    parent: Rows

    @property
    def device(self) -> NDArray[np.bool_]:
        """Events that occupy a device: kernels, copies, memsets and communication kernels."""
        on_device = self.lanes.device[self.lane] >= 0
        return np.isin(self.kind, spans.DEVICE_CODES) & on_device


def build_part(raw: RawTrace, source: str) -> PartData:
    """The tables of one file; ``part`` has what the file itself says about its rank, host and device."""
    quality: Quality = [
        (source, d.what, d.count, f"first seen at byte {d.offset}; everything else is kept") for d in raw.damage
    ]
    kind = spans.kinds(raw)
    keep = _possible(raw, kind, source, quality)
    events = _events(raw, kind, keep)
    found = marks.steps(events.name, events.kind, events.lanes.device, events.lane, events.ts, events.dur)
    host = events.lanes.device[events.lane] < 0
    ranges = marks.phase_ranges(events.name, events.kind, host)
    comm, groups = _comm(events, host)
    table = Table.of(
        "events",
        ts=events.ts,
        dur=events.dur,
        kind=events.kind,
        name=events.name,
        lane=events.lane,
        correlation=events.correlation,
        op_id=raw.external[events.order],
        parent=events.parent,
        launch=events.launch,
        step=marks.step_tags(found, events.ts, events.kind, events.launch, events.device),
        phase=marks.phase_tags(ranges, events.ts, events.dur, events.launch, events.device),
        **_device_columns(events),
    )
    tables = {
        "events": table,
        "lanes": _lanes(events, host),
        "kernel_args": _kernel_args(events),
        "deps": _deps(events),
        "comm": comm,
        "groups": groups,
        "steps": found.table(),
        "allocations": _allocations(raw),
    }
    _missing(events, found, source, quality)
    tables["quality"] = quality_rows(quality)
    return PartData(_identity(raw, source, events), tables)


def base_ns(header: dict[str, Any]) -> int:
    """``baseTimeNanoseconds`` of a file; 0 where it has none (times are then absolute)."""
    try:
        return int(header.get("baseTimeNanoseconds", 0))
    except (TypeError, ValueError):
        return 0


def _possible(raw: RawTrace, kind: NDArray[np.int8], source: str, quality: Quality) -> Ints:
    """Span rows in time order without the impossible ones, which are named in ``quality``."""
    good = (raw.ts != MISSING) & (raw.dur != MISSING) & (raw.dur >= 0)
    lost = int(np.sum(~good))
    if lost:
        quality.append((source, "spans without a usable start or duration", lost, "left out"))
    rows = np.flatnonzero(good)
    ts, dur = raw.ts[rows], raw.dur[rows]
    ordered = bool(np.all(ts[1:] >= ts[:-1])) if len(ts) else True
    order = rows if ordered else rows[np.lexsort((-dur, ts))]
    bad = _overrunning(raw, kind, order)
    for row in bad:
        name = raw.name.values[raw.name.codes[row]]
        quality.append(
            (
                source,
                f"impossible duration {raw.dur[row]} ns of {name[:60]} at ts {raw.ts[row]} ns: it overruns its successors",
                1,
                "left out of every total",
            )
        )
    return order if not bad else order[~np.isin(order, bad)]


def _overrunning(raw: RawTrace, kind: NDArray[np.int8], order: Ints) -> list[int]:
    """Device spans that swallow their successors on a stream which is serial but for them."""
    rows = order[np.isin(kind[order], spans.DEVICE_CODES)]
    stream = spans.dense(raw, "device")[rows] * (1 << 40) + spans.dense(raw, "stream")[rows]
    bad: list[int] = []
    for key in np.unique(stream).tolist():
        mine = rows[stream == key]
        start, end = raw.ts[mine], raw.ts[mine] + raw.dur[mine]
        swallowed = np.searchsorted(start, end, "left") - np.arange(len(mine)) - 1
        suspects = np.flatnonzero(swallowed >= _SWALLOWED)
        if len(suspects) == 0 or len(suspects) > max(1, len(mine) // 100):
            continue
        for i in suspects.tolist():
            same = raw.dur[mine][raw.name.codes[mine] == raw.name.codes[mine[i]]]
            if raw.dur[mine[i]] > _TIMES_MEDIAN * max(1.0, float(np.median(same))):
                bad.append(int(mine[i]))
    return bad


def _events(raw: RawTrace, kind: NDArray[np.int8], order: Ints) -> Events:
    lanes = spans.lanes(raw, kind)
    kind = kind[order]
    ts, dur = raw.ts[order] + base_ns(raw.header), raw.dur[order]
    lane = lanes.of_span[order]
    correlation = raw.correlation[order]
    launch = spans.launches(kind, correlation)
    nested = np.isin(kind, [kind_code(k) for k in ("cpu_op", "range", "runtime")]) & (lanes.device[lane] < 0)
    parent = parents(lane, ts, dur, np.flatnonzero(nested).astype(np.int32))
    name = Strings(raw.name.codes[order], raw.name.values)
    return Events(raw, order, kind, ts, dur, name, correlation, lanes, lane, launch, parent)


def _comm(events: Events, host: NDArray[np.bool_]) -> tuple[Table, Table]:
    header = events.raw.header
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    pg_ranks: dict[str, tuple[int, ...]] = {}
    for group in info.get("pg_config") or []:
        if isinstance(group, dict) and isinstance(group.get("ranks"), list):
            pg_ranks[str(group.get("pg_name"))] = tuple(group["ranks"])
    builder = CommBuilder(
        Arguments(events.raw), events.order, events.name, events.kind, events.ts, events.dur, events.parent, events.launch,
        events.lane, host, pg_ranks, info.get("world_size"),
    )  # fmt: skip
    unnamed = np.flatnonzero((events.kind == kind_code("kernel")) & (events.launch >= 0))
    for call in np.unique(events.launch[unnamed]).tolist():
        if builder.is_communication(call):
            events.kind[unnamed[events.launch[unnamed] == call]] = kind_code("comm")
    return builder.tables()


def _pick(events: Events, key: str) -> Ints | None:
    column = events.raw.args.get(key)
    return None if column is None else spans.dense(events.raw, key)[events.order]


def _device_columns(events: Events) -> dict[str, Any]:
    out: dict[str, Any] = {}
    copies = np.isin(events.kind, [kind_code("memcpy"), kind_code("memset")])
    if copies.any():
        sizes = _pick(events, "bytes")
        if sizes is not None:
            out["bytes"] = np.where(copies, sizes, MISSING)
        values = events.name.values
        direction = [
            next((d for d in ("HtoD", "DtoH", "DtoD", "PtoP") if d in n or d in n.replace(" -> ", "to")), None) for n in values
        ]
        known = tuple(dict.fromkeys(d for d in direction if d))
        lut = np.array([known.index(d) if d else -1 for d in direction] + [-1], np.int32)
        out["copy_kind"] = Strings(np.where(copies, lut[events.name.codes], -1).astype(np.int32), known)
    node = _pick(events, "graph node id")
    if node is not None and np.any(node > 0):
        out["graph_node"] = np.where(node > 0, node, MISSING)
    return out


def _lanes(events: Events, host: NDArray[np.bool_]) -> Table:
    training: set[int] = set()
    autograd: set[int] = set()
    step_names = [i for i, n in enumerate(events.name.values) if n.startswith("ProfilerStep#")]
    marked = host & np.isin(events.name.codes, step_names)
    training.update(np.unique(events.lane[marked]).tolist())
    ops = host & (events.kind == kind_code("cpu_op"))
    engine = [i for i, n in enumerate(events.name.values) if n.startswith("autograd::engine")]
    autograd.update(np.unique(events.lane[ops & np.isin(events.name.codes, engine)]).tolist())
    if not training and ops.any():
        spent = np.bincount(events.lane[ops], weights=events.dur[ops].astype(float))
        training.add(int(np.argmax(spent)))
    return spans.lane_table(events.lanes, events.lane, events.kind, events.dur, training, autograd - training)


def _kernel_args(events: Events) -> Table:
    raw = events.raw
    rows = np.flatnonzero((events.kind == kind_code("kernel")) | ((events.kind == kind_code("comm")) & events.device))
    if len(rows) == 0:
        return Table.empty("kernel_args")
    place = np.full(len(raw.ts), -1, np.int64)
    place[events.order[rows]] = np.arange(len(rows))
    out: dict[str, Any] = {"event": rows.astype(np.int32)}
    for key, column in (("grid", "grid"), ("block", "block")):
        text = raw.args.get(key)
        if text is not None:
            out[column] = _text_column(text, place, len(rows))
    registers, shared = _pick(events, "registers per thread"), _pick(events, "shared memory")
    if registers is not None:
        out["registers"] = np.where(registers[rows] == MISSING, MISSING32, registers[rows]).astype(np.int32)
    if shared is not None:
        out["shared_memory"] = shared[rows]
    occupancy = raw.args.get("est. achieved occupancy %")
    if occupancy is not None:
        dense = np.full(len(raw.ts), np.nan)
        dense[occupancy.rows] = occupancy.values
        out["occupancy"] = dense[events.order[rows]] / 100.0
    return Table.of("kernel_args", **out)


def _text_column(column: Sparse, place: Ints, count: int) -> Strings:
    codes = np.full(count, -1, np.int32)
    at = place[column.rows]
    codes[at[at >= 0]] = column.values.codes[at >= 0]
    return Strings(codes, tuple(v.strip("[]").replace(" ", "") for v in column.values.values))


def _deps(events: Events) -> Table:
    """Forward-to-backward flows, and waits of one stream for an event recorded on another."""
    src: list[Ints] = []
    dst: list[Ints] = []
    kind: list[int] = []
    for pair, code in ((_flow_pairs(events), "forward_backward"), (_stream_waits(events), "stream_wait")):
        src.append(pair[0])
        dst.append(pair[1])
        kind += [DEP_KINDS.index(code)] * len(pair[0])
    if not kind:
        return Table.empty("deps")
    return Table.of("deps", src=np.concatenate(src), dst=np.concatenate(dst), kind=np.array(kind, np.int8))


def _flow_pairs(events: Events) -> tuple[Ints, Ints]:
    raw = events.raw
    codes = [i for i, c in enumerate(raw.flow_cat.values) if c == "fwdbwd"]
    rows = np.flatnonzero(np.isin(raw.flow_cat.codes, codes))
    start, end = rows[raw.flow_phase[rows] == 0], rows[raw.flow_phase[rows] == 2]
    ids, at, other = np.intersect1d(raw.flow_id[start], raw.flow_id[end], return_indices=True)
    ends = [_span_at(events, raw.flow_track[r], raw.flow_ts[r]) for r in (start[at], end[other])]
    good = (ends[0] >= 0) & (ends[1] >= 0)
    del ids
    return ends[0][good], ends[1][good]


def _span_at(events: Events, track: Rows, ts: Ints) -> Ints:
    """The operator that starts exactly at a flow point of its thread; -1 where none does."""
    ops = np.flatnonzero(events.kind == kind_code("cpu_op"))
    keys = events.raw.track[events.order[ops]].astype(np.int64)
    when = events.ts[ops] - base_ns(events.raw.header)
    order = np.lexsort((when, keys))
    packed = {(int(k), int(t)): int(r) for k, t, r in zip(keys[order][::-1], when[order][::-1], ops[order][::-1], strict=True)}
    return np.array([packed.get((int(k), int(t)), -1) for k, t in zip(track, ts, strict=True)], np.int64)


def _stream_waits(events: Events) -> tuple[Ints, Ints]:
    recorded = _pick(events, "wait_on_cuda_event_record_corr_id")
    if recorded is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    calls = np.flatnonzero((events.kind == kind_code("runtime")) & (events.correlation != MISSING))
    by_id = dict(zip(events.correlation[calls].tolist(), calls.tolist(), strict=True))
    syncs = np.flatnonzero((events.kind == kind_code("sync")) & (recorded != MISSING))
    pairs = [(by_id.get(int(recorded[s])), int(s)) for s in syncs]
    known = [(a, b) for a, b in pairs if a is not None]
    return np.array([a for a, _ in known], np.int64), np.array([b for _, b in known], np.int64)


def _allocations(raw: RawTrace) -> Table:
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


def _missing(events: Events, found: marks.Steps, source: str, quality: Quality) -> None:
    """Name what the file lacks."""
    lost = int(np.sum(events.device & (events.launch < 0)))
    if lost:
        quality.append(
            (
                source,
                "device operations whose launch call is not in the file",
                lost,
                "their step is not known; they count only inside the device step",
            )
        )
    if len(found.number) == 0:
        quality.append((source, "no steps are marked", 1, "totals of the whole window instead of steps"))
    elif not found.complete.all():
        stubs = ", ".join(map(str, found.number[~found.complete].tolist()))
        quality.append((source, f"step {stubs} is cut off", int(np.sum(~found.complete)), "left out of means"))
    if not events.device.any() and not np.any(events.kind == kind_code("comm")):
        quality.append((source, "no device work and no communication in the file", 1, "only host times can be told"))


def _identity(raw: RawTrace, source: str, events: Events) -> Part:
    info = raw.header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    part = Part(ordinal=0, source=source, host=raw.header.get("host_name"), backend=info.get("backend"))
    part.world_size = info.get("world_size") if isinstance(info.get("world_size"), int) else None
    if isinstance(info.get("rank"), int):
        part.rank, part.rank_from = info["rank"], "distributedInfo"
    else:
        ranks = raw.args.get("Rank")
        values = np.unique(ranks.values[ranks.values != MISSING]) if ranks is not None else np.empty(0)
        if len(values) == 1:
            part.rank, part.rank_from = int(values[0]), "communication arguments"
            sizes = raw.args.get("Group size")
            if part.world_size is None and sizes is not None and len(sizes.values):
                part.world_size = int(sizes.values.max())
    pids = np.unique(events.lanes.process[events.lanes.process > 0])
    part.pid = int(pids[0]) if len(pids) == 1 else None
    part.device = _device_name(raw, events)
    if len(events.ts):
        part.extra = {"first_ns": int(events.ts[0]), "last_ns": int((events.ts + events.dur).max())}
    return part


def _device_name(raw: RawTrace, events: Events) -> str | None:
    used = np.unique(events.lanes.device[events.lane[events.device]]).tolist()
    listed = raw.header.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and used and entry.get("id") == used[0]:
            return str(entry.get("name")) or None
    return None
