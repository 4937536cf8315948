"""NVTX of a report: ranges, marks, the names of domains, categories and threads, and what ranges carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtprof.ingest.nsys.cells import Ints, Kind
from dtprof.ingest.nsys.payloads import Payloads
from dtprof.ingest.nsys.source import Batch, Source, read
from dtprof.ingest.nsys.spans import CATS, Names, Spans, joined, process_of, thread_of
from dtprof.schema import MISSING

_CATEGORY, _MARK, _THREAD, _PUSH_POP, _START_END, _DOMAIN = 33, 34, 39, 59, 60, 75
# ranges that NVTX's text form gives, with the same meaning
_NVTXT = {64: _CATEGORY, 65: _MARK, 70: _PUSH_POP, 71: _START_END, 72: _THREAD}
_COLUMNS: dict[str, Kind] = {
    "start": "int", "end": "int", "eventType": "int", "category": "int", "text": "text", "globalTid": "int", "textId": "int",
    "domainId": "int", "uint64Value": "int", "int64Value": "int", "uint32Value": "int", "int32Value": "int",
    "jsonText": "text", "jsonTextId": "int", "binaryData": "blob",
}  # fmt: skip
_NUMBERS = ("int64Value", "uint64Value", "int32Value", "uint32Value")


@dataclass
class Nvtx:
    """NVTX events.

    ``domains`` and ``categories`` are numbers of names by (process, domain id[, category]), ``threads`` by (process, thread);
    ``payload`` are structures by row of ``spans``.
    """

    spans: Spans | None = None
    domains: dict[tuple[int, int], int] = field(default_factory=dict)
    categories: dict[tuple[int, int, int], int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    payload: dict[int, dict[str, Any]] = field(default_factory=dict)


def nvtx(source: Source, names: Names) -> Nvtx:
    """All NVTX events of a report; numbers in payloads are in ``spans.args["payload"]``, structures in ``payload`` by row."""
    out = Nvtx()
    out.spans = joined(_pieces(source, names, Payloads(source), out))
    return out


def _pieces(source: Source, names: Names, payloads: Payloads, out: Nvtx) -> Iterator[Spans]:
    first = 0
    for batch in read(source, "NVTX_EVENTS", **_COLUMNS):
        kind = batch.ints("eventType")
        for written, meant in _NVTXT.items():
            kind = np.where(kind == written, meant, kind)
        name = _names(batch, names)
        _definitions(batch, kind, name, out)
        rows = np.flatnonzero(np.isin(kind, (_MARK, _PUSH_POP, _START_END)))
        if len(rows):
            piece = _spans(batch, rows, kind, name)
            for row, payload in payloads.of(batch, rows):
                out.payload[first + row] = payload
            first += len(piece)
            yield piece


def _names(batch: Batch, names: Names) -> Ints:
    """Number of every event's text: its own, or the registered one."""
    name = names.of_ids(batch.ints("textId"))
    of_text = names.of_text
    for row, text in enumerate(batch["text"]):
        if text is not None:
            name[row] = of_text(text)
    return name


def _definitions(batch: Batch, kind: Ints, name: Ints, out: Nvtx) -> None:
    """Rows that name a domain, a category or a thread."""
    thread = batch.ints("globalTid")
    for row in np.flatnonzero(np.isin(kind, (_DOMAIN, _CATEGORY, _THREAD))).tolist():
        process, domain = int(thread[row]) >> 24, int(batch.ints("domainId")[row])
        if kind[row] == _DOMAIN:
            out.domains[process, domain] = int(name[row])
        elif kind[row] == _CATEGORY:
            out.categories[process, domain, int(batch.ints("category")[row])] = int(name[row])
        else:
            out.threads[process, int(thread[row]) & 0xFFFFFF] = int(name[row])


def _spans(batch: Batch, rows: Ints, kind: Ints, name: Ints) -> Spans:
    thread, start = batch.ints("globalTid")[rows], batch.ints("start")[rows]
    mark = kind[rows] == _MARK
    number = np.full(len(rows), MISSING, np.int64)
    for column in _NUMBERS:
        if batch.has(column):
            value = batch.ints(column)[rows]
            number = np.where(number == MISSING, value, number)
    domain = batch.ints("domainId")[rows]
    args = {
        "domain": np.where(domain == MISSING, 0, domain), "category": batch.ints("category")[rows], "payload": number,
    }  # fmt: skip
    return Spans(
        process_of(thread), start, np.where(mark, start, batch.ints("end")[rows]), name[rows],
        np.where(mark, CATS.index("mark"), CATS.index("user_annotation")).astype(np.int8), thread_of(thread),
        np.full(len(rows), MISSING, np.int64), args,
    )  # fmt: skip
