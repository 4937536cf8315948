"""Waits of a stream for an event: which record they wait for."""

from __future__ import annotations

import numpy as np

from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Source, read
from dtprof.ingest.nsys.spans import CATS, Spans, process_of
from dtprof.schema import MISSING

_NO_EVENT = 2**32 - 1
RECORDED = "wait_on_cuda_event_record_corr_id"


def join_records(source: Source, tables: list[Spans]) -> None:
    """Set the correlation of the recording call on synchronisations that name an event.

    Newer exports number the pairs (eventSyncId); in older ones a wait is for the last record of its event before it.
    """
    records = [
        (process_of(b.ints("globalPid")), b.ints("eventId"), b.ints("eventSyncId"), b.ints("correlationId"))
        for b in read(
            source, "CUPTI_ACTIVITY_KIND_CUDA_EVENT", globalPid="int", eventId="int", eventSyncId="int", correlationId="int"
        )
    ]
    if not records:
        return
    process, event, pair, correlation = (np.concatenate(column) for column in zip(*records, strict=True))
    for spans in tables:
        if len(spans) and spans.cat[0] == CATS.index("cuda_sync"):
            found = _by_pair(spans, process, pair, correlation)
            last = _last_before(spans, process, event, correlation)
            spans.args[RECORDED] = np.where(found == MISSING, last, found)


def _by_pair(spans: Spans, process: Ints, pair: Ints, correlation: Ints) -> Ints:
    good = (pair > 0) & (pair != _NO_EVENT)
    keys = zip(process[good].tolist(), pair[good].tolist(), strict=True)
    known = dict(zip(keys, correlation[good].tolist(), strict=True))
    wanted = zip(spans.process.tolist(), spans.args["event_sync"].tolist(), strict=True)
    return np.array([known.get(key, MISSING) for key in wanted], np.int64)


def _last_before(spans: Spans, process: Ints, event: Ints, correlation: Ints) -> Ints:
    by_event: dict[tuple[int, int], list[int]] = {}
    for p, e, c in sorted(zip(process.tolist(), event.tolist(), correlation.tolist(), strict=True)):
        if e != _NO_EVENT:
            by_event.setdefault((p, e), []).append(c)
    out = np.full(len(spans), MISSING, np.int64)
    keys = zip(spans.process.tolist(), spans.args["event"].tolist(), spans.correlation.tolist(), strict=True)
    for row, (p, e, c) in enumerate(keys):
        recorded = by_event.get((p, e), [])
        at = int(np.searchsorted(recorded, c)) - 1
        if at >= 0:
            out[row] = recorded[at]
    return out
