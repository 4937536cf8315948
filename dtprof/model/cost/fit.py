"""What the operations of each group cost, from the transfers of a run: a line, or a table of sizes where a line does not hold.

A line t = alpha + S / bandwidth is the model of R. Hockney, "The communication challenge for MPP" (1994). It is fitted by the
median of the slopes between the measured sizes (H. Theil, 1950; P. K. Sen, 1968), so that a few bad sizes do not move it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.results import Operation
from dtprof.catalogue.collectives import busbw_factor
from dtprof.model.cost.table import CostTable

# disturbances only ever lengthen a transfer, so a size is known by its lower quartile
_QUANTILE = 0.25
# a line that misses a size by more than this share, and by more than twice its scatter, does not hold
_BENDS = 0.15
# sizes closer than this share are one
_SAME = 0.02
_MOST_SIZES = 64
# sizes that differ less than this tell nothing of a slope
_LEAST_RATIO = 1.5


@dataclass(frozen=True)
class Cost:
    """One operation of one group of ``n`` ranks.

    ``alpha_ns`` and its range; ``gb_s``, S per ns beyond it, and its range (infinite where size does not show); ``table``: the
    line, or the measured sizes where ``bends``; ``count`` operations of ``sizes`` sizes; ``spread``: their relative half-width.
    """

    op: str
    group: str
    n: int
    alpha_ns: float
    alpha_range: tuple[float, float]
    gb_s: float
    gb_s_range: tuple[float, float]
    table: CostTable
    bends: bool
    sizes: int
    count: int
    spread: float

    @property
    def busbw_gb_s(self) -> float:
        """Bus bandwidth that large sizes come to (nccl-tests doc/PERFORMANCE.md)."""
        return self.gb_s * (busbw_factor(self.op, self.n) or 1.0)

    @property
    def half_size(self) -> float:
        """Bytes at which half of the time is latency (Hockney's n 1/2)."""
        return self.alpha_ns * self.gb_s


def costs_of(operations: Iterable[Operation]) -> dict[tuple[str, str], Cost]:
    """(op, group) -> cost, for all whose transfers and bytes are known at two sizes or more."""
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for o in operations:
        if o.transfer_ns and o.bytes and o.bytes_known == "exact" and o.n and not o.one_sided:
            found[o.op, o.group, o.n].append((o.bytes, o.transfer_ns))
    out = {}
    for (op, group, n), pairs in found.items():
        made = fit(op, group, n, [s for s, _ in pairs], [t for _, t in pairs])
        if made is not None:
            out[op, group] = made
    return out


def fit(op: str, group: str, n: int, sizes: Sequence[float], times: Sequence[float]) -> Cost | None:
    """The cost of operations of ``sizes`` bytes that took ``times`` ns; None where they hardly differ in size."""
    at, typical, spread = _by_size(np.asarray(sizes, float), np.asarray(times, float))
    if at[-1] < _LEAST_RATIO * at[0]:
        return None
    pairs = list(combinations(range(len(at)), 2))
    slopes = np.array([(typical[j] - typical[i]) / (at[j] - at[i]) for i, j in pairs])
    slope = max(float(np.median(slopes)), 0.0)
    alpha = max(float(np.median(typical - slope * at)), 0.0)
    line = alpha + slope * at
    bends = len(at) > 2 and bool(np.any(np.abs(line / typical - 1) > max(_BENDS, 2 * spread)))
    low, high = (max(float(q), 0.0) for q in np.quantile(slopes, [0.25, 0.75]))
    alphas = sorted(max(float(np.median(typical - s * at)), 0.0) for s in (low, high))
    source = f"{len(times)} operations of {len(at)} sizes of the run itself"
    if bends:
        alphas = sorted((*alphas, float(typical[0])))
        alpha = float(min(typical[0], alpha)) if alpha else float(typical[0])
        table = _table(at, np.maximum.accumulate(typical), spread, source)
    else:
        ends = np.array([0.0, float(at[-1])])
        table = _table(ends, alpha + slope * ends, spread, source)
    return Cost(
        op, group, n, alpha, (alphas[0], alphas[-1]), _rate(slope), (_rate(high), _rate(low)), table, bends, len(at),
        len(times), spread,
    )  # fmt: skip


def _rate(slope: float) -> float:
    return 1 / slope if slope > 0 else float("inf")


def _table(sizes: NDArray[np.float64], times: NDArray[np.float64], spread: float, source: str) -> CostTable:
    return CostTable(sizes, times, np.empty(0), np.empty(0), spread, source)


def _by_size(sizes: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """(sizes, lower quartile of the times of each, median relative half-width); sizes that nearly agree are one."""
    order = np.argsort(sizes, kind="stable")
    sizes, times = sizes[order], times[order]
    places = np.arange(len(sizes))
    breaks, first = [], sizes[0]
    for place, size in enumerate(sizes.tolist()):
        if size > first * (1 + _SAME):
            breaks.append(place)
            first = size
    groups = np.split(places, breaks) if len(breaks) < _MOST_SIZES else np.array_split(places, _MOST_SIZES)
    at = np.array([float(np.median(sizes[g])) for g in groups])
    typical = np.array([float(np.quantile(times[g], _QUANTILE)) for g in groups])
    several = [np.quantile(times[g], [0.25, 0.75]) / np.median(times[g]) for g in groups if len(g) > 1]
    spread = float(np.median([(q[1] - q[0]) / 2 for q in several])) if several else 0.0
    return at, typical, spread
