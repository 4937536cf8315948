"""Kinds, lanes and launches of the spans of a Kineto file."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.catalogue.collectives import COMM_NAME
from dtprof.ingest.distinct import distinct, firsts
from dtprof.ingest.kineto.raw import Ints, RawTrace
from dtprof.schema import DEVICE_KINDS, EVENT_KINDS, MISSING, MISSING32, ROLES
from dtprof.table import Strings, Table

Codes = NDArray[np.int8]
Rows = NDArray[np.int32]

_KIND_OF_CAT = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset",
    "cpu_op": "cpu_op", "operator": "cpu_op", "user_annotation": "range", "gpu_user_annotation": "range",
    "cuda_sync": "sync", "python_function": "python", "overhead": "overhead", "runtime": "runtime",
}  # fmt: skip
_CPU_COMM = re.compile(r"^(?:gloo|mpi|ucc):")
# cuda_sync rows of newer files lie on tid = stream + this
_SYNC_TID = 1_000_000
# correlation ids that fill at least one part in this many of their range are looked up in a table
_DENSE = 8


def kind_code(kind: str) -> int:
    """Code of an event kind."""
    return EVENT_KINDS.index(kind)


def is_kind(kind: Codes, *names: str) -> NDArray[np.bool_]:
    """Spans of these kinds."""
    wanted: NDArray[np.bool_] = kind == kind_code(names[0])
    for name in names[1:]:
        wanted |= kind == kind_code(name)
    return wanted


def dense(raw: RawTrace, key: str) -> Ints:
    """An integer argument as a full column, MISSING where absent."""
    out = np.full(len(raw.ts), MISSING, np.int64)
    column = raw.args.get(key)
    if column is not None:
        out[column.rows] = column.values
    return out


def kinds(raw: RawTrace) -> Codes:
    """Kind of every span, from its category, then communication by argument and by name."""

    def of(cat: str) -> int:
        low = cat.lower()
        known = _KIND_OF_CAT.get(low)
        if known is None:
            known = "runtime" if low.endswith(("_runtime", "_driver")) else "other"
        return kind_code(known)

    lut = np.array([of(c) for c in raw.cat.values] + [kind_code("other")], np.int8)
    kind = lut[raw.cat.codes]
    by_name = np.array([bool(COMM_NAME.search(n)) for n in raw.name.values] + [False], bool)
    kernel = kind == kind_code("kernel")
    kind[kernel & by_name[raw.name.codes]] = kind_code("comm")
    named = raw.args.get("Collective name")
    if named is not None:
        rows = named.rows[kernel[named.rows]]
        kind[rows] = kind_code("comm")
    cpu_comm = np.array([bool(_CPU_COMM.match(n)) for n in raw.name.values] + [False], bool)
    on_device = np.array([c.lower() == "gpu_user_annotation" for c in raw.cat.values] + [False], bool)
    ranges = np.flatnonzero(kind == kind_code("range"))
    kind[ranges[cpu_comm[raw.name.codes[ranges]] & ~on_device[raw.cat.codes[ranges]]]] = kind_code("comm")
    return kind


@dataclass(frozen=True)
class Lanes:
    """Lane of every span, and the lanes table without roles."""

    of_span: Rows
    device: Rows
    stream: Ints
    process: Ints
    thread: Ints
    names: tuple[str | None, ...]
    context: Ints


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return MISSING


def lanes(raw: RawTrace, kind: Codes) -> Lanes:
    """One lane per (device, stream) and per host (pid, tid).

    Device spans and their annotations lie on the stream that their arguments name; sync rows on the stream they
    concern, so that no pseudo-stream appears.
    """
    pid = np.array([_number(p) for p, _ in raw.tracks], np.int64)
    tid = np.array([_number(t) for _, t in raw.tracks], np.int64)
    gpu_range = np.array([c.lower() == "gpu_user_annotation" for c in raw.cat.values] + [False], bool)
    on_device = is_kind(kind, "kernel", "memcpy", "memset", "sync")
    on_device |= gpu_range[raw.cat.codes]
    kernel_cat = np.array([c.lower() == "kernel" for c in raw.cat.values] + [False], bool)
    on_device |= kernel_cat[raw.cat.codes]

    device, stream = np.full(len(raw.ts), -1, np.int64), raw.track.astype(np.int64)
    rows = np.flatnonzero(on_device)
    given_device, given_stream = dense(raw, "device")[rows], dense(raw, "stream")[rows]
    track_tid = tid[raw.track[rows]]
    track_tid = np.where((kind[rows] == kind_code("sync")) & (track_tid >= _SYNC_TID), track_tid - _SYNC_TID, track_tid)
    device[rows] = np.where(given_device != MISSING, given_device, pid[raw.track[rows]])
    stream[rows] = np.where(given_stream != MISSING, given_stream, track_tid)

    pairs = device * (1 << 40) + stream
    found, of_span = distinct(pairs)
    first = firsts(of_span, len(found))
    host = device[first] < 0
    context = dense(raw, "context")
    labels = {(p, t): v for n, p, t, v in raw.metadata if n == "thread_name"}
    return Lanes(
        of_span,
        np.where(host, -1, device[first]).astype(np.int32),
        np.where(host, MISSING, stream[first]),
        np.where(host, pid[raw.track[first]], MISSING),
        np.where(host, tid[raw.track[first]], MISSING),
        tuple(labels.get(raw.tracks[raw.track[i]]) for i in first.tolist()),
        context[first],
    )


def lane_table(lane: Lanes, of_event: Rows, kind: Codes, dur: Ints, training_lanes: set[int], autograd: set[int]) -> Table:
    """The lanes table with roles; ``of_event`` and ``kind`` are in event order."""
    count = len(lane.device)

    def spent(*names: str) -> Ints:
        rows = is_kind(kind, *names)
        return np.bincount(of_event[rows], weights=dur[rows].astype(float), minlength=count).astype(np.int64)

    compute, comm, copy = spent("kernel"), spent("comm"), spent("memcpy", "memset")
    roles = []
    for i in range(count):
        if lane.device[i] >= 0:
            best = max((compute[i], 2, "compute"), (comm[i], 1, "communication"), (copy[i], 0, "copy"))
            role = best[2] if best[0] > 0 else "other"
        elif i in training_lanes:
            role = "training"
        elif i in autograd:
            role = "autograd"
        elif comm[i] > 0:
            role = "gloo"
        elif re.search(r"pin_memory|dataloader|loader|^pt_data", lane.names[i] or "", re.IGNORECASE):
            role = "loader"
        else:
            role = "other"
        roles.append(ROLES.index(role))
    return Table.of(
        "lanes",
        id=np.arange(count, dtype=np.int32),
        process=lane.process,
        device=lane.device,
        context=lane.context,
        stream=lane.stream,
        thread=lane.thread,
        name=Strings.of(lane.names),
        role=np.array(roles, np.int8),
    )


def launches(kind: Codes, correlation: Ints) -> Rows:
    """For every device event the runtime call with its correlation id (the first one); MISSING32 where there is none.

    Only runtime and driver calls can launch; one call may own many device events (CUDA graphs, AMD).
    """
    out = np.full(len(kind), MISSING32, np.int32)
    calls = np.flatnonzero((kind == kind_code("runtime")) & (correlation != MISSING))
    device = np.flatnonzero(is_kind(kind, *DEVICE_KINDS) & (correlation != MISSING))
    if len(calls) == 0 or len(device) == 0:
        return out
    ids, wanted = correlation[calls], correlation[device]
    low, high = int(ids.min()), int(ids.max())
    if high - low < _DENSE * len(ids):
        first = np.full(high - low + 1, MISSING32, np.int32)
        ids -= low
        first[ids[::-1]] = calls[::-1]
        there = (wanted >= low) & (wanted <= high)
        device, wanted = (device, wanted) if there.all() else (device[there], wanted[there])
        wanted -= low
        out[device] = first[wanted]
        return out
    calls = calls[np.argsort(ids, kind="stable")]
    ids = correlation[calls]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    hit = ids[at] == wanted
    out[device[hit]] = calls[at[hit]]
    return out
