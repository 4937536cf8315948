"""A table of the schema: numpy columns in memory, Arrow and Parquet at the border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.schema import MISSING, MISSING32, TABLES, Column, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = NDArray[Any]

DTYPES: dict[str, Any] = {
    "i64": np.int64, "i32": np.int32, "f64": np.float64, "bool": np.bool_,
    "str": np.int32, "enum": np.int8, "ints": object, "strs": object,
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "i64": MISSING, "i32": MISSING32, "f64": np.nan, "bool": False,
    "str": -1, "enum": -1, "ints": None, "strs": None,
}  # fmt: skip


@dataclass(frozen=True)
class Strings:
    """A dictionary-encoded text column: ``codes`` index ``values``; -1 is missing."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Strings:
        """Encode plain texts."""
        index: dict[str, int] = {}
        codes = [-1 if t is None else index.setdefault(t, len(index)) for t in texts]
        return cls(np.array(codes, np.int32), tuple(index))


ColumnData: TypeAlias = Array | Strings | Sequence[Any]


class Table:
    """Rows of one schema table.

    ``table["ts"]`` is the numpy array of a column (codes for text and enum columns); ``table.text(name)`` decodes it;
    ``table.known(name)`` says which rows have a value. Columns that were never stored read as missing.
    """

    __slots__ = ("_columns", "_values", "rows", "spec")

    def __init__(self, spec: TableSpec, rows: int, columns: Mapping[str, Array], values: Mapping[str, tuple[str, ...]]) -> None:
        self.spec, self.rows = spec, rows
        self._columns, self._values = dict(columns), dict(values)

    @classmethod
    def of(cls, name: str, /, **columns: ColumnData) -> Table:
        """Table ``name`` from columns of one length; text columns take texts or ``Strings``, enums names or codes."""
        spec = TABLES[name]
        arrays: dict[str, Array] = {}
        values: dict[str, tuple[str, ...]] = {}
        for key, data in columns.items():
            column = spec.column(key)
            if column.kind == "str":
                text = data if isinstance(data, Strings) else Strings.of(data)
                arrays[key], values[key] = np.asarray(text.codes, np.int32), text.values
            else:
                arrays[key] = _array(column, data)
        lengths = {len(a) for a in arrays.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of table {name} differ in length: { {k: len(a) for k, a in arrays.items()} }")
        return cls(spec, lengths.pop() if lengths else 0, arrays, values)

    @classmethod
    def from_rows(cls, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Build table ``name`` from dicts; keys that a row lacks, or whose value is None, are missing."""
        spec = TABLES[name]
        used = [c for c in spec.columns if any(c.name in row for row in rows)]
        data: dict[str, ColumnData] = {}
        for column in used:
            nothing = None if column.kind in ("str", "enum") else NOTHING[column.kind]
            got = [row.get(column.name) for row in rows]
            data[column.name] = [nothing if v is None else v for v in got]
        return cls.of(name, **data) if used else cls(spec, len(rows), {}, {})

    @classmethod
    def empty(cls, name: str) -> Table:
        """No rows."""
        return cls(TABLES[name], 0, {}, {})

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<Table {self.spec.name}: {self.rows} rows>"

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of the columns that hold data."""
        return tuple(self._columns)

    def __getitem__(self, name: str) -> Array:
        found = self._columns.get(name)
        if found is not None:
            return found
        kind = self.spec.column(name).kind
        return np.broadcast_to(np.array(NOTHING[kind], DTYPES[kind]), (self.rows,))

    def values(self, name: str) -> tuple[str, ...]:
        """What the codes of a text or enum column stand for."""
        column = self.spec.column(name)
        return column.values if column.kind == "enum" else self._values.get(name, ())

    def code(self, name: str, value: str) -> int:
        """Code of ``value`` in a text or enum column; -2 where no row can have it."""
        values = self.values(name)
        return values.index(value) if value in values else -2

    def is_(self, name: str, *wanted: str) -> NDArray[np.bool_]:
        """Rows whose text or enum column is one of ``wanted``."""
        codes = [self.code(name, w) for w in wanted]
        return np.isin(self[name], codes)

    def known(self, name: str) -> NDArray[np.bool_]:
        """Rows in which the column has a value."""
        kind = self.spec.column(name).kind
        data = self[name]
        if kind == "f64":
            return ~np.isnan(data)
        if kind in ("ints", "strs"):
            return np.array([v is not None for v in data], bool)
        if kind == "bool":
            return np.ones(self.rows, bool)
        return np.asarray(data != NOTHING[kind])

    def text(self, name: str) -> list[str | None]:
        """A text or enum column as plain texts."""
        values = self.values(name)
        return [values[c] if c >= 0 else None for c in self[name].tolist()]

    def row(self, i: int) -> dict[str, Any]:
        """One row as a dict of plain values, None for missing."""
        out: dict[str, Any] = {}
        for column in self.spec.columns:
            value = self[column.name][i]
            if column.kind in ("str", "enum"):
                out[column.name] = self.values(column.name)[value] if value >= 0 else None
            elif column.kind in ("ints", "strs"):
                out[column.name] = value
            elif column.kind == "f64":
                out[column.name] = None if np.isnan(value) else float(value)
            else:
                out[column.name] = None if value == NOTHING[column.kind] and column.kind != "bool" else value.item()
        return out

    def take(self, rows: Array) -> Table:
        """The rows at these indices, or where this mask is true."""
        picked = {k: a[rows] for k, a in self._columns.items()}
        count = len(next(iter(picked.values()))) if picked else len(np.arange(self.rows)[rows])
        return Table(self.spec, count, picked, self._values)

    def with_columns(self, **columns: ColumnData) -> Table:
        """The same rows with these columns set."""
        extra = Table.of(self.spec.name, **columns)
        if self._columns and len(extra) != self.rows:
            raise ValueError(f"table {self.spec.name} has {self.rows} rows, the new columns {len(extra)}")
        return Table(self.spec, len(extra), {**self._columns, **extra._columns}, {**self._values, **extra._values})

    @classmethod
    def concat(cls, tables: Sequence[Table]) -> Table:
        """All rows of tables of one name, in order."""
        spec = tables[0].spec
        names = [c for c in spec.columns if any(c.name in t.stored for t in tables)]
        data: dict[str, ColumnData] = {}
        for column in names:
            if column.kind == "str":
                index: dict[str, int] = {}
                codes = []
                for t in tables:
                    lut = np.array([index.setdefault(v, len(index)) for v in t.values(column.name)] + [-1], np.int32)
                    codes.append(lut[t[column.name]])
                data[column.name] = Strings(np.concatenate(codes), tuple(index))
            else:
                data[column.name] = np.concatenate([t[column.name] for t in tables])
        return cls.of(spec.name, **data) if names else cls(spec, sum(map(len, tables)), {}, {})

    def to_arrow(self) -> pa.Table:
        """The stored columns as an Arrow table; missing values become nulls."""
        import pyarrow as pa

        arrays: dict[str, pa.Array] = {}
        for name, data in self._columns.items():
            kind = self.spec.column(name).kind
            if kind in ("str", "enum"):
                codes = _arrow(data, data < 0)
                arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(self.values(name), pa.string()))
            elif kind in ("ints", "strs"):
                arrays[name] = pa.array(list(data), pa.list_(pa.int64() if kind == "ints" else pa.string()))
            elif kind == "bool":
                arrays[name] = pa.array(data)
            else:
                arrays[name] = _arrow(data, ~self.known(name))
        return pa.table(arrays)

    @classmethod
    def from_arrow(cls, name: str, table: pa.Table) -> Table:
        """A table read back from Arrow; columns that the schema does not know are ignored."""
        spec = TABLES[name]
        known = {c.name for c in spec.columns}
        data: dict[str, ColumnData] = {}
        for key in table.column_names:
            if key in known:
                data[key] = _from_arrow(spec.column(key), table.column(key))
        return cls.of(name, **data) if data else cls(spec, table.num_rows, {}, {})


def _arrow(data: Array, missing: NDArray[np.bool_]) -> pa.Array:
    """An Arrow array; without a copy where nothing is missing."""
    import pyarrow as pa

    return pa.array(data, mask=missing) if missing.any() else pa.array(data)


def _array(column: Column, data: Any) -> Array:
    if column.kind in ("ints", "strs"):
        out = np.empty(len(data), object)
        for i, value in enumerate(data):
            out[i] = None if value is None else tuple(value)
        return out
    if column.kind == "enum" and not (isinstance(data, np.ndarray) and data.dtype.kind in "iu"):
        data = [v if isinstance(v, int) else -1 if v is None else _code(column, v) for v in data]
    return np.asarray(data, DTYPES[column.kind])


def _code(column: Column, value: str) -> int:
    if value not in column.values:
        raise ValueError(f"column {column.name} cannot be {value!r}; it is one of {', '.join(column.values)}")
    return column.values.index(value)


def _from_arrow(column: Column, chunked: pa.ChunkedArray) -> ColumnData:
    import pyarrow as pa

    if column.kind in ("str", "enum"):
        if not pa.types.is_dictionary(chunked.type):
            chunked = chunked.dictionary_encode()
        array = chunked.unify_dictionaries().combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], chunked.type)
        codes = _filled(pa.chunked_array([array.indices]), -1, np.int32)
        values = tuple(array.dictionary.to_pylist())
        if column.kind == "str":
            return Strings(codes, values)
        lut = np.array([column.values.index(v) if v in column.values else -1 for v in values] + [-1], np.int8)
        decoded: Array = lut[codes]
        return decoded
    if column.kind in ("ints", "strs"):
        return list(chunked.to_pylist())
    if pa.types.is_boolean(chunked.type) or pa.types.is_integer(chunked.type) or pa.types.is_floating(chunked.type):
        return _filled(chunked, NOTHING[column.kind], DTYPES[column.kind])
    return np.asarray(chunked.fill_null(NOTHING[column.kind]).to_numpy(), DTYPES[column.kind])


def _filled(chunked: pa.ChunkedArray, nothing: Any, dtype: Any) -> Array:
    """Numbers with ``nothing`` where there is none; from their buffers, for Arrow's own ways import pandas."""
    import pyarrow as pa

    out, at = np.empty(len(chunked), dtype), 0
    for chunk in chunked.chunks:
        valid, held = chunk.buffers()
        here = slice(chunk.offset, chunk.offset + len(chunk))
        mine = out[at : at + len(chunk)]
        if len(chunk):
            mine[:] = _bits(held)[here] if pa.types.is_boolean(chunk.type) else _numbers(chunk.type, held)[here]
        if chunk.null_count:
            mine[~_bits(valid)[here]] = nothing
        at += len(chunk)
    return out


def _bits(buffer: pa.Buffer) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little").astype(np.bool_)


def _numbers(kind: pa.DataType, buffer: pa.Buffer) -> Array:
    """The numbers of a buffer, which may be longer than what is used of it."""
    dtype = np.dtype(kind.to_pandas_dtype())
    return np.frombuffer(buffer, dtype, buffer.size // dtype.itemsize)
