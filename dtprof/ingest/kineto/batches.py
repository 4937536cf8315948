"""Many events at once for the Python scanner: decoded by msgspec, turned into columns by numpy.

Only what is clean goes this way: JSON by the book, plain numbers in range, no begin and end events. Anything else raises
``Unclean`` before a column is touched, and is read event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, TypedDict, cast

import msgspec
import numpy as np

from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.collected import COMM_TEXT, DENSE, FLOAT, MEMORY, TEXT, Rows, metadata_of
from dtprof.ingest.kineto.columns import BY_NAME, SLOTS, Columns, Unclean
from dtprof.ingest.kineto.lenient import Text, decimal, flow_number, read_decimal, read_double, read_text
from dtprof.ingest.kineto.raw import Ints
from dtprof.ingest.kineto.texts import decode
from dtprof.schema import MISSING

NULL = msgspec.Raw(b"null")
Number = int | str | float | None
_typed_dict: Callable[..., Any] = cast(Any, TypedDict)
# only the arguments that are read; numbers as numbers, everything else as text
CleanArgs = _typed_dict(
    "CleanArgs",
    {k: msgspec.Raw if kind in (TEXT, COMM_TEXT, FLOAT) else Number for k, (kind, _) in BY_NAME.items()},
    total=False,
)
# an event that is JSON by the book; times stay text
Clean = msgspec.defstruct(
    "Clean",
    [
        ("ph", str),
        ("name", str | None, None),
        ("cat", str | None, None),
        ("ts", msgspec.Raw, NULL),
        ("dur", msgspec.Raw, NULL),
        ("pid", int | str, ""),
        ("tid", int | str, ""),
        ("id", Number, None),
        ("args", CleanArgs, msgspec.field(default_factory=dict)),
    ],
    gc=False,
)
_events = msgspec.json.Decoder(list[Clean])  # type: ignore[valid-type]
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_PLAIN = np.zeros(256, bool)
_PLAIN[np.frombuffer(b"0123456789,.-", np.uint8)] = True
_DIGIT = np.zeros(256, bool)
_DIGIT[np.frombuffer(b"0123456789", np.uint8)] = True
_FLOW = np.full(256, -1, np.int8)
_FLOW[np.frombuffer(b"stf", np.uint8)] = range(3)
_TEN = 10 ** np.arange(4, dtype=np.int64)
MAX = 2**63 - 1


def decode_batch(body: bytes) -> list[Any]:
    """The events in ``body``, the inside of an array."""
    text = b"[" + body + b"]"
    try:
        events = _events.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unclean from error
    if body.count(b'"ts"') > len(events):
        raise Unclean  # perhaps two events run together
    return events


def numbers(tokens: Sequence[Any], scale: int) -> Ints:
    """Decimal texts, quoted or not, times 10^scale, exactly; Unclean where one is no plain number in range."""
    if not tokens:
        return np.empty(0, np.int64)
    text = b",".join(tokens) + b","
    if b'"' in text:
        text = text.replace(b'"', b"")
    seen = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(seen == 0x2C)
    if not _PLAIN[seen].all() or len(ends) != len(tokens):
        raise Unclean
    digits = ends - np.concatenate(([-1], ends[:-1])) - 1
    decimals = np.zeros(len(tokens), np.int64)
    dots, minus = np.flatnonzero(seen == 0x2E), np.flatnonzero(seen == 0x2D)
    if len(dots):
        which = np.searchsorted(ends, dots)
        decimals[which] = ends[which] - dots - 1
        digits[which] -= 1
        if (which[1:] == which[:-1]).any() or decimals.max() > scale or not _DIGIT[seen[dots - 1]].all():
            raise Unclean
        text = text.replace(b".", b"")
    if len(minus):
        if not (seen[minus - 1] == 0x2C).all() or not _DIGIT[seen[minus + 1]].all():  # the first one follows the last comma
            raise Unclean
        digits[np.searchsorted(ends, minus)] -= 1
    if digits.min() < 1 or digits.max() > 19:
        raise Unclean
    values = np.fromstring(text[:-1], np.int64, sep=",")
    power = _TEN[scale - decimals]
    if (np.abs(np.maximum(values, -MAX)) >= MAX // power).any():
        raise Unclean
    return values * power


def careful(tokens: Sequence[Any], scale: int) -> Ints:
    """The same token by token where they are not all plain; MISSING where there is no number, Unclean where one is damaged."""
    try:
        return numbers(tokens, scale)
    except Unclean:
        flaws: set[int] = set()
        raw = [bytes(token) for token in tokens]
        values = [read_decimal(token, 0, len(token), scale, flaws) for token in raw]
        if flaws:
            raise
        return np.array(values, np.int64)


def times(tokens: Sequence[Any], low: int, high: int) -> Ints:
    """Microseconds as ns; Unclean where one is missing or not from ``low`` to ``high``."""
    found = careful(tokens, 3)
    if len(found) and (found.min() < low or found.max() > high):
        raise Unclean
    return found


def keep_batch(columns: Columns, events: list[Any], body: bytes) -> None:
    """Add clean events; raises Unclean, with nothing added, where they are not."""
    phases = "".join([e.ph for e in events])
    if len(phases) != len(events) or not phases.isascii() or "B" in phases or "E" in phases:
        raise Unclean
    codes = np.frombuffer(phases.encode(), np.uint8)
    is_span, is_flow = codes == ord("X"), _FLOW[codes] >= 0
    spans, flows = list(compress(events, is_span.tolist())), list(compress(events, is_flow.tolist()))
    instants = [e for e in events if e.ph == "i" and e.name == "[memory]"] if "i" in phases else []
    c = columns.columns
    ts = times([e.ts for e in spans], -kinds.MAX_TIME, kinds.MAX_TIME)
    dur = times([e.dur for e in spans], 0, kinds.MAX_DURATION)
    flow_ts = times([e.ts for e in flows], -kinds.MAX_TIME, kinds.MAX_TIME)
    flow_id = _flow_ids([e.id for e in flows])
    memory_ts = times([e.ts for e in instants], -kinds.MAX_TIME, kinds.MAX_TIME)
    args = _Args(columns, spans, False)
    memory_args = _Args(columns, instants, True)

    columns.events_total += len(events)
    first_row, first_memory = c["ts"].count, c["memory_ts"].count
    # flows and spans share the table of tracks, which numbers them in file order
    on_track = is_span | is_flow
    tracked = list(compress(events, on_track.tolist()))
    pairs = zip([e.pid for e in tracked], [e.tid for e in tracked], strict=True)
    tracks = np.fromiter(map(columns.tracks.__getitem__, pairs), np.int32, len(tracked))
    if flows:
        c["flow_track"].extend(tracks[is_flow[on_track]])
        tracks = tracks[is_span[on_track]]
        c["flow_phase"].extend(_FLOW[codes[is_flow]])
        c["flow_id"].extend(flow_id)
        c["flow_cat"].extend(columns.flow_cats.codes([e.cat for e in flows]))
        c["flow_ts"].extend(flow_ts)
    names = columns.names.codes([e.name for e in spans])
    for column, values in (("ts", ts), ("dur", dur), ("name", names), ("track", tracks)):
        c[column].extend(values)
    c["cat"].extend(columns.cats.codes([e.cat for e in spans]))
    c["correlation"].extend(args.dense(0, len(spans)))
    c["external"].extend(args.dense(1, len(spans)))
    args.keep(first_row)
    memory_args.keep(first_memory)
    c["memory_ts"].extend(memory_ts)
    if "M" in phases:
        raws = _raws.decode(b"[" + body + b"]")
        columns.metadata += [metadata_of(bytes(raw)) for raw, e in zip(raws, events, strict=True) if e.ph == "M"]


def _flow_ids(values: list[int | str | float | None]) -> Ints:
    if set(map(type, values)) <= {int, str}:
        found = [flow_number(Text(v.encode(), False, 0)) if isinstance(v, str) else v for v in values]
        if None not in found:
            return _integers(found)
    raise Unclean


def _integers(values: Sequence[int | str | float | None]) -> Ints:
    """Integers, quoted or not; MISSING where there is none, Unclean where one is damaged or no integer."""
    kinds_seen = set(map(type, values))
    if kinds_seen - {int, str, type(None)}:
        raise Unclean
    found: Sequence[Any] = values
    if kinds_seen != {int}:
        found = [decimal(v.encode(), 0) if isinstance(v, str) else v for v in values]
        if MISSING in found:
            raise Unclean
    try:
        numbers_read = np.array([MISSING if v is None else v for v in found] if None in found else found, np.int64)
    except OverflowError as error:
        raise Unclean from error
    if None not in found and (numbers_read == MISSING).any():
        raise Unclean
    return numbers_read


class _Args:
    """The arguments of a batch, read but not yet kept."""

    def __init__(self, columns: Columns, events: Sequence[Any], memory: bool) -> None:
        self.columns = columns
        found: dict[int, tuple[list[int], list[Any]]] = {slot: ([], []) for slot in SLOTS}
        unread: tuple[list[int], list[Any]] = ([], [])
        comm_keys = {k: found[slot] if (kind == MEMORY) == memory else unread for k, (kind, slot) in BY_NAME.items()}
        keys = {k: unread if BY_NAME[k][0] == COMM_TEXT else where for k, where in comm_keys.items()}
        for row, event in enumerate(events):
            wanted = comm_keys if columns.comm_names[event.name] else keys
            for key, value in event.args.items():
                rows, values = wanted[key]
                rows.append(row)
                values.append(value)
        self.read = {slot: self._read(slot, rows, values) for slot, (rows, values) in found.items() if rows}

    def _read(self, slot: int, row_list: list[int], tokens: list[Any]) -> tuple[Rows, Any]:
        """Rows and values (texts as str) of one argument."""
        kind = SLOTS[slot][1]
        rows = np.array(row_list, np.int32)
        if slot == 1 and (rows[1:] == rows[:-1]).any():
            raise Unclean  # both spellings of External id
        if kind in (TEXT, COMM_TEXT):
            texts = [self._text(bytes(token)) for token in tokens]
            if None in texts:
                some = np.array([t is not None for t in texts])
                return rows[some], [t for t in texts if t is not None]
            return rows, texts
        if kind == FLOAT:
            if any(bytes(token)[:1] in b"ntf" for token in tokens):
                raise Unclean  # null is no value
            return rows, np.array([read_double(bytes(token)) for token in tokens])
        values = _integers(tokens)
        some = values != MISSING
        return (rows, values) if some.all() else (rows[some], values[some])

    def _text(self, raw: bytes) -> str | None:
        known = self.columns.plain_texts
        if raw not in known:
            text = read_text(raw, 0, len(raw))
            if text is None:
                return None
            value, repaired = decode(text.raw, text.is_json)
            if repaired:
                raise Unclean
            known[raw] = value
        return known[raw]

    def dense(self, slot: int, count: int) -> Ints:
        """The argument as a column of its own."""
        out = np.full(count, MISSING)
        if slot in self.read:
            rows, values = self.read[slot]
            out[rows] = values
        return out

    def keep(self, first_row: int) -> None:
        """Add all to the columns, rows counted from ``first_row``."""
        for slot, (rows, values) in self.read.items():
            if SLOTS[slot][1] != DENSE and len(rows):
                index = self.columns.arg_texts.get(slot)
                self.columns.arg_rows[slot].extend(rows + np.int32(first_row))
                self.columns.arg_values[slot].extend(values if index is None else index.codes(values))
