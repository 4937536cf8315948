"""A report's spans as one Kineto-like trace per process: the later stages of ingest are shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.distinct import distinct, distinct_rows
from dtprof.ingest.kineto.raw import RawTrace, Sparse
from dtprof.ingest.nsys.activities import activities, unpacked
from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.meanings import COPIES_DOMAIN, Meaning, meaning_of
from dtprof.ingest.nsys.ranges import Nvtx, nvtx
from dtprof.ingest.nsys.source import Source
from dtprof.ingest.nsys.spans import CATS, Names, Spans, taken
from dtprof.schema import MISSING
from dtprof.table import Strings

_ALL_CATS = (*CATS, "python_function", "other")
_PACKED = ("grid", "block")
# names are looked up in a table up to this range of their numbers
_MOST_NUMBERS = 2**24
# columns that are ours, and no arguments of a trace
_OWN = ("domain", "category", "payload", "event", "event_sync")


@dataclass
class Gathered:
    """Everything of a report that has a time and a process, names resolved.

    ``texts`` are the names that span columns ``name`` number; ``library`` are those rows of ``nvtx.spans`` that a library
    made; ``unclosed`` those whose end was not recorded.
    """

    tables: list[Spans]
    nvtx: Nvtx
    texts: tuple[str, ...]
    numbers: Ints
    meanings: list[Meaning] = field(default_factory=list)
    meant: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def text(self, number: int) -> str:
        """Text of a name's number."""
        at = int(np.searchsorted(self.numbers, number))
        return self.texts[at] if at < len(self.numbers) and self.numbers[at] == number else ""

    def release(self) -> None:
        """Let go of the columns: the traces of all processes are made."""
        self.tables.clear()
        self.nvtx.spans = None

    @property
    def last_ns(self) -> int:
        """End of the last span, ns since the session's start."""
        ends = [int(s.end.max()) for s in [*self.tables, *([self.nvtx.spans] if self.nvtx.spans else [])] if len(s)]
        starts = [int(s.start.max()) for s in [*self.tables, *([self.nvtx.spans] if self.nvtx.spans else [])] if len(s)]
        return max([*ends, *starts], default=0)


def gather(source: Source) -> Gathered:
    """Read all spans of a report and what their names mean."""
    names = Names()
    tables, marked = activities(source, names), nvtx(source, names)
    numbers, texts = names.resolve(source)
    got = Gathered(tables, marked, tuple(texts), numbers)
    if marked.spans is not None:
        _understand(got, marked.spans)
    return got


def _understand(got: Gathered, spans: Spans) -> None:
    """Meanings of the distinct (name, process and domain, category, number) of NVTX spans; ``meant`` numbers them by row."""
    ours = np.array([got.text(n) == "dtprof" for n in got.nvtx.domains.values()], bool)
    own = {key for key, mine in zip(got.nvtx.domains, ours.tolist(), strict=True) if mine}
    place = spans.process * 4096 + spans.args["domain"]
    mine = np.isin(place, [p * 4096 + d for p, d in own])
    keys = np.stack((spans.name, place, np.where(mine, spans.args["category"], 0), np.where(mine, spans.args["payload"], 0)))
    first, got.meant = distinct_rows(keys)
    for row in first.tolist():
        process, domain = int(spans.process[row]), int(spans.args["domain"][row])
        number, category = int(spans.args["payload"][row]), int(spans.args["category"][row])
        named = got.nvtx.domains.get((process, domain))
        label = got.nvtx.categories.get((process, domain, category))
        got.meanings.append(
            meaning_of(
                got.text(int(spans.name[row])), None if named is None else got.text(named),
                None if number == MISSING or not mine[row] else number, None if label is None else got.text(label),
            )
        )  # fmt: skip


@dataclass
class Process:
    """One process: its trace, and what of its rows (in the order of the trace) a Kineto file would not say.

    ``library`` and ``unclosed`` are rows; ``payloads`` are structures by row.
    """

    key: int
    raw: RawTrace
    library: NDArray[np.bool_]
    unclosed: Ints
    payloads: dict[int, dict[str, Any]]


def process_keys(got: Gathered) -> dict[int, tuple[bool, bool]]:
    """Every process with spans -> (has device work, has NVTX ranges)."""
    out: dict[int, tuple[bool, bool]] = {}
    device_cats = [CATS.index(c) for c in ("kernel", "gpu_memcpy", "gpu_memset")]
    for spans in [*got.tables, *([got.nvtx.spans] if got.nvtx.spans is not None else [])]:
        for key in distinct(spans.process)[0].tolist():
            if key == MISSING:
                continue
            on_device = len(spans) > 0 and int(spans.cat[0]) in device_cats
            before = out.get(key, (False, False))
            out[key] = (before[0] or on_device, before[1] or spans is got.nvtx.spans)
    return out


def trace_of(got: Gathered, key: int, header: Mapping[str, Any], end_ns: int, threads: Mapping[int, str]) -> Process:
    """The trace of one process. ``header`` goes into it; unclosed ranges end at ``end_ns``; ``threads`` are names by id."""
    pieces = [piece for spans in got.tables if len(piece := taken(spans, spans.process == key))]
    nvtx_rows = _nvtx_rows(got, key)
    if got.nvtx.spans is not None and len(nvtx_rows):
        pieces.append(taken(got.nvtx.spans, nvtx_rows))
    first = sum(map(len, pieces)) - len(nvtx_rows)
    start, end = (_column(pieces, c) for c in ("start", "end"))
    unclosed = np.flatnonzero((end == MISSING) & (start != MISSING))
    unclosed = unclosed[unclosed >= first]
    end[unclosed] = np.maximum(end_ns, start[unclosed])
    name, external, meant_args, library = _names(got, pieces, nvtx_rows, first)
    track, tracks = _tracks(key, pieces)
    place = {int(row): first + i for i, row in enumerate(nvtx_rows.tolist())} if got.nvtx.payload else {}
    raw = RawTrace(
        ts=start,
        dur=np.where((end == MISSING) | (start == MISSING), MISSING, end - start),
        name=name,
        cat=_cats(got, pieces, nvtx_rows, first),
        track=track,
        correlation=_column(pieces, "correlation"),
        external=external,
        tracks=tracks,
        args={**_arguments(pieces), **meant_args},
        flow_phase=np.empty(0, np.int8), flow_id=np.empty(0, np.int64), flow_ts=np.empty(0, np.int64),
        flow_track=np.empty(0, np.int32), flow_cat=Strings(np.empty(0, np.int32), ()),
        memory_ts=np.empty(0, np.int64), memory_args={},
        metadata=[("thread_name", str(key & 0xFFFFFF), str(thread), text) for thread, text in threads.items()],
        header=dict(header),
        events_total=len(start),
    )  # fmt: skip
    payloads = {place[row]: value for row, value in got.nvtx.payload.items() if row in place}
    return Process(key, raw, library, unclosed, payloads)


def _nvtx_rows(got: Gathered, key: int) -> Ints:
    """Rows of the process's NVTX spans, without the copies of ranges that dtprof's exporter adds."""
    spans = got.nvtx.spans
    if spans is None:
        return np.empty(0, np.int64)
    copies = {d for (p, d), n in got.nvtx.domains.items() if p == key and got.text(n) == COPIES_DOMAIN}
    return np.flatnonzero((spans.process == key) & ~np.isin(spans.args["domain"], list(copies)))


def _column(pieces: Iterable[Spans], name: str) -> Any:
    found = [getattr(spans, name) for spans in pieces]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _names(
    got: Gathered, pieces: list[Spans], nvtx_rows: Ints, first: int
) -> tuple[Strings, Ints, dict[str, Sparse], NDArray[np.bool_]]:
    """Plain names, operator ids, sequence numbers and shapes as arguments, and which rows are a library's."""
    values: dict[str, int] = {}
    codes = np.full(first + len(nvtx_rows), -1, np.int32)
    plain = [_plain(text) for text in got.texts]
    lut = np.array([values.setdefault(text, len(values)) for text in plain] + [-1], np.int32)
    wanted = _column(pieces, "name")[:first]
    codes[:first] = np.where(wanted == -1, -1, lut[_places(got.numbers, wanted)])
    external = np.full(len(codes), MISSING, np.int64)
    library = np.zeros(len(codes), bool)
    args: dict[str, Sparse] = {}
    if len(nvtx_rows):
        meant = got.meant[nvtx_rows]
        codes[first:] = np.array([values.setdefault(m.name, len(values)) for m in got.meanings], np.int32)[meant]
        external[first:] = np.array([MISSING if m.op_id is None else m.op_id for m in got.meanings], np.int64)[meant]
        library[first:] = np.array([m.library for m in got.meanings], bool)[meant]
        sequence = np.array([MISSING if m.sequence is None else m.sequence for m in got.meanings], np.int64)[meant]
        if len(rows := np.flatnonzero(sequence != MISSING)):
            args["Sequence number"] = Sparse((rows + first).astype(np.int32), sequence[rows])
        sizes = Strings.of(m.sizes for m in got.meanings)
        if len(rows := np.flatnonzero(sizes.codes[meant] >= 0)):
            args["Input Dims"] = Sparse((rows + first).astype(np.int32), Strings(sizes.codes[meant][rows], sizes.values))
    return Strings(codes, tuple(values)), external, args, library


def _places(numbers: Ints, wanted: Ints) -> Ints:
    """Place of each of ``wanted`` among the ascending ``numbers``; any place for what is not among them."""
    low, high = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, 0)
    if high - low >= _MOST_NUMBERS:
        return np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
    table = np.zeros(high - low + 1, np.int64)
    table[numbers - low] = np.arange(len(numbers))
    return table[np.clip(wanted - low, 0, high - low)]


def _plain(text: str) -> str:
    """A CUDA call without the version that nsys appends (``cudaLaunchKernel_v7000``)."""
    base, _, version = text.rpartition("_v")
    return base.removesuffix("_ptsz") if base.startswith("cu") and len(version) >= 4 and version.isdigit() else text


def _cats(got: Gathered, pieces: list[Spans], nvtx_rows: Ints, first: int) -> Strings:
    codes = _column(pieces, "cat").astype(np.int32)
    if len(nvtx_rows):
        ranged = codes[first:] != CATS.index("mark")
        cats = np.array([_ALL_CATS.index(m.cat) for m in got.meanings], np.int32)[got.meant[nvtx_rows]]
        codes[first:] = np.where(ranged, cats, codes[first:])
    return Strings(codes, _ALL_CATS)


def _tracks(key: int, pieces: list[Spans]) -> tuple[NDArray[np.int32], list[tuple[str, str]]]:
    """Host spans lie on the track of their thread; device spans get theirs from their arguments."""
    thread = _column(pieces, "thread")
    ids, places = distinct(thread)
    pid = str(key & 0xFFFFFF)
    return places, [(pid, str(t) if t != MISSING else "device") for t in ids.tolist()]


def _arguments(pieces: list[Spans]) -> dict[str, Sparse]:
    """Arguments as Kineto has them; the packed launch dimensions as texts."""
    out: dict[str, Sparse] = {}
    for key in dict.fromkeys(k for spans in pieces for k in spans.args if k not in _OWN):
        rows: list[Ints] = []
        values: list[Ints] = []
        at = 0
        for spans in pieces:
            if key in spans.args:
                column = spans.args[key]
                known = column != MISSING
                every = bool(known.all())
                rows.append(np.arange(at, at + len(column)) if every else np.flatnonzero(known) + at)
                values.append(column if every else column[known])
            at += len(spans)
        joined = np.concatenate(values)
        if len(joined):
            out[key] = Sparse(np.concatenate(rows).astype(np.int32), _texts(joined) if key in _PACKED else joined)
    return out


def _texts(packed: Ints) -> Strings:
    found, places = distinct(packed)
    return Strings(places, tuple(unpacked(v) for v in found.tolist()))
