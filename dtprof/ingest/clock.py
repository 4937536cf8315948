"""One clock for all hosts, from the ends of operations that end together.

A synchronising collective ends on all its ranks within microseconds, so the median difference of ends between two
hosts is the offset of their clocks; its spread is kept as the residual. Processes of one host share a clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.run import Part

# offsets below this are not told from the operations' own spread, and are not applied
LEAST_SHIFT_NS = 100_000


@dataclass(frozen=True)
class Ends:
    """One operation: part ordinal -> end in that part's own clock, ns."""

    of: dict[int, int]


def align(parts: Sequence[Part], operations: Sequence[Ends]) -> dict[int, tuple[int, int | None]]:
    """Per part (offset to add, residual), in ns.

    The host of the lowest rank is the reference. The residual is the 95th percentile of what is left of the end
    differences; None where a part shares no operation with the reference. An offset is applied only where it is at
    least 100 us and larger than its own residual; parts of one named host are never shifted against each other.
    """
    if not parts:
        return {}
    ordered = sorted(parts, key=lambda p: (p.rank is None, p.rank or 0, p.ordinal))
    host_of = {p.ordinal: p.host or f"part {p.ordinal}" for p in parts}
    reference = host_of[ordered[0].ordinal]
    differences: dict[str, list[int]] = defaultdict(list)
    for operation in operations:
        base = [end for part, end in operation.of.items() if host_of[part] == reference]
        if not base:
            continue
        centre = _median(base)
        for part, end in operation.of.items():
            differences[host_of[part]].append(centre - end)
    offsets: dict[str, tuple[int, int | None]] = {}
    for host, found in differences.items():
        values = np.array(found, np.int64)
        offset = _median(found)
        left = int(np.percentile(np.abs(values - offset), 95))
        if host == reference or abs(offset) < LEAST_SHIFT_NS or left >= abs(offset):
            offset, left = 0, int(np.percentile(np.abs(values), 95))
        offsets[host] = (offset, left)
    return {p.ordinal: offsets.get(host_of[p.ordinal], (0, None)) for p in parts}


def _median(values: Sequence[int]) -> int:
    """Median in integers: a float64 is 256 ns coarse at today's Unix times."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
