"""NVTX of a report: ranges, marks, the names of domains, categories and threads, and what ranges carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtprof.ingest.nsys.cells import Ints, Kind
from dtprof.ingest.nsys.payloads import Payloads
from dtprof.ingest.nsys.source import Batch, Source, read
from dtprof.ingest.nsys.spans import CATS, Gathering, Names
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
    """What NVTX events say beside their times.

    ``domains`` and ``categories`` are numbers of names by (process, domain id[, category]), ``threads`` by (process, thread);
    ``payloads`` are structures, which the argument ``structure`` of spans counts.
    """

    domains: dict[tuple[int, int], int] = field(default_factory=dict)
    categories: dict[tuple[int, int, int], int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    payloads: list[dict[str, Any]] = field(default_factory=list)


def nvtx(source: Source, out: Gathering) -> Nvtx:
    """All NVTX events of a report; spans have the arguments domain, category, payload (a number) and structure."""
    told, payloads = Nvtx(), Payloads(source)
    for batch in read(source, "NVTX_EVENTS", **_COLUMNS):
        kind = batch.ints("eventType")
        for written, meant in _NVTXT.items():
            kind = np.where(kind == written, meant, kind)
        name = _names(batch, out.names)
        _definitions(batch, kind, name, told)
        rows = np.flatnonzero(np.isin(kind, (_MARK, _PUSH_POP, _START_END)))
        structure = np.full(len(rows), MISSING, np.int64)
        for place, payload in payloads.of(batch, rows):
            structure[place] = len(told.payloads)
            told.payloads.append(payload)
        if len(rows):
            _add(batch, out, rows, kind, name, structure)
    return told


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


def _add(batch: Batch, out: Gathering, rows: Ints, kind: Ints, name: Ints, structure: Ints) -> None:
    start = batch.ints("start")[rows]
    mark = kind[rows] == _MARK
    number = np.full(len(rows), MISSING, np.int64)
    for column in _NUMBERS:
        if batch.has(column):
            number = np.where(number == MISSING, batch.ints(column)[rows], number)
    columns = {
        "start": start, "end": np.where(mark, start, batch.ints("end")[rows]), "name": name[rows],
        "cat": np.where(mark, CATS.index("mark"), CATS.index("user_annotation")).astype(np.int8),
        "place": out.places.threads(batch.ints("globalTid")[rows]), "correlation": np.full(len(rows), MISSING, np.int64),
    }  # fmt: skip
    domain, category = batch.ints("domainId")[rows], batch.ints("category")[rows]
    domain[domain == MISSING] = 0
    out.add("nvtx", columns, {"domain": domain, "category": category, "payload": number, "structure": structure})
