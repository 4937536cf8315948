"""Records of SQLite's file format to columns: many at once, grouped by their headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.distinct import distinct
from dtprof.schema import MISSING

Kind: TypeAlias = Literal["int", "float", "text", "blob"]
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Where: TypeAlias = tuple[int, int]  # serial type, place in the record

NOTHING: dict[str, Any] = {"int": np.int64(MISSING), "float": np.float64("nan")}
# bytes of the serial types 0 to 9 of an integer, a float or a constant
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_FLOAT, _ZERO, _ONE = 7, 8, 9
_MIX = np.uint64(0x9E3779B97F4A7C15)
_WORDS = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)
# how a number of each serial type is read: as what, how many bytes ahead of it, and by how much that is too wide
_READ = (
    ("", 0, 0), (">i1", 0, 0), (">i2", 0, 0), (">i4", 1, 8), (">i4", 0, 0), (">i8", 2, 16), (">i8", 0, 0), (">f8", 0, 0),
)  # fmt: skip


def empty(kind: Kind, count: int) -> Any:
    """A column without values."""
    return np.full(count, NOTHING[kind]) if kind in NOTHING else [None] * count


def unset(kind: Kind, count: int) -> Any:
    """A column of which every value will be set: of texts and blobs, one without values."""
    return np.empty(count, NOTHING[kind].dtype) if kind in NOTHING else [None] * count


def big16(buffer: Bytes, at: Ints) -> Ints:
    """Unsigned 16-bit numbers, the high byte first."""
    return (buffer[at].astype(np.int64) << 8) | buffer[at + 1]


def varint(buffer: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Numbers of one to nine bytes and where what follows them begins; seven bits a byte, the high ones first."""
    byte = buffer[at]
    value, end = (byte & 0x7F).astype(np.int64), at + 1
    todo = np.flatnonzero(byte >= 0x80)
    last = len(buffer) - 1
    for length in range(1, 9):
        if not len(todo):
            break
        byte = buffer[np.minimum(end[todo], last)]
        value[todo] = (value[todo] << 8) | byte if length == 8 else (value[todo] << 7) | (byte & 0x7F)
        end[todo] += 1
        todo = todo[byte >= 0x80]
    return value, end


def past_varint(buffer: Bytes, at: Ints) -> Ints:
    """Where what follows the numbers of one to nine bytes begins."""
    more, end, last = buffer[at] >> 7, at + 1, len(buffer) - 1
    for _ in range(8):
        if not more.any():
            break
        byte = buffer[np.minimum(end, last)]
        end += more
        more &= byte >> 7
    return end


def decode(
    buffer: Bytes,
    at: Ints,
    rows: Ints,
    wanted: Mapping[str, int],
    kinds: Mapping[str, Kind],
    out: dict[str, Any],
    encoding: str,
) -> None:
    """Put the values of the records that begin ``at`` into ``rows`` of the columns ``out``."""
    if not len(at):
        return
    at = np.minimum(at, len(buffer) - 9)
    header = buffer[at].astype(np.int64)
    if header.max() >= 0x80:
        header, _ = varint(buffer, at)
    header = np.clip(header, 1, len(buffer) - 8 - at)
    for group in _groups(buffer, at, header):
        begin, into = at[group], rows[group]
        first = int(begin[0])
        layout = _layout(buffer[first : first + int(header[group][0])].tobytes())
        places = {name: layout[index] for name, index in wanted.items() if index < len(layout) and layout[index][0]}
        numbers = {name: where for name, where in places.items() if where[0] < 10}
        if not _take_numbers(buffer, begin, into, numbers, kinds, out):
            numbers = {}
        for name in wanted.keys() - numbers.keys():
            if kinds[name] in ("int", "float"):
                out[name][into] = NOTHING[kinds[name]]
        for name, (serial, place) in places.items():
            size = _size(serial)
            # a torn record may point past its page, or state a size that no record here can have
            if serial >= 12 and kinds[name] in ("text", "blob") and _fits(size, len(begin), buffer):
                found = np.minimum(begin + place, len(buffer) - 8 - size)
                _take_bytes(buffer, found, serial, into, kinds[name], out[name], encoding)


def _fits(size: int, count: int, buffer: Bytes) -> bool:
    """Can the buffer hold this many records of this size?"""
    return size <= len(buffer) - 16 and size * count <= 2 * len(buffer)


def _groups(buffer: Bytes, at: Ints, header: Ints) -> list[Any]:
    """The records by their headers: rows of each, ascending."""
    word = np.ndarray((len(buffer) - 7,), np.dtype("<u8"), buffer, 0, (1,))
    longest = int(header.max())
    alike = int(header.min()) == longest
    key = np.zeros(len(at), np.uint64) if alike else header.astype(np.uint64)
    for place in range(0, longest, 8):
        if alike:
            text = word[at + place]
            text &= _WORDS[min(longest - place, 8)]
        else:
            text = word[np.minimum(at + place, len(word) - 1)] & _WORDS[np.clip(header - place, 0, 8)]
        key = (key ^ text) * _MIX
        key ^= key >> np.uint64(29)
    found, code = distinct(key.view(np.int64))
    if len(found) == 1:
        return [slice(None)]
    small = code.astype(np.uint8 if len(found) <= 2**8 else np.uint16 if len(found) <= 2**16 else np.int32)
    order = np.argsort(small, kind="stable")
    return np.split(order, np.cumsum(np.bincount(code, minlength=len(found)))[:-1])


def _layout(header: bytes) -> list[Where]:
    """Serial type and place of every column of a record with this header."""
    numbers, at = [], 0
    while at < len(header):
        value, length = 0, 0
        while True:
            byte = header[at] if at < len(header) else 0
            at, length = at + 1, length + 1
            if length == 9:
                value = (value << 8) | byte
                break
            value = (value << 7) | (byte & 0x7F)
            if byte < 0x80:
                break
        numbers.append(value)
    place, out = len(header), []
    for kind in numbers[1:]:
        out.append((kind, place))
        place += _size(kind)
    return out


def _size(kind: int) -> int:
    return _SIZES[kind] if kind < 10 else (kind - 12) // 2 if kind >= 12 else 0


def _take_numbers(
    buffer: Bytes, at: Ints, rows: Ints, places: Mapping[str, Where], kinds: Mapping[str, Kind], out: dict[str, Any]
) -> bool:
    """Numbers of records that have them at the same places: the records are put one below the other, and read by column.

    False where the buffer cannot hold such records.
    """
    length = max((place + _SIZES[serial] for serial, place in places.values()), default=0)
    if not _fits(length, len(at), buffer):
        return False
    if length:
        at = np.minimum(at, len(buffer) - length)
        records = np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, 0, (1,))[at]
    for name, (serial, place) in places.items():
        values: Any = serial - _ZERO if serial in (_ZERO, _ONE) else _numbers(records, serial, place)
        if kinds[name] in ("int", "float"):
            if serial == _FLOAT and kinds[name] == "int":
                values = np.where(np.abs(values) < 2.0**62, values, 0).astype(np.int64)
            out[name][rows] = values
        elif kinds[name] == "text":
            for row, value in zip(rows.tolist(), np.broadcast_to(values, len(rows)).tolist(), strict=True):
                out[name][row] = str(value)
    return True


def _numbers(records: NDArray[np.void], serial: int, place: int) -> NDArray[Any]:
    """The numbers of one serial type at this place of every record."""
    form, ahead, shift = _READ[serial]
    values = np.ndarray((len(records),), form, records, place - ahead, (records.itemsize,))
    return values.astype(form[1:]) << shift >> shift if shift else values


def _take_bytes(buffer: Bytes, at: Ints, serial: int, rows: Ints, kind: Kind, out: list[Any], encoding: str) -> None:
    size = _size(serial)
    if size == 0:
        texts = [b""] * len(at)
    else:
        texts = [t.ljust(size, b"\0") for t in np.ndarray((len(buffer) - size + 1,), f"S{size}", buffer, 0, (1,))[at].tolist()]
    if kind == "text" and serial % 2:
        for row, text in zip(rows.tolist(), texts, strict=True):
            out[row] = text.decode(encoding, "replace")
    else:
        for row, text in zip(rows.tolist(), texts, strict=True):
            out[row] = text if kind == "blob" else text.decode(encoding, "replace")
