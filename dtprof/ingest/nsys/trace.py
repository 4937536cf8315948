"""A report's spans as one Kineto-like trace per process, in order of time: the later stages of ingest are shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.distinct import distinct
from dtprof.ingest.kineto.raw import RawTrace, Sparse
from dtprof.ingest.kineto.spans import Lanes, Rows
from dtprof.ingest.nesting import time_order
from dtprof.ingest.nsys.activities import activities, unpacked
from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.lanes import lanes_of
from dtprof.ingest.nsys.meanings import COPIES_DOMAIN
from dtprof.ingest.nsys.ranges import Nvtx, nvtx
from dtprof.ingest.nsys.source import Source
from dtprof.ingest.nsys.spans import CATS, DEVICE_WORK, Array, Gathering, Spans, argument, pid_of, taken, where
from dtprof.ingest.nsys.understood import Ranges, understood
from dtprof.schema import MISSING
from dtprof.table import Strings

_ALL_CATS = (*CATS, "python_function", "other")
_PACKED = ("grid", "block")
# names are looked up in a table up to this range of their numbers
_MOST_NUMBERS = 2**24
# arguments that are ours, and none of a trace
_OWN = ("domain", "category", "payload", "structure", "event", "event_sync")


@dataclass
class Gathered:
    """Everything of a report that has a time and a process, names resolved: ``texts`` of the names with these ``numbers``."""

    spans: Gathering
    nvtx: Nvtx
    numbers: Ints
    texts: tuple[str, ...]

    def text(self, number: int) -> str:
        """Text of a name's number."""
        at = int(np.searchsorted(self.numbers, number))
        return self.texts[at] if at < len(self.numbers) and self.numbers[at] == number else ""

    def processes(self) -> dict[int, tuple[bool, bool]]:
        """Every process with spans -> (has device work, has NVTX ranges)."""
        kinds = {key: {piece.kind for piece in pieces} for key, pieces in self.spans.spans.items() if key != MISSING}
        return {key: (not found.isdisjoint(DEVICE_WORK), "nvtx" in found) for key, found in kinds.items()}

    def drop(self, keys: Iterable[int]) -> None:
        """Let go of the spans of these processes."""
        for key in keys:
            self.spans.spans.pop(key, None)

    @property
    def homeless(self) -> int:
        """Spans that state no process."""
        return sum(map(len, self.spans.spans.get(MISSING, [])))


def gather(source: Source) -> Gathered:
    """Read all spans of a report."""
    spans = Gathering()
    activities(source, spans)
    told = nvtx(source, spans)
    numbers, texts = spans.names.resolve(source)
    return Gathered(spans, told, numbers, tuple(texts))


@dataclass
class Process:
    """One process: its trace, and what of its rows a Kineto file would not say.

    ``library`` and ``unclosed`` are rows that a library made, and whose end was not recorded; ``payloads`` are structures
    by row.
    """

    key: int
    raw: RawTrace
    lanes: Lanes
    library: NDArray[np.bool_]
    unclosed: Ints
    payloads: dict[int, dict[str, Any]]


def trace_of(got: Gathered, key: int, header: Mapping[str, Any], base: int, end_ns: int, threads: Mapping[int, str]) -> Process:
    """The trace of one process, whose spans are let go of.

    ``header`` goes into it; its times are ``base`` later than those in the report, where unclosed ranges end at ``end_ns``;
    ``threads`` are names by id.
    """
    pieces = _without_copies(got, key, got.spans.spans.pop(key, []))
    ranged = [piece for piece in pieces if piece.kind == "nvtx"]
    first = sum(map(len, pieces)) - sum(map(len, ranged))
    start, dur, unclosed = _times(pieces, first, base, end_ns)
    order, start = time_order(start, dur)
    dur = dur[order]
    row = np.empty(len(order), np.int32)
    row[order] = np.arange(len(order), dtype=np.int32)
    del order
    ranges = understood(got, key, ranged, row[first:])
    lanes = lanes_of(got.spans.places.known, key, taken(pieces, "place", np.int32, row), threads)
    raw = RawTrace(
        ts=start,
        dur=dur,
        name=_names(got, taken(pieces, "name", np.int64 if _wide(got) else np.int32, row), ranges),
        cat=_cats(taken(pieces, "cat", np.int8, row), ranges),
        track=lanes.of_span,
        correlation=taken(pieces, "correlation", np.int64, row),
        external=ranges.operators(len(row)),
        tracks=[(str(pid_of(key)), str(lane)) for lane in range(len(lanes.device))],
        args={**_arguments(pieces, row), **ranges.emitted()},
        flow_phase=np.empty(0, np.int8), flow_id=np.empty(0, np.int64), flow_ts=np.empty(0, np.int64),
        flow_track=np.empty(0, np.int32), flow_cat=Strings(np.empty(0, np.int32), ()),
        memory_ts=np.empty(0, np.int64), memory_args={},
        metadata=[],
        header=dict(header),
        events_total=len(row),
    )  # fmt: skip
    library = np.zeros(len(row), bool)
    library[ranges.row] = ranges.numbers("library") == 1
    structure = argument(ranged, "structure")
    payloads = {int(ranges.row[i]): got.nvtx.payloads[structure[i]] for i in np.flatnonzero(structure >= 0).tolist()}
    return Process(key, raw, lanes, library, np.sort(row[unclosed]).astype(np.int64), payloads)


def _without_copies(got: Gathered, key: int, pieces: list[Spans]) -> list[Spans]:
    """The pieces without the copies of ranges that dtprof's exporter adds, NVTX last."""
    copies = [d for (process, d), n in got.nvtx.domains.items() if process == key and got.text(n) == COPIES_DOMAIN]
    ranged = [where(piece, ~np.isin(piece.args["domain"][: len(piece)], copies)) for piece in pieces if piece.kind == "nvtx"]
    return [*(piece for piece in pieces if piece.kind != "nvtx"), *ranged]


def _times(pieces: list[Spans], first: int, base: int, end_ns: int) -> tuple[Ints, Ints, Ints]:
    """Start and duration of every span, and which NVTX spans (from ``first`` on) have no end."""
    start, dur = taken(pieces, "start", np.int64), taken(pieces, "dur", np.int64)
    unclosed = np.flatnonzero((dur[first:] == MISSING) & (start[first:] != MISSING)) + first
    dur[unclosed] = np.maximum(end_ns - start[unclosed], 0)
    if base:
        nowhere = np.flatnonzero(start == MISSING)
        start += base
        start[nowhere] = MISSING
    return start, dur, unclosed


def _wide(got: Gathered) -> bool:
    """Are there names whose numbers need 64 bits?"""
    return len(got.numbers) > 0 and int(got.numbers[-1]) >= 2**31


def _names(got: Gathered, name: Array, ranges: Ranges) -> Strings:
    """Plain names; those of NVTX spans are what they mean."""
    values: dict[str, int] = {}
    plain = np.array([values.setdefault(_plain(text), len(values)) for text in got.texts], np.int32)
    meant = np.array([values.setdefault(m.name, len(values)) for m in ranges.meanings], np.int32)
    codes = _codes(got.numbers, plain, name)
    codes[ranges.row] = meant[ranges.meant]
    return Strings(codes, tuple(values))


def _codes(numbers: Ints, codes: Rows, wanted: Array) -> Rows:
    """The code of each of ``wanted``, of the ascending ``numbers`` with these ``codes``; -1 for the number -1."""
    if not len(numbers):
        return np.full(len(wanted), -1, np.int32)
    low, high = min(int(numbers[0]), -1), max(int(numbers[-1]), -1)
    if high - low >= _MOST_NUMBERS:
        found = codes[np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)]
        return np.where(wanted == -1, -1, found).astype(np.int32)
    table = np.full(high - low + 1, -1, np.int32)
    table[numbers - low] = codes
    return np.asarray(table[wanted - low], np.int32)


def _plain(text: str) -> str:
    """A CUDA call without the version that nsys appends (``cudaLaunchKernel_v7000``)."""
    base, _, version = text.rpartition("_v")
    return base.removesuffix("_ptsz") if base.startswith("cu") and len(version) >= 4 and version.isdigit() else text


def _cats(cat: Array, ranges: Ranges) -> Strings:
    """Categories; NVTX ranges are what they mean."""
    mine = cat[ranges.row]
    meant = np.array([_ALL_CATS.index(m.cat) for m in ranges.meanings], np.int8)[ranges.meant]
    cat[ranges.row] = np.where(mine == CATS.index("mark"), mine, meant)
    return Strings(cat, _ALL_CATS)


def _arguments(pieces: list[Spans], row: Rows) -> dict[str, Sparse]:
    """Arguments as Kineto has them; the packed launch dimensions as texts."""
    out: dict[str, Sparse] = {}
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    rows: dict[tuple[int, ...], tuple[Rows, Ints | None]] = {}
    for key in dict.fromkeys(k for piece in pieces for k in piece.args if k not in _OWN):
        having = tuple(i for i, piece in enumerate(pieces) if key in piece.args)
        if having not in rows:
            found = np.concatenate([row[ends[i] - len(pieces[i]) : ends[i]] for i in having])
            order = None if bool(np.all(found[1:] > found[:-1])) else np.argsort(found, kind="stable")
            rows[having] = (found, None) if order is None else (found[order], order)
        there, order = rows[having]
        values = np.concatenate([pieces[i].args.pop(key)[: len(pieces[i])] for i in having])
        values = (values if order is None else values[order]).astype(np.int64)
        known = values != MISSING
        there, values = (there, values) if known.all() else (there[known], values[known])
        out[key] = Sparse(there, _texts(values) if key in _PACKED else values)
    return out


def _texts(packed: Ints) -> Strings:
    found, places = distinct(packed)
    return Strings(places, tuple(unpacked(v) for v in found.tolist()))
