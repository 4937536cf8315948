"""From the columns of a Kineto file to the tables of one part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import details, marks, memory, spans
from dtprof.ingest.kineto.comm import Arguments, CommBuilder, Member, is_record
from dtprof.ingest.kineto.events import Events, base_ns
from dtprof.ingest.kineto.identity import identity
from dtprof.ingest.kineto.raw import Ints, RawTrace
from dtprof.ingest.kineto.spans import Rows, is_kind, kind_code
from dtprof.ingest.nesting import parents, time_order
from dtprof.ingest.tags import tag_columns
from dtprof.run import Part, quality_rows
from dtprof.schema import DEVICE_KINDS, MISSING
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


def kineto_steps(events: Events) -> marks.Steps:
    """Steps as torch.profiler marks them."""
    return marks.steps(events.name, events.kind, events.lanes.device, events.lane, events.ts, events.dur)


def no_members(events: Events) -> dict[int, list[Member]]:
    """A Kineto file says what its kernels communicate in arguments and records."""
    return {}


@dataclass(frozen=True)
class Hooks:
    """What another source of the same columns knows otherwise.

    ``steps`` finds the host steps; ``members`` gives the operations behind communication events (by event row) as the
    communication library itself reports them; ``lanes`` where the spans lie;
    ``backward`` which operators have which backward functions.
    """

    steps: Callable[[Events], marks.Steps] = kineto_steps
    members: Callable[[Events], dict[int, list[Member]]] = no_members
    lanes: Callable[[RawTrace, spans.Codes], spans.Lanes] = spans.lanes
    backward: Callable[[Events], tuple[Ints, Ints]] = details.flow_pairs


def build_part(raw: RawTrace, source: str, hooks: Hooks = Hooks()) -> PartData:
    """The tables of one file; ``part`` has what the file itself says about its rank, host and device."""
    quality: Quality = [
        (source, d.what, d.count, f"first seen at byte {d.offset}; everything else is kept") for d in raw.damage
    ]
    kind = spans.kinds(raw)
    lanes = hooks.lanes(raw, kind)
    keep = _possible(raw, kind, lanes.of_span, source, quality)
    events = _events(raw, kind, lanes, keep)
    found = hooks.steps(events)
    host = ~events.on_device
    ranges = marks.phase_ranges(events.name, events.kind, host)
    comm, groups = _comm(events, host, hooks.members(events))
    table = Table.of(
        "events",
        ts=events.ts,
        dur=events.dur,
        kind=events.kind,
        name=events.name,
        lane=events.lane,
        correlation=events.correlation,
        op_id=events.ordered(raw.external),
        parent=events.parent,
        launch=events.launch,
        step=marks.step_tags(found, events.ts, events.kind, events.launch, events.device),
        phase=marks.phase_tags(ranges, events.ts, events.dur, events.launch, events.device),
        **_device_columns(events),
        **tag_columns(
            events.name,
            np.flatnonzero(host & is_kind(events.kind, "range")).astype(np.int32),
            events.lane,
            events.ts,
            events.dur,
            events.launch,
        ),
    )
    tables = {
        "events": table,
        "lanes": _lanes(events, host, found),
        "kernel_args": details.kernel_args(events),
        "deps": details.dependencies(events, hooks.backward(events)),
        "comm": comm,
        "groups": groups,
        "steps": found.table(),
        "allocations": details.allocations(raw),
        "memory": memory.levels(raw, events, ranges),
    }
    _missing(events, found, source, quality)
    tables["quality"] = quality_rows(quality)
    return PartData(identity(raw, source, events), tables)


def _possible(raw: RawTrace, kind: NDArray[np.int8], lane: Rows, source: str, quality: Quality) -> NDArray[Any]:
    """Span rows in time order without the impossible ones, which are named in ``quality``."""
    # MISSING is the least number of all
    good = (raw.ts != MISSING) & (raw.dur >= 0)
    lost = len(good) - int(np.count_nonzero(good))
    if lost:
        quality.append((source, "spans without a usable start or duration", lost, "left out"))
    rows = np.flatnonzero(good) if lost else np.arange(len(good), dtype=np.int32)
    ts, dur = (raw.ts[rows], raw.dur[rows]) if lost else (raw.ts, raw.dur)
    ordered = bool(np.all(ts[1:] >= ts[:-1])) if len(ts) else True
    order = rows if ordered else rows[time_order(ts, dur)[0]]
    bad = _overrunning(raw, kind, lane, order)
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


def _overrunning(raw: RawTrace, kind: NDArray[np.int8], lane: Rows, order: NDArray[Any]) -> list[int]:
    """Device spans that swallow their successors on a stream which is serial but for them."""
    device = is_kind(kind, *DEVICE_KINDS)
    rows = np.flatnonzero(device) if _is_all(order, len(kind)) else order[device[order]]
    lanes = lane[rows]
    if (lanes[1:] != lanes[:-1]).any():
        by_lane = np.argsort(lanes, kind="stable")
        rows, lanes = rows[by_lane], lanes[by_lane]
    bad: list[int] = []
    for mine in np.split(rows, np.flatnonzero(lanes[1:] != lanes[:-1]) + 1):
        start = raw.ts[mine]
        end = raw.dur[mine]
        end += start
        # spans that begin after one and before its end, beyond those that it must swallow to be suspect
        suspects = np.flatnonzero(start[_SWALLOWED:] < end[:-_SWALLOWED])
        if len(suspects) == 0 or len(suspects) > max(1, len(mine) // 100):
            continue
        for i in suspects.tolist():
            same = raw.dur[mine][raw.name.codes[mine] == raw.name.codes[mine[i]]]
            if raw.dur[mine[i]] > _TIMES_MEDIAN * max(1.0, float(np.median(same))):
                bad.append(int(mine[i]))
    return bad


def _is_all(order: NDArray[Any], count: int) -> bool:
    """Is this all rows, as they stand?"""
    return len(order) == count and bool(np.all(order[1:] > order[:-1]))


def _events(raw: RawTrace, kind: NDArray[np.int8], lanes: spans.Lanes, order: NDArray[Any]) -> Events:
    every = _is_all(order, len(raw.ts))

    def ordered(column: Any) -> Any:
        return column if every else column[order]

    kind, lane, correlation = ordered(kind), ordered(lanes.of_span), ordered(raw.correlation)
    base = base_ns(raw.header)
    ts, dur = ordered(raw.ts) + base if base else ordered(raw.ts), ordered(raw.dur)
    launch = spans.launches(kind, correlation)
    nested = is_kind(kind, "cpu_op", "range", "runtime") & (lanes.device < 0)[lane]
    parent = parents(lane, ts, dur, np.flatnonzero(nested).astype(np.int32))
    name = Strings(ordered(raw.name.codes), raw.name.values)
    return Events(raw, order, every, kind, ts, dur, name, correlation, lanes, lane, launch, parent)


def _comm(events: Events, host: NDArray[np.bool_], told: dict[int, list[Member]]) -> tuple[Table, Table]:
    header = events.raw.header
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    pg_ranks: dict[str, tuple[int, ...]] = {}
    for group in info.get("pg_config") or []:
        if isinstance(group, dict) and isinstance(group.get("ranks"), list):
            pg_ranks[str(group.get("pg_name"))] = tuple(group["ranks"])
    builder = CommBuilder(
        Arguments(events.raw), events.order, events.name, events.kind, events.ts, events.dur, events.parent, events.launch,
        events.lane, host, pg_ranks, info.get("world_size"), told,
    )  # fmt: skip
    named = np.array([is_record(n) for n in events.name.values] + [False], bool)
    if not named.any():
        return builder.tables()
    unnamed = np.flatnonzero((events.kind == kind_code("kernel")) & (events.launch >= 0))
    events.kind[unnamed[_called_by(named, events, events.launch[unnamed])]] = kind_code("comm")
    return builder.tables()


def _called_by(named: NDArray[np.bool_], events: Events, calls: Rows) -> NDArray[np.bool_]:
    """Launch calls whose innermost operator or range has one of the ``named`` names."""
    above = events.parent[calls]
    runtime = kind_code("runtime")
    while np.any(nested := (above >= 0) & (events.kind[np.maximum(above, 0)] == runtime)):
        above = np.where(nested, events.parent[np.maximum(above, 0)], above)
    inside: NDArray[np.bool_] = (above >= 0) & named[events.name.codes[np.maximum(above, 0)]]
    return inside


def _device_columns(events: Events) -> dict[str, Any]:
    out: dict[str, Any] = {}
    count = len(events.ts)
    copies = np.flatnonzero(is_kind(events.kind, "memcpy", "memset"))
    sizes = events.argument("bytes", copies)
    if len(copies) and sizes is not None:
        out["bytes"] = np.full(count, MISSING, np.int64)
        out["bytes"][copies] = sizes
    if len(copies):
        direction = [_direction(n) for n in events.name.values]
        known = tuple(dict.fromkeys(d for d in direction if d))
        lut = np.array([known.index(d) if d else -1 for d in direction] + [-1], np.int32)
        codes = np.full(count, -1, np.int32)
        codes[copies] = lut[events.name.codes[copies]]
        out["copy_kind"] = Strings(codes, known)
    if "graph node id" in events.raw.args:
        kernels = np.flatnonzero(events.device)
        node = events.argument("graph node id", kernels)
        if node is not None and np.any(node > 0):
            out["graph_node"] = np.full(count, MISSING, np.int64)
            out["graph_node"][kernels] = np.where(node > 0, node, MISSING)
    return out


def _direction(name: str) -> str | None:
    """Direction of a copy from its name, as "Memcpy HtoD (Pageable -> Device)"."""
    return next((d for d in ("HtoD", "DtoH", "DtoD", "PtoP") if d in name), None)


def _lanes(events: Events, host: NDArray[np.bool_], found: marks.Steps) -> Table:
    training: set[int] = set(np.unique(events.lane[found.rows]).tolist())
    autograd = {i for i, label in enumerate(events.lanes.names) if label and label.startswith("pt_autograd")}
    ops = host & (events.kind == kind_code("cpu_op"))
    engine = [i for i, n in enumerate(events.name.values) if n.startswith("autograd::engine")]
    autograd.update(np.unique(events.lane[ops & np.isin(events.name.codes, engine)]).tolist())
    if not training and ops.any():
        spent = np.bincount(events.lane[ops], weights=events.dur[ops].astype(float))
        training.add(int(np.argmax(spent)))
    elif not training and (calls := events.launch[events.device & (events.launch >= 0)]).size:
        training.add(int(np.argmax(np.bincount(events.lane[calls]))))
    return spans.lane_table(events.lanes, events.lane, events.kind, events.dur, training, autograd - training)


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
