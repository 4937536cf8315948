"""The columns that the Python scanner fills: single events, or batches of clean ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.collected import (
    COMM_TEXT,
    DENSE,
    FLOAT,
    MEMORY,
    TEXT,
    Collected,
    Metadata,
    Rows,
    Texts,
    arg_keys,
    metadata_of,
)
from dtprof.ingest.kineto.lenient import Event, Text, flow_number, read_decimal, read_double, read_text
from dtprof.ingest.kineto.raw import comm_like
from dtprof.ingest.kineto.texts import decode
from dtprof.schema import MISSING

KINDS = {key.encode(): (kind, slot) for key, kind, slot in arg_keys()}
SLOTS = {slot: (key, kind) for key, kind, slot in reversed(arg_keys())}
BY_NAME = {key: (kind, slot) for key, kind, slot in arg_keys()}


class Unclean(Exception):  # noqa: N818  # control flow: the batch holds something that needs a closer look
    """This batch must be read event by event."""


class Column:
    """A growing array: arrays of batches and single values."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.parts: list[NDArray[Any]] = []
        self.tail: list[Any] = []
        self.count = 0

    def append(self, value: Any) -> None:
        """One more value."""
        self.tail.append(value)
        self.count += 1

    def extend(self, values: NDArray[Any]) -> None:
        """The values of a batch."""
        self._settle()
        self.parts.append(values)
        self.count += len(values)

    def array(self) -> NDArray[Any]:
        """All of it."""
        self._settle()
        return np.concatenate(self.parts, dtype=self.dtype) if self.parts else np.empty(0, self.dtype)

    def _settle(self) -> None:
        if self.tail:
            self.parts.append(np.array(self.tail, self.dtype))
            self.tail = []


class Index(dict[Any, int]):
    """Texts numbered by first appearance; repaired texts are numbered apart from sound ones."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = Texts()
        self[None] = -1

    def __missing__(self, key: str) -> int:
        return self.new(key, key)

    def new(self, key: Any, value: str) -> int:
        """Number a text."""
        self[key] = code = len(self.texts.values)
        self.texts.values.append(value)
        return code

    def code(self, text: Text | None, base: int) -> int:
        """The number of a text as written."""
        if text is None:
            return -1
        value, repaired = decode(text.raw, text.is_json)
        if not repaired:
            return self[value]
        key = (text.raw, text.is_json, "repaired")
        if key not in self:
            self.texts.repaired[self.new(key, value)] = base + text.at
        return self[key]

    def codes(self, texts: Sequence[Any]) -> Rows:
        """The numbers of sound texts."""
        return np.fromiter(map(self.__getitem__, texts), np.int32, len(texts))


class Tracks(Index):
    """Pairs of pid and tid; a number and its text are the same."""

    def __missing__(self, key: Any) -> int:
        pair = (str(key[0]), str(key[1]))
        self[key] = code = self[pair] if pair in self else self.new(pair, "\0".join(pair))
        return code


class CommNames(dict[str | None, bool]):
    """Whether a name may be a communication record's."""

    def __missing__(self, name: str | None) -> bool:
        self[name] = found = name is not None and comm_like(name)
        return found


class Columns:
    """Everything that a scan keeps."""

    def __init__(self) -> None:
        wide = ("ts", "dur", "correlation", "external", "flow_id", "flow_ts", "memory_ts")
        self.columns = {k: Column(np.int64) for k in wide}
        self.columns |= {k: Column(np.int32) for k in ("name", "cat", "track", "flow_track", "flow_cat")}
        self.columns["flow_phase"] = Column(np.int8)
        self.names, self.cats, self.flow_cats, self.tracks = Index(), Index(), Index(), Tracks()
        self.comm_names = CommNames()
        self.plain_texts: dict[bytes, str] = {}  # raw JSON of text arguments that needed no repair
        self.arg_rows = {slot: Column(np.int32) for slot in SLOTS}
        self.arg_values = {
            slot: Column(np.int32 if kind in (TEXT, COMM_TEXT) else np.float64 if kind == FLOAT else np.int64)
            for slot, (_, kind) in SLOTS.items()
        }
        self.arg_texts = {slot: Index() for slot, (_, kind) in SLOTS.items() if kind in (TEXT, COMM_TEXT)}
        self.metadata: list[Metadata] = []
        self.header: list[tuple[str, int, bytes]] = []
        self.flaws: dict[int, tuple[int, int]] = {}
        self.breaks: list[tuple[int, int, int, int, int]] = []
        self.open: dict[int, list[tuple[int, int, int]]] = {}  # per track: row, ts, name of begun spans
        self.late: dict[str, dict[int, int]] = {"dur": {}, "correlation": {}, "external": {}}
        self.events_total = 0

    def note(self, flaw: int, offset: int) -> None:
        """One more of this kind of damage."""
        first, count = self.flaws.get(flaw, (offset, 0))
        self.flaws[flaw] = (first, count + 1)

    def note_break(self, offset: int) -> None:
        """The thread was lost here."""
        c = self.columns
        self.breaks.append((offset, c["ts"].count, c["flow_ts"].count, c["memory_ts"].count, len(self.metadata)))

    # ---- one event

    def keep(self, event: Event, data: bytes, start: int, end: int, base: int) -> None:
        """The event in ``data[start:end]``; ``base`` is the file offset of ``data``."""
        self.events_total += 1
        memory = event.ph == "i" and _is_memory(event.texts.get("name"))
        values = _read_args(event, data, memory) if memory or event.ph in ("X", "B", "E") else {}
        timed = event.ph in ("X", "B", "E", "s", "t", "f") or memory
        if not timed:
            event.flaws.discard(kinds.NUMBER)
        if timed and (event.ts == MISSING or abs(event.ts) > kinds.MAX_TIME):
            event.flaws.add(kinds.TIME)
        if event.ph == "X" and (event.dur == MISSING or event.dur > kinds.MAX_DURATION):
            event.flaws.add(kinds.TIME)
        elif event.ph == "X" and event.dur < 0:
            event.flaws.add(kinds.NEGATIVE)
        fatal = event.flaws & {kinds.TWICE, kinds.TIME, kinds.NEGATIVE}
        for flaw in sorted(event.flaws - {kinds.NUMBER} if fatal else event.flaws):
            self.note(flaw, base + start)
        if fatal:
            return
        if event.ph in ("X", "B"):
            self._keep_span(event, values, base)
        elif event.ph == "E":
            self._end_span(event, values, base, base + start)
        elif event.ph in ("s", "t", "f"):
            self._keep_flow(event, base, base + start)
        elif memory:
            self._keep_args(values, self.columns["memory_ts"].count, -1, base)
            self.columns["memory_ts"].append(event.ts)
        elif event.ph == "M":
            self.metadata.append(metadata_of(data[start:end]))

    def _track(self, event: Event, base: int) -> int:
        pid, tid = event.texts.get("pid"), event.texts.get("tid")
        (pid_text, bad_pid), (tid_text, bad_tid) = (decode(t.raw) if t else ("", False) for t in (pid, tid))
        if not (bad_pid or bad_tid):
            return self.tracks[(pid_text, tid_text)]
        odd = (pid.raw if pid else b"", tid.raw if tid else b"", "repaired")
        if odd not in self.tracks:
            at = pid.at if pid else tid.at if tid else 0
            self.tracks.texts.repaired[self.tracks.new(odd, f"{pid_text}\0{tid_text}")] = base + at
        return self.tracks[odd]

    def _keep_span(self, event: Event, values: dict[int, Any], base: int) -> None:
        c = self.columns
        row = c["ts"].count
        name = self.names.code(event.texts.get("name"), base)
        track = self._track(event, base)
        c["cat"].append(self.cats.code(event.texts.get("cat"), base))
        c["name"].append(name)
        c["track"].append(track)
        c["dur"].append(event.dur if event.ph == "X" else -2)
        c["correlation"].append(values.get(0, MISSING))
        c["external"].append(values.get(1, MISSING))
        self._keep_args(values, row, name, base)
        c["ts"].append(event.ts)
        if event.ph == "B":
            self.open.setdefault(track, []).append((row, event.ts, name))

    def _end_span(self, event: Event, values: dict[int, Any], base: int, offset: int) -> None:
        stack = self.open.setdefault(self._track(event, base), [])
        name = self.names.code(event.texts.get("name"), base)
        at = next((i for i in range(len(stack) - 1, -1, -1) if name in (-1, stack[i][2])), -1)
        if at < 0:
            self.note(kinds.UNPAIRED, offset)
            return
        for inner, _, _ in stack[at + 1 :]:
            self.late["dur"][inner] = MISSING
            self.note(kinds.UNPAIRED, offset)
        row, begun, code = stack[at]
        del stack[at:]
        dur = event.ts - begun
        if dur < 0 or dur > kinds.MAX_DURATION:
            self.note(kinds.NEGATIVE if dur < 0 else kinds.TIME, offset)
            self.late["dur"][row] = MISSING
            return
        self.late["dur"][row] = dur
        for slot, column in enumerate(("correlation", "external")):
            if slot in values:
                self.late[column][row] = values[slot]
        self._keep_args(values, row, code, base)

    def _keep_flow(self, event: Event, base: int, offset: int) -> None:
        number = flow_number(event.texts.get("id"))
        if number is None:
            self.note(kinds.FLOW, offset)
            return
        c = self.columns
        c["flow_phase"].append("stf".index(event.ph))
        c["flow_id"].append(number)
        c["flow_track"].append(self._track(event, base))
        c["flow_cat"].append(self.flow_cats.code(event.texts.get("cat"), base))
        c["flow_ts"].append(event.ts)

    def _keep_args(self, values: dict[int, Any], row: int, name: int, base: int) -> None:
        for slot in sorted(values):
            kind = SLOTS[slot][1]
            if kind == DENSE:
                continue
            if kind == COMM_TEXT and not (name >= 0 and self.comm_names[self.names.texts.values[name]]):
                continue
            value = values[slot]
            self.arg_values[slot].append(self.arg_texts[slot].code(value, base) if slot in self.arg_texts else value)
            self.arg_rows[slot].append(row)

    # ---- the end

    def collected(self, arrays: int, bare: bool, size: int) -> Collected:
        """All columns as arrays."""
        a = {name: column.array() for name, column in self.columns.items()}
        for name, values in self.late.items():
            if values:
                a[name][list(values)] = list(values.values())
        args: dict[str, tuple[Rows, Any, Texts | None]] = {}
        for slot, (key, _) in SLOTS.items():
            if self.arg_rows[slot].count:
                texts = self.arg_texts[slot].texts if slot in self.arg_texts else None
                args[key] = (self.arg_rows[slot].array(), self.arg_values[slot].array(), texts)
        return Collected(
            **{k: a[k] for k in ("ts", "dur", "track", "correlation", "external", "memory_ts")},
            **{k: a[k] for k in ("flow_phase", "flow_id", "flow_ts", "flow_track")},
            name=(a["name"], self.names.texts),
            cat=(a["cat"], self.cats.texts),
            flow_cat=(a["flow_cat"], self.flow_cats.texts),
            tracks=self.tracks.texts,
            args=args,
            metadata=self.metadata,
            header=self.header,
            breaks=np.array(self.breaks, np.int64).reshape(-1, 5),
            flaws=[(flaw, first, count) for flaw, (first, count) in self.flaws.items()],
            pairs=bool(self.open),
            arrays=arrays,
            bare=bare,
            bytes=size,
            events_total=self.events_total,
        )


def _is_memory(name: Text | None) -> bool:
    return name is not None and not name.is_json and name.raw == b"[memory]"


def _read_args(event: Event, data: bytes, memory: bool) -> dict[int, Any]:
    """Values by slot: Text, float or int; numbers out of range become flaws of the event."""
    values: dict[int, Any] = {}
    for key, start, end in event.args:
        kind, slot = KINDS.get(key, (-1, -1))
        if kind < 0 or (kind == MEMORY) != memory:
            continue
        value: Any
        if kind in (TEXT, COMM_TEXT):
            value = read_text(data, start, end)
        elif kind == FLOAT:
            value = None if data[start] in b"ntf" else read_double(data[start:end])
        else:
            number = read_decimal(data, start, end, 0, event.flaws)
            value = None if number == MISSING else number
        values.pop(slot, None)
        if value is not None:
            values[slot] = value
    return values
