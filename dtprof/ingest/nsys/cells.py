"""Records of SQLite's file format to columns: many at once, grouped by their headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.schema import MISSING

Kind: TypeAlias = Literal["int", "float", "text", "blob"]
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Where: TypeAlias = tuple[int, int]  # serial type, place in the record

# bytes of the serial types 0 to 9 of an integer, a float or a constant
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_FLOAT, _ZERO, _ONE = 7, 8, 9
_MIX = np.uint64(0x9E3779B97F4A7C15)
_WORDS = np.array([2 ** (8 * n) - 1 for n in range(8)], np.uint64)


def empty(kind: Kind, count: int) -> Any:
    """A column without values."""
    if kind == "int":
        return np.full(count, MISSING, np.int64)
    return np.full(count, np.nan) if kind == "float" else [None] * count


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
    header, _ = varint(buffer, at)
    header = np.clip(header, 1, len(buffer) - 8 - at)
    order, borders = _groups(buffer, at, header)
    for group in np.split(order, borders):
        first = int(group[0])
        layout = _layout(buffer[at[first] : at[first] + header[first]].tobytes())
        begin, into = at[group], rows[group]
        for name, index in wanted.items():
            if index >= len(layout) or layout[index][0] == 0:
                continue
            size = _size(layout[index][0])
            # a torn record may point past its page, or state a size that no record here can have
            if size <= len(buffer) - 16 and size * len(group) <= 2 * len(buffer):
                found = np.minimum(begin + layout[index][1], len(buffer) - 8 - size)
                _take(buffer, found, layout[index][0], into, kinds[name], out[name], encoding)


def _groups(buffer: Bytes, at: Ints, header: Ints) -> tuple[Ints, Ints]:
    """Records in order of a hash of their headers, and where a new header begins."""
    word = np.ndarray((len(buffer) - 7,), np.dtype("<u8"), buffer, 0, (1,))
    key = header.astype(np.uint64)
    for place in range(0, int(header.max()), 8):
        left = np.clip(header - place, 0, 8)
        text = word[np.minimum(at + place, len(word) - 1)]
        if left.min() < 8:
            text = np.where(left < 8, text & _WORDS[np.minimum(left, 7)], text)
        key = (key ^ text) * _MIX
        key ^= key >> np.uint64(29)
    order = np.argsort(key, kind="stable")
    return order, np.flatnonzero(np.diff(key[order])) + 1


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


def _take(buffer: Bytes, at: Ints, serial: int, rows: Ints, kind: Kind, out: Any, encoding: str) -> None:
    """Values of one serial type at these places."""
    if serial >= 12:
        if kind in ("text", "blob"):
            _take_bytes(buffer, at, serial, rows, kind, out, encoding)
        return
    if serial == _FLOAT:
        numbers = np.ndarray((len(buffer) - 7,), np.dtype(">f8"), buffer, 0, (1,))[at].astype(np.float64)
        values: NDArray[Any] = numbers if kind == "float" else np.where(np.abs(numbers) < 2.0**62, numbers, 0).astype(np.int64)
    elif serial in (_ZERO, _ONE):
        values = np.broadcast_to(np.int64(serial - _ZERO), len(at))
    elif serial <= 6:
        size = _SIZES[serial]
        wide = np.ndarray((len(buffer) - 7,), np.dtype(">i8"), buffer, 0, (1,))[at + size - 8].astype(np.int64)
        values = wide if size == 8 else (wide << (64 - 8 * size)) >> (64 - 8 * size)
    else:
        return
    if kind in ("int", "float"):
        out[rows] = values
    elif kind == "text":
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            out[row] = str(value)


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
