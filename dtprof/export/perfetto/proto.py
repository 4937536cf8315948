"""Perfetto's trace format, as far as tracks, slices, counters and flows need it: protocol buffers written by hand.

Field numbers are those of Perfetto's ``protos/perfetto/trace`` (TracePacket, TrackDescriptor, TrackEvent, InternedData);
the wire format is described in "Encoding" of the Protocol Buffers documentation.
"""

from __future__ import annotations

import struct
from functools import cache

VARINT, FIXED64, BYTES = 0, 1, 2
# TrackEvent.Type
BEGIN, END, COUNTER = 1, 2, 4
# TracePacket.SequenceFlags: the first packet of a sequence, one that needs its interned data
_CLEARED, _NEEDS = 1, 2
_SEQUENCE = 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(_varint(n) for n in range(1 << 14))


def varint(value: int) -> bytes:
    """A varint; negative numbers as 64-bit two's complement."""
    if 0 <= value < 1 << 14:
        return _SMALL[value]
    return _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


@cache
def tag(field: int, wire: int) -> bytes:
    """Key of a field."""
    return varint(field << 3 | wire)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return tag(field, VARINT) + varint(value)


def blob(field: int, data: bytes) -> bytes:
    """A length-delimited field: bytes or a message."""
    return tag(field, BYTES) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """A text field; what UTF-8 cannot hold becomes a question mark."""
    return blob(field, value.encode("utf-8", "replace"))


def fixed64(field: int, value: int) -> bytes:
    """A fixed 64-bit field."""
    return tag(field, FIXED64) + struct.pack("<Q", value & 0xFFFF_FFFF_FFFF_FFFF)


def double(field: int, value: float) -> bytes:
    """A double field."""
    return tag(field, FIXED64) + struct.pack("<d", value)


def packet(body: bytes) -> bytes:
    """A packet of the trace (Trace.packet)."""
    return blob(1, body)


def first_packet() -> bytes:
    """Begins our sequence with empty interned data."""
    return packet(number(10, _SEQUENCE) + number(13, _CLEARED))


def _track(uuid: int, name: str, parent: int | None, body: bytes = b"") -> bytes:
    above = b"" if parent is None else number(5, parent)
    return packet(number(10, _SEQUENCE) + blob(60, number(1, uuid) + text(2, name) + above + body))


def process_track(uuid: int, pid: int, name: str) -> bytes:
    """A track group: a process of that name."""
    process = blob(3, number(1, pid) + text(6, name))
    return packet(number(10, _SEQUENCE) + blob(60, number(1, uuid) + process))


def lane_track(uuid: int, name: str, parent: int) -> bytes:
    """A track of slices in a group."""
    return _track(uuid, name, parent)


def counter_track(uuid: int, name: str, parent: int, unit: str) -> bytes:
    """A track of counter values; ``unit`` is a word for people."""
    return _track(uuid, name, parent, blob(8, text(6, unit)))


def interned(categories: dict[int, str], names: dict[int, str], keys: dict[int, str]) -> bytes:
    """Texts by number for the packets that follow: event categories, event names, names of annotations."""
    data = b"".join(
        blob(field, number(1, iid) + text(2, value))
        for field, texts in ((1, categories), (2, names), (3, keys))
        for iid, value in texts.items()
    )
    return packet(number(10, _SEQUENCE) + number(13, _NEEDS) + blob(12, data)) if data else b""


def annotation(key: int, value: int | str | float) -> bytes:
    """One argument of a slice; ``key`` is the number of its name."""
    if isinstance(value, str):
        body = text(6, value)
    elif isinstance(value, int):
        body = number(4, value)
    else:
        body = double(5, value)
    return blob(4, number(1, key) + body)


_HEAD = number(10, _SEQUENCE) + number(13, _NEEDS)
_BEGIN, _END, _COUNTER = (number(9, kind) for kind in (BEGIN, END, COUNTER))


_TIME, _EVENT = tag(8, VARINT), tag(11, BYTES)
_PACKET = tag(1, BYTES)


def _event(ts: int, event: bytes) -> bytes:
    """A packet with a track event."""
    body = _TIME + varint(ts) + _HEAD + _EVENT + varint(len(event)) + event
    return _PACKET + varint(len(body)) + body


def opening(track: bytes, category: int, name: int) -> bytes:
    """What all slices of a name on a track begin with; ``track`` is ``number(11, uuid)``."""
    return _BEGIN + track + number(3, category) + number(10, name)


def begin(ts: int, opening: bytes, more: bytes = b"") -> bytes:
    """A slice begins; ``more`` holds annotations and flows."""
    return _event(ts, opening + more)


def end(ts: int, track: bytes) -> bytes:
    """The innermost open slice of the track ends."""
    return _event(ts, _END + track)


def flow(identity: int) -> bytes:
    """The slice takes part in this flow."""
    return fixed64(47, identity)


def counter(ts: int, track: bytes, value: float) -> bytes:
    """A reading."""
    return _event(ts, _COUNTER + track + double(44, value))
