"""Kernels, copies, memsets and synchronisations of a part as nsys tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.export.nsys import names
from dtprof.export.nsys.schema import MEM_KINDS
from dtprof.export.nsys.sheet import Sheet, Values
from dtprof.export.nsys.source import Source, pieces
from dtprof.intervals import Ints
from dtprof.schema import MISSING, MISSING32


def sheets(source: Source) -> Iterator[Sheet]:
    """The four tables in pieces."""
    syncs_on_streams = np.flatnonzero(source.events.is_("kind", "sync") & (source.device >= 0))
    for make, rows in (
        (kernels, source.rows_of("kernel", "comm")),
        (copies, source.rows_of("memcpy")),
        (memsets, source.rows_of("memset")),
        (syncs, syncs_on_streams),
    ):
        for piece in pieces(rows):
            yield make(source, piece)


def _common(source: Source, rows: Ints) -> dict[str, Values]:
    return {
        "start": source.start[rows],
        "end": source.end[rows],
        "deviceId": source.device[rows],
        "contextId": source.context[rows],
        "streamId": source.stream[rows],
        "correlationId": source.correlation[rows],
        "globalPid": source.global_pid,
        "greenContextId": None,
    }


def kernels(source: Source, rows: Ints) -> Sheet:
    """Kernels, communication kernels among them."""
    events = source.events
    comm = set(np.unique(events["name"][rows[events.is_("kind", "comm")[rows]]]).tolist())
    values = events.values("name")
    used = [c for c in np.unique(events["name"][rows]).tolist() if c >= 0]
    short = {code: names.short_name(values[code], code in comm) for code in used}
    name = source.strings.of_codes(events, "name", rows)
    return Sheet("CUPTI_ACTIVITY_KIND_KERNEL", len(rows), {
        **_common(source, rows),
        "demangledName": name,
        "shortName": source.strings.of_codes(events, "name", rows, short),
        "mangledName": name,
        "launchType": 1,
        "cacheConfig": 0,
        **_launch_parameters(source, rows),
        "localMemoryPerThread": 0,
        "localMemoryTotal": 0,
        "gridId": rows,
        "graphNodeId": events["graph_node"][rows],
        "sharedMemoryLimitConfig": 0,
    })  # fmt: skip


def _launch_parameters(source: Source, rows: Ints) -> dict[str, Values]:
    """Grid, block, registers and shared memory; 0 stands for what is not known, for nsys has no NULL there."""
    args = source.run.table("kernel_args", source.part.ordinal)
    at = np.full(len(source.events), -1, np.int64)
    at[args["event"]] = np.arange(len(args))
    mine = at[rows]
    out: dict[str, Values] = {}
    for key in ("grid", "block"):
        triples = np.array([_triple(v) for v in args.values(key)] + [(0, 0, 0)], np.int64)
        codes = np.append(args[key], -1)[mine]
        for axis, letter in enumerate("XYZ"):
            out[f"{key}{letter}"] = triples[codes, axis]
    registers, shared = np.append(args["registers"], MISSING32)[mine], np.append(args["shared_memory"], MISSING)[mine]
    out["registersPerThread"] = np.where(registers == MISSING32, 0, registers).astype(np.int64)
    out["staticSharedMemory"] = 0
    out["dynamicSharedMemory"] = np.where(shared == MISSING, 0, shared)
    out["sharedMemoryExecuted"] = shared
    return out


def _triple(text: str) -> tuple[int, int, int]:
    numbers = [int(n) if n.strip().isdecimal() and len(n) < 12 else 0 for n in text.split(",")]
    x, y, z, *_ = [*numbers, 0, 0, 0]
    return x, y, z


def copies(source: Source, rows: Ints) -> Sheet:
    """Copies."""
    events = source.events
    directions = np.array([names.COPY_KINDS.get(v, 0) for v in events.values("copy_kind")] + [0], np.int64)
    from_to = _memory_kinds(source)
    return Sheet("CUPTI_ACTIVITY_KIND_MEMCPY", len(rows), {
        **_common(source, rows),
        "bytes": _bytes(source, rows),
        "copyKind": directions[events["copy_kind"][rows]],
        "srcKind": from_to[events["name"][rows], 0],
        "dstKind": from_to[events["name"][rows], 1],
        "graphNodeId": events["graph_node"][rows],
        "copyCount": 1,
    })  # fmt: skip


def memsets(source: Source, rows: Ints) -> Sheet:
    """Memsets."""
    return Sheet("CUPTI_ACTIVITY_KIND_MEMSET", len(rows), {
        **_common(source, rows),
        "value": 0,
        "bytes": _bytes(source, rows),
        "graphNodeId": source.events["graph_node"][rows],
        "memKind": _memory_kinds(source)[source.events["name"][rows], 1],
    })  # fmt: skip


def syncs(source: Source, rows: Ints) -> Sheet:
    """Synchronisations that lie on a stream."""
    types = np.array([names.sync_type(v) for v in source.events.values("name")] + [0], np.int64)
    kind = types[source.events["name"][rows]]
    common = {**_common(source, rows), "correlationId": source.events["correlation"][rows]}
    return Sheet("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", len(rows), {
        **common, "deprecatedSyncType": kind, "syncType": kind, "eventId": 0
    })  # fmt: skip


def _bytes(source: Source, rows: Ints) -> Ints:
    size = source.events["bytes"][rows]
    return np.where(size == MISSING, 0, size)


def _memory_kinds(source: Source) -> Ints:
    unknown = len(MEM_KINDS) - 1
    found = [names.memory_kinds(v, MEM_KINDS) for v in source.events.values("name")]
    return np.array([*found, (unknown, unknown)], np.int64).reshape(-1, 2)
