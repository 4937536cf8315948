"""The spans of a Kineto file in event order, with what is concluded about each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import spans
from dtprof.ingest.kineto.raw import Ints, RawTrace
from dtprof.ingest.kineto.spans import Rows, is_kind
from dtprof.schema import DEVICE_KINDS, MISSING
from dtprof.table import Strings

# an argument that more than one span in this many has is looked up in a full column
_SPARSE = 16


@dataclass
class Events:
    """The spans in event order (ascending ts) with what is concluded about each; ``every``: it is all, as the file has them."""

    raw: RawTrace
    order: NDArray[Any]
    every: bool
    kind: NDArray[np.int8]
    ts: Ints
    dur: Ints
    name: Strings
    correlation: Ints
    lanes: spans.Lanes
    lane: Rows
    launch: Rows
    parent: Rows

    def ordered(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the file in event order."""
        return column if self.every else column[self.order]

    @cached_property
    def on_device(self) -> NDArray[np.bool_]:
        """Events that lie on a device lane."""
        there: NDArray[np.bool_] = (self.lanes.device >= 0)[self.lane]
        return there

    @cached_property
    def device(self) -> NDArray[np.bool_]:
        """Events that occupy a device: kernels, copies, memsets and communication kernels."""
        return is_kind(self.kind, *DEVICE_KINDS) & self.on_device

    def argument(self, key: str, rows: NDArray[np.int64]) -> Any:
        """An argument of these events: ints with MISSING, floats with NaN, or Strings; None where no span has it."""
        column = self.raw.args.get(key)
        if column is None or len(column.rows) == 0:
            return None
        wanted = self.order[rows]
        if np.array_equal(column.rows, wanted):
            return column.values
        if len(column.rows) * _SPARSE > len(self.raw.ts) and not isinstance(column.values, Strings):
            full = np.full(len(self.raw.ts), np.nan if column.values.dtype.kind == "f" else MISSING, column.values.dtype)
            full[column.rows] = column.values
            return full[wanted]
        at = np.minimum(np.searchsorted(column.rows, wanted), len(column.rows) - 1)
        hit = column.rows[at] == wanted
        if isinstance(column.values, Strings):
            return Strings(np.where(hit, column.values.codes[at], -1).astype(np.int32), column.values.values)
        return np.where(hit, column.values[at], np.nan if column.values.dtype.kind == "f" else MISSING)


def base_ns(header: dict[str, Any]) -> int:
    """``baseTimeNanoseconds`` of a file; 0 where it has none (times are then absolute)."""
    try:
        return int(header.get("baseTimeNanoseconds", 0))
    except (TypeError, ValueError):
        return 0
