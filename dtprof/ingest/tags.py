"""Tags of annotated ranges (``forward#microbatch=2#layer=blocks.0``) and of frameworks' on everything that runs inside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.frameworks import phase_and_tags
from dtprof.intervals import Ints
from dtprof.ranges import INT_TAGS, parse_range
from dtprof.schema import MISSING32
from dtprof.table import Strings

Rows = NDArray[np.int32]

# steps and phases have rules of their own; every other tag is taken as it stands
_NUMBERS = tuple(t for t in INT_TAGS if t != "step")


def tag_columns(name: Strings, ranges: Rows, lane: Rows, ts: Ints, dur: Ints, launch: Rows) -> dict[str, Any]:
    """Columns microbatch, stage, bucket, expert and layer, as far as any range has them.

    ``ranges`` are rows of host ranges, ascending in time: events of the same thread that start inside one take its tags,
    the innermost range's first; device events take those of their launch call.
    """
    tags = [parse_range(n)[1] if "#" in n and "=" in n else phase_and_tags(n)[1] for n in name.values]
    has = np.array([*map(bool, tags), False], bool)
    tagged = ranges[has[name.codes[ranges]]].tolist()
    if not tagged:
        return {}
    numbers: dict[str, NDArray[np.int32]] = {}
    layers = np.full(len(ts), -1, np.int32)
    index: dict[str, int] = {}
    for row in tagged:
        lo, hi = np.searchsorted(ts, (ts[row], ts[row] + dur[row]))
        inside = np.flatnonzero(lane[lo:hi] == lane[row]) + lo
        for key, value in tags[name.codes[row]].items():
            if key in _NUMBERS:
                numbers.setdefault(key, np.full(len(ts), MISSING32, np.int32))[inside] = value
            elif key == "layer":
                layers[inside] = index.setdefault(str(value), len(index))
    launched = np.flatnonzero(launch >= 0)
    for column in (*numbers.values(), layers):
        column[launched] = column[launch[launched]]
    return {**numbers, **({"layer": Strings(layers, tuple(index))} if index else {})}
