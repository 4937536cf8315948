"""What a scanner has collected when a file ends: the same from C and from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto.lenient import Bad, Event, More, Text, read_event, read_text
from dtprof.ingest.kineto.raw import COMM_TEXT_ARGS, FLOAT_ARGS, INT_ARGS, MEMORY_ARGS, TEXT_ARGS, Damage, Ints
from dtprof.ingest.kineto.texts import decode

# kinds of arguments, as the C scanner numbers them
INT, FLOAT, TEXT, COMM_TEXT, MEMORY, DENSE = range(6)
METADATA, KEY, VALUE = range(3)
Rows = NDArray[np.int32]
Metadata = tuple[str, str, str, str]


def arg_keys() -> tuple[tuple[str, int, int], ...]:
    """(key, kind, slot) of every argument that is read; correlation and External id have slots 0 and 1."""
    listed = [(k, INT) for k in INT_ARGS] + [(k, FLOAT) for k in FLOAT_ARGS] + [(k, TEXT) for k in TEXT_ARGS]
    listed += [(k, COMM_TEXT) for k in COMM_TEXT_ARGS] + [(k, MEMORY) for k in MEMORY_ARGS]
    dense = (("correlation", DENSE, 0), ("External id", DENSE, 1), ("external id", DENSE, 1))
    return dense + tuple((key, kind, slot) for slot, (key, kind) in enumerate(listed, 2))


@dataclass
class Texts:
    """Texts by code; ``repaired`` are the codes whose text was damaged, with the place in the file."""

    values: list[str] = field(default_factory=list)
    repaired: dict[int, int] = field(default_factory=dict)


@dataclass
class Collected:
    """Columns as in RawTrace, in file order, before the end is tidied.

    ``dur`` below zero marks spans that never ended (MISSING: ones given up). ``args`` are rows, values and, for texts, what
    the values stand for. ``tracks`` join pid and tid by a NUL. ``header`` members have (key, place, raw value), ``breaks``
    rows of (offset, spans, flows, memory rows, metadata) at each place where the thread was lost, ``flaws`` rows of
    (kind, first place, count). ``pairs``: there were begin and end events. ``arrays``: how many arrays of events;
    ``bare``: the first one was the whole document.
    """

    ts: Ints
    dur: Ints
    name: tuple[Rows, Texts]
    cat: tuple[Rows, Texts]
    track: Rows
    tracks: Texts
    correlation: Ints
    external: Ints
    args: dict[str, tuple[Rows, Any, Texts | None]]
    flow_phase: NDArray[np.int8]
    flow_id: Ints
    flow_ts: Ints
    flow_track: Rows
    flow_cat: tuple[Rows, Texts]
    memory_ts: Ints
    metadata: list[Metadata]
    header: list[tuple[str, int, bytes]]
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


# ---- metadata events


class _Plain(msgspec.Struct):
    name: str
    pid: int | str = ""
    tid: int | str = ""
    args: dict[str, int | str] = {}


_plain = msgspec.json.Decoder(_Plain)


def metadata_of(raw: bytes) -> Metadata:
    """(name, pid, tid, value) of a metadata event; the value is its first argument's."""
    try:
        plain = _plain.decode(raw)
        return plain.name, str(plain.pid), str(plain.tid), str(next(iter(plain.args.values()), ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        event, _ = read_event(raw, 0)
        value = next((read_text(raw, start, end) for _, start, end in event.args), None)
    except (Bad, More):
        return "", "", "", ""
    return _member(event, "name"), _member(event, "pid"), _member(event, "tid"), _text(value)


def _member(event: Event, key: str) -> str:
    return _text(event.texts.get(key))


def _text(text: Text | None) -> str:
    return decode(text.raw, text.is_json)[0] if text else ""


# ---- from the C scanner

_ENTRY = np.dtype([("start", "i8"), ("first", "i8"), ("hash", "u4"), ("length", "i4"), ("flags", "i4"), ("unused", "i4")])


def collected_from_c(out: Mapping[str, Any]) -> Collected:
    """The columns that the C scanner hands out, as numpy arrays over its memory."""
    args: dict[str, tuple[Rows, Any, Texts | None]] = {}
    for key, (rows, values, *texts) in out["args"].items():
        dtype: Any = np.int32 if texts else np.float64 if key in FLOAT_ARGS else np.int64
        args[key] = (_array(rows, np.int32), _array(values, dtype), _texts(*texts) if texts else None)
    metadata, header, pieces_before = _pieces(out["raw"], _array(out["raw_pieces"], np.int64).reshape(-1, 3).tolist())
    breaks = _array(out["breaks"], np.int64).reshape(-1, 5)
    if len(breaks):
        breaks = breaks.copy()
        breaks[:, 4] = np.array(pieces_before)[breaks[:, 4] // 3]
    return Collected(
        ts=_array(out["ts"], np.int64),
        dur=_array(out["dur"], np.int64),
        name=_coded(out["name"]),
        cat=_coded(out["cat"]),
        track=_array(out["track"], np.int32),
        tracks=_texts(out["tracks"], _decode_track),
        correlation=_array(out["correlation"], np.int64),
        external=_array(out["external"], np.int64),
        args=args,
        flow_phase=_array(out["flow_phase"], np.int8),
        flow_id=_array(out["flow_id"], np.int64),
        flow_ts=_array(out["flow_ts"], np.int64),
        flow_track=_array(out["flow_track"], np.int32),
        flow_cat=_coded(out["flow_cat"]),
        memory_ts=_array(out["memory_ts"], np.int64),
        metadata=metadata,
        header=header,
        breaks=breaks,
        flaws=out["flaws"],
        pairs=out["pairs"],
        arrays=out["arrays"],
        bare=out["bare"],
        bytes=out["bytes"],
        events_total=out["events_total"],
    )


def _pieces(raw: bytes, pieces: list[list[int]]) -> tuple[list[Metadata], list[tuple[str, int, bytes]], list[int]]:
    """Metadata events, header members, and for each piece how many metadata events come before it."""
    metadata: list[Metadata] = []
    header: list[tuple[str, int, bytes]] = []
    before: list[int] = []
    key = ""
    stops = [start for start, _, _ in pieces[1:]] + [len(raw)]
    for (start, kind, offset), stop in zip(pieces, stops, strict=False):
        before.append(len(metadata))
        if kind == METADATA:
            metadata.append(metadata_of(raw[start:stop]))
        elif kind == KEY:
            key = decode(raw[start:stop])[0]
        else:
            header.append((key, offset, raw[start:stop]))
    return metadata, header, [*before, len(metadata)]


def _array(buffer: Any, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(buffer, dtype) if memoryview(buffer).nbytes else np.empty(0, dtype)


def _coded(column: tuple[Any, tuple[bytes, Any]]) -> tuple[Rows, Texts]:
    return _array(column[0], np.int32), _texts(column[1])


def _texts(table: tuple[bytes, Any], read: Callable[[bytes, bool], tuple[str, bool]] = decode) -> Texts:
    text, entries = table[0], _array(table[1], _ENTRY)
    ends = (entries["start"] + entries["length"]).tolist()
    found = Texts()
    for code, (start, end, flags) in enumerate(zip(entries["start"].tolist(), ends, entries["flags"].tolist(), strict=True)):
        value, repaired = read(text[start:end], bool(flags & 1))
        found.values.append(value)
        if repaired:
            found.repaired[code] = int(entries["first"][code])
    return found


def _decode_track(joined: bytes, is_json: bool) -> tuple[str, bool]:
    (pid, bad_pid), (tid, bad_tid) = (decode(part) for part in joined.split(b"\0", 1))
    return f"{pid}\0{tid}", bad_pid or bad_tid
