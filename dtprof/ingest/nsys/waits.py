"""Waits of a stream for an event: which record they wait for."""

from __future__ import annotations

import numpy as np

from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Source, read
from dtprof.ingest.nsys.spans import Array, Gathering, argument, process_of
from dtprof.schema import MISSING

_NO_EVENT = 2**32 - 1
RECORDED = "wait_on_cuda_event_record_corr_id"


def join_records(source: Source, got: Gathering) -> None:
    """Set the correlation of the recording call on synchronisations that name an event.

    Newer exports number the pairs (eventSyncId); in older ones a wait is for the last record of its event before it.
    """
    columns = ("globalPid", "eventId", "eventSyncId", "correlationId")
    records = [
        (process_of(b.ints("globalPid")), *(b.ints(c) for c in columns[1:]))
        for b in read(
            source, "CUPTI_ACTIVITY_KIND_CUDA_EVENT", globalPid="int", eventId="int", eventSyncId="int", correlationId="int"
        )
    ]
    if not records:
        return
    process, event, pair, correlation = (np.concatenate(column) for column in zip(*records, strict=True))
    for key, spans in got.of_kind("cuda_sync"):
        mine = process == key
        before = spans.columns["correlation"][: len(spans)]
        found = _by_pair(argument([spans], "event_sync"), pair[mine], correlation[mine])
        last = _last_before(argument([spans], "event"), before, event[mine], correlation[mine])
        spans.args[RECORDED] = np.where(found == MISSING, last, found)


def _by_pair(wanted: Array, pair: Ints, correlation: Ints) -> Ints:
    good = (pair > 0) & (pair != _NO_EVENT)
    known = dict(zip(pair[good].tolist(), correlation[good].tolist(), strict=True))
    return np.array([known.get(key, MISSING) for key in wanted.tolist()], np.int64)


def _last_before(wanted: Array, before: Array, event: Ints, correlation: Ints) -> Ints:
    by_event: dict[int, list[int]] = {}
    for e, c in sorted(zip(event.tolist(), correlation.tolist(), strict=True)):
        if e != _NO_EVENT:
            by_event.setdefault(e, []).append(c)
    out = np.full(len(wanted), MISSING, np.int64)
    for row, (e, c) in enumerate(zip(wanted.tolist(), before.tolist(), strict=True)):
        recorded = by_event.get(e, [])
        at = int(np.searchsorted(recorded, c)) - 1
        if at >= 0:
            out[row] = recorded[at]
    return out
