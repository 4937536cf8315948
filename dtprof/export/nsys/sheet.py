"""Rows of one nsys table as columns, and the strings that its numbers stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dtprof.export.nsys.schema import TABLES
from dtprof.intervals import Ints
from dtprof.schema import MISSING
from dtprof.table import Table

# an array (MISSING is NULL), a list of texts or numbers, or one value for all rows
Values: TypeAlias = Ints | Sequence[Any] | int | str | None


@dataclass(frozen=True)
class Sheet:
    """``columns`` that are not named are NULL in every row."""

    table: str
    rows: int
    columns: Mapping[str, Values]

    @classmethod
    def of(cls, table: str, rows: Sequence[Sequence[Any]]) -> Sheet:
        """A small sheet from rows; what they lack at their end is NULL."""
        names = list(TABLES[table])[: len(rows[0])] if rows else []
        return cls(table, len(rows), {name: [row[i] for row in rows] for i, name in enumerate(names)})

    def chunks(self, size: int) -> Iterator[list[list[Any]]]:
        """Plain columns, in the order of the table, ``size`` rows at a time."""
        names = TABLES[self.table]
        for lo in range(0, self.rows, size):
            hi = min(lo + size, self.rows)
            yield [_plain(self.columns.get(name), lo, hi) for name in names]


def _plain(values: Values, lo: int, hi: int) -> list[Any]:
    if values is None or isinstance(values, int | str):
        return [values] * (hi - lo)
    if isinstance(values, np.ndarray):
        part = values[lo:hi]
        plain: list[Any] = part.tolist()
        return [None if v == MISSING else v for v in plain] if np.any(part == MISSING) else plain
    return list(values[lo:hi])


class StringIds:
    """Numbers for texts, each text once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def of(self, text: str) -> int:
        """The number of a text."""
        return self._ids.setdefault(text, len(self._ids))

    def of_codes(self, table: Table, column: str, rows: Ints, change: Mapping[int, str] | None = None) -> Ints:
        """Numbers of a text column's values in these rows; ``change`` gives other texts for some codes."""
        codes = table[column][rows]
        values = table.values(column)
        lut = np.full(len(values) + 1, -1, np.int64)
        lut[-1] = self.of("")
        for code in np.unique(codes[codes >= 0]).tolist():
            lut[code] = self.of((change or {}).get(code, values[code]))
        found: Ints = lut[codes]
        return found

    def sheet(self) -> Sheet:
        """The table StringIds."""
        return Sheet("StringIds", len(self._ids), {"id": list(self._ids.values()), "value": list(self._ids)})
