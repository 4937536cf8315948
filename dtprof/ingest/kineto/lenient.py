"""One Kineto event or value at a time from possibly damaged JSON, in plain Python.

The rules are those of the C scanner (``_text.h``, ``_events.h``): NaN and infinities are read as missing, trailing commas
and control characters in strings are let through, brackets must match, and anything else that is not JSON is ``Bad``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from dtprof.ingest.kineto.damage import COMMA, NUMBER, TWICE
from dtprof.schema import MISSING

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.S)
_WORD = re.compile(rb"[0-9A-Za-z+\-._#()]*+")
_SPACE = re.compile(rb"[ \n\r\t]*+")
_NUMERIC = re.compile(rb"[0-9.\-+eE]*[0-9][0-9.\-+eE]*")
_NUMBER = re.compile(rb"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?)([0-9]+))?")
_NOT_FINITE = re.compile(rb"[+-]?(?:nan|inf|infinity|nan\((?:ind|snan)\)|1\.#(?:inf|qnan|ind|snan))", re.I)
_TOKENS_IN_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[ \n\r\t]++', re.S)
_HEX = re.compile(rb"0[xX]([0-9a-fA-F]{1,15})")
MAX_DEPTH = 64


class More(Exception):  # noqa: N818  # control flow, not an error
    """The text ends before the value does."""


class Bad(Exception):  # noqa: N818
    """The text is not JSON."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text as written: the inside of a string, or any other JSON value (``is_json``) without white space."""

    raw: bytes
    is_json: bool
    at: int


@dataclass(slots=True)
class Event:
    """The members of one event that are read; ``args`` are keys and the ranges of their values."""

    ph: str = ""
    has_ph: bool = False
    texts: dict[str, Text] = field(default_factory=dict)
    ts: int = MISSING
    dur: int = MISSING
    has_ts: bool = False
    args: list[tuple[bytes, int, int]] = field(default_factory=list)
    flaws: set[int] = field(default_factory=set)


def space(data: bytes, p: int) -> int:
    """First byte from ``p`` that is not white space."""
    found = _SPACE.match(data, p)
    return found.end() if found else p


def string_end(data: bytes, p: int) -> int:
    """Past the closing quote of the string that opens at ``p``."""
    found = _STRING.match(data, p)
    if not found:
        raise More
    return found.end()


def expect(data: bytes, p: int, byte: int) -> int:
    """Past ``byte``, which must be at ``p``."""
    if p >= len(data):
        raise More
    if data[p] != byte:
        raise Bad
    return p + 1


def scalar_end(data: bytes, p: int, flaws: set[int]) -> int:
    """Past the number or word at ``p``."""
    found = _WORD.match(data, p)
    end = found.end() if found else p
    if end >= len(data):
        raise More
    token = data[p:end]
    if _NUMERIC.fullmatch(token):
        return end
    if _NOT_FINITE.fullmatch(token):
        flaws.add(NUMBER)
    elif token.lower() not in (b"null", b"true", b"false"):
        raise Bad
    return end


def value_end(data: bytes, p: int, flaws: set[int]) -> int:
    """Past the value at ``p``."""
    closers: list[int] = []
    while True:
        byte = data[p] if p < len(data) else 0
        if byte in b"{[":
            if len(closers) == MAX_DEPTH:
                raise Bad
            closers.append(0x7D if byte == 0x7B else 0x5D)
            p = space(data, p + 1)
            if data[p : p + 1] != bytes(closers[-1:]):
                p = _key(data, p) if closers[-1] == 0x7D else p
                continue
            p += 1
            closers.pop()
        elif byte == 0x22:
            p = string_end(data, p)
        else:
            p = scalar_end(data, p, flaws)
        while closers:
            p = space(data, p)
            if data[p : p + 1] == b",":
                p = space(data, p + 1)
                if data[p : p + 1] not in (b"}", b"]"):
                    p = _key(data, p) if closers[-1] == 0x7D else p
                    break
                flaws.add(COMMA)
            p = expect(data, p, closers.pop())
        else:
            return p


def _key(data: bytes, p: int, nested: bool = True) -> int:
    """Past a key and its colon, to the value. No value has a key "ph": there it means a swallowed event."""
    if p >= len(data):
        raise More
    if data[p] != 0x22 or (nested and data.startswith(b'"ph"', p)):
        raise Bad
    return space(data, expect(data, space(data, string_end(data, p)), 0x3A))


def decimal(text: bytes, scale: int) -> int | None:
    """``text`` times 10^scale, rounded half away from zero; MISSING where out of range, None where it is no number."""
    if _NOT_FINITE.fullmatch(text):
        return MISSING
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    sign, whole, fraction, bare, down, exponent = found.groups(b"")
    fraction = fraction or bare
    digits = (whole + fraction).lstrip(b"0")
    if not digits:
        return 0
    power = min(int(exponent or b"0"), 10**6) if len(exponent) < 20 else 10**6
    point = len(digits) - len(fraction) + (-power if down == b"-" else power) + scale
    if point < 0:
        return 0
    if point > 19:
        return MISSING
    value = int(digits[:point].ljust(point, b"0") or b"0") + (digits[point : point + 1] >= b"5")
    if value >= 2**63:
        return MISSING
    return -value if sign == b"-" else value


def read_decimal(data: bytes, p: int, end: int, scale: int, flaws: set[int]) -> int:
    """The number in ``data[p:end]``, quoted or not; MISSING where there is none."""
    quoted = data[p] == 0x22
    value = decimal(data[p + 1 : end - 1] if quoted else data[p:end], scale)
    if value is None:
        if data[p] == 0x2D or 0x30 <= data[p] <= 0x39:
            flaws.add(NUMBER)
        return MISSING
    if value == MISSING:
        flaws.add(NUMBER)
    return value


def compact(value: bytes) -> bytes:
    """A JSON value without the white space outside its strings."""
    return _TOKENS_IN_STRING.sub(lambda m: m[0] if m[0][:1] == b'"' else b"", value)


def read_text(data: bytes, p: int, end: int) -> Text | None:
    """The text in ``data[p:end]``; None for null."""
    if data[p] == 0x22:
        return Text(data[p + 1 : end - 1], False, p + 1)
    return None if data[p] == 0x6E else Text(compact(data[p:end]), True, p)


def flow_number(text: Text | None) -> int | None:
    """A flow id: a decimal number, quoted or not, or quoted hexadecimal."""
    if text is None:
        return None
    if not text.is_json and (found := _HEX.fullmatch(text.raw)):
        return int(found[1], 16)
    value = decimal(text.raw, 0)
    return None if value == MISSING else value


def read_double(raw: bytes) -> float:
    """A float argument; NaN where it is none."""
    text = raw[1:-1] if raw[:1] == b'"' else raw
    value = float(text) if len(text) < 64 and _NUMBER.fullmatch(text) else math.nan
    return math.nan if math.isinf(value) else value


def members(data: bytes, p: int, flaws: set[int]) -> tuple[list[tuple[bytes, int, int]], int]:
    """Keys and value ranges of the object at ``p``, and where it ends."""
    found: list[tuple[bytes, int, int]] = []
    p = space(data, p + 1)
    if data[p : p + 1] == b"}":
        return found, p + 1
    while True:
        value = _key(data, p, nested=False)
        key = _STRING.match(data, p)
        end = value_end(data, value, flaws)
        found.append((key[0][1:-1] if key else b"", value, end))
        p = space(data, end)
        if data[p : p + 1] == b",":
            p = space(data, p + 1)
            if data[p : p + 1] == b'"':
                continue
            if data[p : p + 1] == b"}":
                flaws.add(COMMA)
        return found, expect(data, p, 0x7D)


def read_event(data: bytes, p: int) -> tuple[Event, int]:
    """The event whose brace is at ``p``, and where it ends."""
    event = Event()
    found, stop = members(data, p, event.flaws)
    for key, value, end in found:
        if key == b"ph":
            event.has_ph = True
            event.ph = chr(data[value + 1]) if data[value] == 0x22 and end - value == 3 else "?"
        elif key == b"ts":
            if event.has_ts:
                event.flaws.add(TWICE)
            event.has_ts = True
            event.ts = read_decimal(data, value, end, 3, set())
        elif key == b"dur":
            event.dur = read_decimal(data, value, end, 3, set())
        elif key in (b"name", b"cat", b"id"):
            _set_text(event, key.decode(), read_text(data, value, end))
        elif key in (b"pid", b"tid"):
            found_text = read_text(data, value, end)
            whole = Text(data[value:end], False, value)
            _set_text(event, key.decode(), whole if found_text and found_text.is_json else found_text)
        elif key == b"args" and data[value] == 0x7B:
            event.args = members(data, value, set())[0]
    return event, stop


def _set_text(event: Event, key: str, text: Text | None) -> None:
    if text is None:
        event.texts.pop(key, None)
    else:
        event.texts[key] = text
