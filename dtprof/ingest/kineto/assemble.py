"""From what a scanner collected to a RawTrace: texts decoded, unfinished spans dropped, damage named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.lenient import Bad, Event, More, Text, read_event, read_text, value_end
from dtprof.ingest.kineto.raw import (
    COMM_TEXT_ARGS,
    FLOAT_ARGS,
    INT_ARGS,
    MEMORY_ARGS,
    TEXT_ARGS,
    Damage,
    Ints,
    RawTrace,
    Sparse,
)
from dtprof.ingest.kineto.texts import decode
from dtprof.schema import MISSING
from dtprof.table import Strings

# kinds of arguments, as the C scanner numbers them
INT, FLOAT, TEXT, COMM_TEXT, MEMORY, DENSE = range(6)
METADATA, KEY, VALUE = range(3)
HOST_CATS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")


def arg_keys() -> tuple[tuple[str, int, int], ...]:
    """(key, kind, slot) of every argument that is read; correlation and External id have slots 0 and 1."""
    listed = [(k, INT) for k in INT_ARGS] + [(k, FLOAT) for k in FLOAT_ARGS] + [(k, TEXT) for k in TEXT_ARGS]
    listed += [(k, COMM_TEXT) for k in COMM_TEXT_ARGS] + [(k, MEMORY) for k in MEMORY_ARGS]
    dense = (("correlation", DENSE, 0), ("External id", DENSE, 1), ("external id", DENSE, 1))
    return dense + tuple((key, kind, slot) for slot, (key, kind) in enumerate(listed, 2))


@dataclass
class Texts:
    """Distinct raw texts by code: the text, whether it is JSON rather than the inside of a string, where first seen."""

    raw: list[bytes] = field(default_factory=list)
    is_json: list[bool] = field(default_factory=list)
    first: list[int] = field(default_factory=list)


@dataclass
class Collected:
    """What both scanners hand over. ``dur`` below zero marks spans that never ended; ``breaks`` has rows of
    (offset, spans, flows, memory rows, raw pieces) at each place where the thread was lost."""

    ts: Ints
    dur: Ints
    name: tuple[NDArray[np.int32], Texts]
    cat: tuple[NDArray[np.int32], Texts]
    track: NDArray[np.int32]
    tracks: Texts
    correlation: Ints
    external: Ints
    args: dict[str, tuple[NDArray[np.int32], Any, Texts | None]]
    flow_phase: NDArray[np.int8]
    flow_id: Ints
    flow_ts: Ints
    flow_track: NDArray[np.int32]
    flow_cat: tuple[NDArray[np.int32], Texts]
    memory_ts: Ints
    pieces: list[tuple[int, int, bytes]]
    breaks: Ints
    flaws: list[tuple[int, int, int]]
    pairs: bool
    arrays: int
    bare: bool
    bytes: int
    events_total: int


class Notes:
    """Damage of one file, by kind: first place and count."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int]] = {}

    def add(self, what: str, offset: int, count: int = 1) -> None:
        """``count`` more of this kind, the first at ``offset``."""
        if count:
            first, before = self.found.get(what, (offset, 0))
            self.found[what] = (min(first, offset), before + count)

    def damage(self) -> list[Damage]:
        """In order of first appearance."""
        return [Damage(what, *at) for what, at in sorted(self.found.items(), key=lambda item: (item[1][0], item[0]))]


def assemble(c: Collected, notes: Notes) -> RawTrace:
    """The trace; ``notes`` may already hold damage of the file around the JSON."""
    for flaw, offset, count in c.flaws:
        notes.add(kinds.FLAWS[flaw], offset, count)
    tracks, track_map = _tracks(c.tracks, notes)
    cut = _second_writer(c, tracks)
    if cut is not None:
        notes.add(kinds.TWO_WRITERS, int(cut[0]))
    spans, flows, memory, pieces = (
        (int(n) for n in cut[1:]) if cut is not None else (len(c.ts), len(c.flow_ts), len(c.memory_ts), len(c.pieces))
    )
    keep = slice(0, spans)
    ended = c.dur[keep] >= 0
    rows: NDArray[np.int64] | None = None
    if c.pairs and not ended.all():
        notes.add(kinds.FLAWS[kinds.UNPAIRED], c.bytes, int(((c.dur[keep] < 0) & (c.dur[keep] != MISSING)).sum()))
        rows = np.where(ended, np.cumsum(ended) - 1, -1)

    def column(data: Any) -> Any:
        return data[keep] if rows is None else data[keep][ended]

    args = {k: _sparse(*v, spans, rows, c.pairs, notes) for k, v in c.args.items() if k not in MEMORY_ARGS}
    instants = {k: _sparse(*v, memory, None, False, notes) for k, v in c.args.items() if k in MEMORY_ARGS}
    metadata, header = _pieces(c.pieces[:pieces], c.pieces, notes)
    return RawTrace(
        ts=column(c.ts),
        dur=column(c.dur),
        name=_strings(column(c.name[0]), c.name[1], notes),
        cat=_strings(column(c.cat[0]), c.cat[1], notes),
        track=column(c.track if track_map is None else track_map[c.track]),
        correlation=column(c.correlation),
        external=column(c.external),
        tracks=tracks,
        args={k: v for k, v in args.items() if len(v.rows)},
        flow_phase=c.flow_phase[:flows],
        flow_id=c.flow_id[:flows],
        flow_ts=c.flow_ts[:flows],
        flow_track=c.flow_track[:flows] if track_map is None else track_map[c.flow_track[:flows]],
        flow_cat=_strings(c.flow_cat[0][:flows], c.flow_cat[1], notes),
        memory_ts=c.memory_ts[:memory],
        memory_args={k: v for k, v in instants.items() if len(v.rows)},
        metadata=metadata,
        header=header,
        events_total=c.events_total,
        damage=notes.damage(),
    )


def _strings(codes: NDArray[np.int32], texts: Texts, notes: Notes) -> Strings:
    values: dict[str, int] = {}
    lut = np.empty(len(texts.raw) + 1, np.int32)
    lut[-1] = -1
    for code, (raw, is_json) in enumerate(zip(texts.raw, texts.is_json, strict=True)):
        text, repaired = decode(raw, is_json)
        lut[code] = values.setdefault(text, len(values))
        if repaired:
            notes.add(kinds.BAD_TEXT, texts.first[code], int((codes == code).sum()))
    if len(values) < len(texts.raw):
        codes = lut[codes]
    return Strings(codes, tuple(values))


def _tracks(texts: Texts, notes: Notes) -> tuple[list[tuple[str, str]], NDArray[np.int32] | None]:
    found: dict[tuple[str, str], int] = {}
    lut: list[int] = []
    for raw, first in zip(texts.raw, texts.first, strict=True):
        pid, _, tid = raw.partition(b"\0")
        (pid_text, bad_pid), (tid_text, bad_tid) = decode(pid), decode(tid)
        notes.add(kinds.BAD_TEXT, first, int(bad_pid or bad_tid))
        lut.append(found.setdefault((pid_text, tid_text), len(found)))
    return list(found), np.array(lut, np.int32) if len(found) < len(lut) else None


def _sparse(
    rows: NDArray[np.int32],
    values: Any,
    texts: Texts | None,
    count: int,
    renumber: NDArray[np.int64] | None,
    pairs: bool,
    notes: Notes,
) -> Sparse:
    """Rows below ``count``, renumbered; where end events added values late, in order and the last one kept."""
    if pairs or (len(rows) and rows[-1] >= count):
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)] & (rows < count)
        rows, values = rows[last], values[last]
        if renumber is not None:
            rows = renumber[rows].astype(np.int32)
            rows, values = rows[rows >= 0], values[rows >= 0]
    return Sparse(rows, values if texts is None else _strings(values, texts, notes))


def _second_writer(c: Collected, tracks: Sequence[tuple[str, str]]) -> Ints | None:
    """Where another process's events begin: a row like those of ``breaks``, or None.

    A trace has one host process. Where host events of one process end for good and those of another begin, two processes
    wrote into one file, provided that the thread was lost in between or that the first one's trace never came to the part
    in which it names its processes.
    """
    host_codes = [i for i, raw in enumerate(c.cat[1].raw) if raw.decode(errors="replace") in HOST_CATS]
    host = np.flatnonzero(np.isin(c.cat[0], host_codes))
    if not len(host) or not len(tracks):
        return None
    pid_of = {pid: i for i, pid in enumerate(dict.fromkeys(pid for pid, _ in tracks))}
    pids = np.array([pid_of[pid] for pid, _ in tracks])[c.track[host]]
    first = pids[0]
    changes = np.flatnonzero(pids != first)
    if not len(changes) or (pids[changes[0] :] == first).any():
        return None
    last_row, next_row = int(host[changes[0] - 1]), int(host[changes[0]])
    breaks = c.breaks.reshape(-1, 5)
    between = breaks[(breaks[:, 1] > last_row) & (breaks[:, 1] <= next_row)]
    if len(between):
        return between[0]
    named = {
        text[1] for kind, _, raw in c.pieces if kind == METADATA and (text := _metadata(raw)) and text[0] == "process_name"
    }
    if list(pid_of)[first] in named:
        return None
    flows = int(np.searchsorted(c.flow_ts, c.ts[next_row])) if not len(c.flow_ts) else len(c.flow_ts)
    return np.array([c.bytes, next_row, flows, len(c.memory_ts), len(c.pieces)])


def _metadata(raw: bytes) -> tuple[str, str, str, str] | None:
    """(name, pid, tid, value) of a metadata event; the value is its first argument's."""
    try:
        event, _ = read_event(raw, 0)
        value = next((read_text(raw, start, end) for _, start, end in event.args), None)
    except (Bad, More):
        return None
    return _plain(event, "name"), _plain(event, "pid"), _plain(event, "tid"), _text(value)


def _plain(event: Event, key: str) -> str:
    return _text(event.texts.get(key))


def _text(text: Text | None) -> str:
    return decode(text.raw, text.is_json)[0] if text else ""


def _pieces(
    kept: Sequence[tuple[int, int, bytes]], everything: Sequence[tuple[int, int, bytes]], notes: Notes
) -> tuple[list[tuple[str, str, str, str]], dict[str, Any]]:
    metadata = [found for kind, _, raw in kept if kind == METADATA and (found := _metadata(raw))]
    header: dict[str, Any] = {}
    key = ""
    for kind, offset, raw in everything:
        if kind == KEY:
            key = decode(raw)[0]
        elif kind == VALUE:
            try:
                header[key] = json.loads(raw, strict=False)
            except ValueError:
                header[key] = _lenient_value(raw)
                notes.add(kinds.FLAWS[kinds.HEADER], offset)
    return metadata, header


def _lenient_value(raw: bytes) -> Any:
    """A header value that only just is no JSON (a trailing comma, ``inf``, bytes that are not UTF-8): repaired, or its text."""
    flaws: set[int] = set()
    value_end(raw + b" ", 0, flaws)
    text = decode(raw, True)[0]
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return text


def collected_from_c(out: Mapping[str, Any]) -> Collected:
    """The columns that the C scanner hands out, as numpy arrays over its memory."""
    raw, ends = out["raw"], _array(out["raw_pieces"], np.int64).reshape(-1, 3)
    stops = [*ends[1:, 0].tolist(), len(raw)]
    pieces = [(kind, offset, raw[start:stop]) for (start, kind, offset), stop in zip(ends.tolist(), stops, strict=False)]
    args = {}
    for key, (rows, values, *texts) in out["args"].items():
        dtype: Any = np.int32 if texts else np.float64 if key in FLOAT_ARGS else np.int64
        args[key] = (_array(rows, np.int32), _array(values, dtype), _texts(*texts) if texts else None)
    return Collected(
        **{
            k: _array(out[k], np.int64)
            for k in ("ts", "dur", "correlation", "external", "flow_id", "flow_ts", "memory_ts", "breaks")
        },
        **{k: (_array(out[k][0], np.int32), _texts(out[k][1])) for k in ("name", "cat", "flow_cat")},
        **{k: _array(out[k], np.int32) for k in ("track", "flow_track")},
        **{k: out[k] for k in ("flaws", "pairs", "arrays", "bare", "bytes", "events_total")},
        flow_phase=_array(out["flow_phase"], np.int8),
        tracks=_texts(out["tracks"]),
        args=args,
        pieces=pieces,
    )


def _array(buffer: Any, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(buffer, dtype) if len(memoryview(buffer)) else np.empty(0, dtype)


def _texts(table: tuple[bytes, Any, Any, Any]) -> Texts:
    text, start, first, flags = table
    starts = _array(start, np.int64).tolist()
    stops = [*starts[1:], len(text)]
    return Texts(
        [text[a:b] for a, b in zip(starts, stops, strict=False)],
        (_array(flags, np.int8) & 1).astype(bool).tolist(),
        _array(first, np.int64).tolist(),
    )
