"""Time of one collective of a group by its size, alone and beside another one in flight.

A line t = alpha + bytes / bandwidth (the Hockney model: R. Hockney, "The communication challenge for MPP", 1994) is not
enough where latency is high: one all-reduce of gloo cannot fill a long pipe. So the measured sizes stay a table, with
straight lines between them and the slope of the last two beyond; gloo's steps (segments.py) are put between the sizes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dtprof.errors import InputError
from dtprof.model.cost.segments import MAX_SEGMENT, in_rounds, queued, segment, steps

# what is shown of a set of repetitions: disturbances only ever lengthen them
_QUANTILE = 0.25
# how many times longer each of two large all-reduces of gloo took, at RTTs of 8 ms and of none; holds where it was not measured
_SHARING = (1.4, 2.0)
# sharing factors that explain the operations of a run as well as the best one, but for so much of their time, may hold as well
_AS_GOOD = 0.01
# the most that handing over one collective was seen to cost, where it was not measured
_MOST_PER_OP_NS = 6e5
# sharing cannot make two operations faster than one, nor slower than one after the other
_LEAST_SHARE, _MOST_SHARE = 1.0, 2.0


@dataclass(frozen=True)
class CostTable:
    """One operation of one group.

    ``sizes`` (bytes, ascending) and ``times`` (ns) of the operation alone; ``shared_sizes`` and ``shared``: how many times
    longer each of two in flight takes; ``spread``: relative half-width of the repetitions; ``source`` in words; ``per_op``: ns
    of the calling thread to hand one over; None where not measured; ``ring``: the ranks around which gloo sends it in segments;
    None for other operations; ``others``: tables that explain what was measured as well.
    """

    sizes: NDArray[np.float64]
    times: NDArray[np.float64]
    shared_sizes: NDArray[np.float64]
    shared: NDArray[np.float64]
    spread: float
    source: str
    per_op: float | None = None
    ring: int | None = None
    others: tuple[CostTable, ...] = ()

    def variants(self) -> list[CostTable]:
        """The table at the ends of what is not known of it: its spread, and, where not measured, sharing and handing over."""
        spread = min(self.spread, 0.5)
        out = [self.stretched(1 + spread), self.stretched(1 - spread), *self.others]
        if len(self.shared) == 0:
            size = self.sizes[-1:]
            out += [replace(self, shared_sizes=size, shared=np.array([factor])) for factor in _SHARING]
        if self.per_op is None:
            out.append(replace(self, per_op=_MOST_PER_OP_NS))
        return out

    def alone(self, size: float) -> float:
        """ns of an operation of ``size`` bytes with nothing beside it."""
        return _at(self.sizes, self.times, size)

    def slowdown(self, size: float) -> float:
        """How many times longer it takes beside another one."""
        if len(self.shared_sizes) == 0:
            return sum(_SHARING) / 2
        return float(np.clip(np.interp(size, self.shared_sizes, self.shared), _LEAST_SHARE, _MOST_SHARE))

    def together(self, small: float, large: float) -> tuple[float, float]:
        """How many times longer two operations of so many bytes, in order of size, take beside each other."""
        both, alone, per_byte, n = self.slowdown(small), self.alone(small), self._per_byte, self.ring
        if n is None or small <= 0 or alone <= 0:
            return both, both
        cut, other = segment(small, n), segment(large, n)
        waits = queued(small, n) * other * per_byte * n / (2 * (n - 1))
        took = max(both * alone, per_byte * small + waits)
        # the large one yields what the small one sends, and, where they are alike, what two of a size cost each other
        yielded = max(1 / (1 - min(per_byte * small / took, 0.5)), 1 + (both - 1) * cut / other)
        return took / alone, min(yielded, max(self.slowdown(large), both))

    @cached_property
    def _per_byte(self) -> float:
        """ns for which an operation holds the network per byte: half of two at a time, at the best of the larger sizes.

        0 where none of a whole segment was seen: what small ones take is latency.
        """
        large = [s for s in self.sizes.tolist() if s >= MAX_SEGMENT]
        return float(min((self.slowdown(s) * self.alone(s) / 2 / s for s in large), default=0.0))

    def scaled(self, bandwidth: float = 1.0, latency: float = 1.0) -> CostTable:
        """The table on a network of so many times the bandwidth and latency; the smallest size stands for latency."""
        floor = float(self.times[0])
        return replace(self, times=floor * latency + (self.times - floor) / bandwidth)

    def stretched(self, factor: float) -> CostTable:
        """All times multiplied."""
        return replace(self, times=self.times * factor)


def _at(sizes: NDArray[np.float64], times: NDArray[np.float64], size: float) -> float:
    if size <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(size, sizes, times))
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return float(times[-1] + max(slope, 0.0) * (size - sizes[-1]))


def from_calibration(path: Path, op: str, n: int) -> CostTable:
    """The table of an operation over ``n`` ranks from the ``calibration.jsonl`` of a run of the job ``collectives``.

    ``path`` is that file or the run folder. InputError where it has no such operation.
    """
    backends = set()
    file = path / "calibration.jsonl" if path.is_dir() else path
    alone: dict[int, list[float]] = defaultdict(list)
    beside: dict[int, list[float]] = defaultdict(list)
    for line in _lines(file):
        if line.kind != "collective" or line.op != op or line.n != n or line.traced:
            continue
        if line.bytes is None or not line.times_ns:
            continue
        backends.add(line.backend)
        if line.in_flight == 1:
            alone[line.bytes] += line.times_ns
        elif line.in_flight == 2 and line.groups == 1:
            beside[line.bytes] += line.times_ns
    if not alone:
        raise InputError(f"{file}: no {op} over {n} ranks", f"measure one: dtprof job collectives --ranks {n} --ops {op}")
    sizes = sorted(alone)
    # neither company nor more bytes make an operation faster: where they seem to, it was the connection that had not opened up
    seen = [min(float(np.quantile(of[s], _QUANTILE)) for of in (alone, beside) if s in of) for s in sizes]
    times = np.minimum.accumulate(seen[::-1])[::-1]
    spread = float(
        np.median([(np.quantile(alone[s], 0.75) - np.quantile(alone[s], 0.25)) / np.median(alone[s]) / 2 for s in sizes])
    )
    both = [s for s in sizes if s in beside]
    shared = [float(np.quantile(beside[s], _QUANTILE)) / float(times[sizes.index(s)]) for s in both]
    per_op = float(np.quantile(beside[both[0]], _QUANTILE)) - float(times[sizes.index(both[0])]) if both else None
    found = CostTable(
        np.array(sizes, float), times, np.array(both, float), np.array(shared), spread,
        f"calibration of {len(sizes)} sizes in {file}", None if per_op is None else max(per_op, 0.0),
    )  # fmt: skip
    return _in_steps(found, n) if op == "all_reduce" and backends == {"gloo"} and n > 1 else found


def _in_steps(table: CostTable, n: int) -> CostTable:
    """The table with gloo's steps between its sizes: what is not latency grows evenly, alone and for two in flight."""
    at = np.union1d(table.sizes, steps(float(table.sizes[0]), float(table.sizes[-1]), n))
    latency = float(table.times[0])
    times = _stepped(at, table.sizes, table.times, latency, n)
    if len(table.shared_sizes) == 0:
        return replace(table, sizes=at, times=times, ring=n)
    both = np.array([table.slowdown(s) * table.alone(s) for s in table.sizes.tolist()])
    shared = _stepped(at, table.sizes, both, latency, n) / np.maximum(times, 1.0)
    return replace(table, sizes=at, times=times, shared_sizes=at, shared=shared, ring=n)


def _stepped(
    at: NDArray[np.float64], sizes: NDArray[np.float64], times: NDArray[np.float64], latency: float, n: int
) -> NDArray[np.float64]:
    """Times at the sizes ``at``, where those of ``sizes`` are known, ns."""
    rest = np.maximum(times - latency * np.array([in_rounds(s, n) for s in sizes.tolist()]), 0.0)
    found = latency * np.array([in_rounds(s, n) for s in at.tolist()]) + np.interp(at, sizes, rest)
    return np.where(np.isin(at, sizes), np.interp(at, sizes, times), found)


class _Line(msgspec.Struct):
    """What is read of one measurement; links and barriers leave some of it out."""

    kind: str
    times_ns: list[float] = []
    op: str | None = None
    n: int | None = None
    bytes: int | None = None
    in_flight: int | None = None
    groups: int | None = None
    traced: bool | None = None
    backend: str | None = None


def _lines(file: Path) -> list[_Line]:
    """The measurements of a file; InputError names the first line that is none."""
    remedy = "give the run folder of dtprof job collectives"
    try:
        texts = file.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}", remedy) from None
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(msgspec.json.decode(text, type=_Line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file}, line {number}: no measurement ({error})", remedy) from None
    return found


def from_spans(
    sizes: NDArray[np.float64], alone: NDArray[np.float64], beside: NDArray[np.float64], ring: int | None = None
) -> CostTable | None:
    """A line and a sharing factor from operations of a run: bytes, ns with nothing beside, ns beside another one; ``ring`` as
    the table has it.

    Solves alone + beside / slowdown = alpha + bytes / bandwidth for the slowdown, by steps, and for the line; of slowdowns that
    do about as well it takes the middle one, and keeps the first and the last. None where fewer than two sizes were seen: a
    line needs two.
    """
    if len(np.unique(sizes)) < 2:
        return None
    steps = np.linspace(*_SHARING, 13) if beside.sum() > 0 else np.array([sum(_SHARING) / 2])
    lines = [_line(sizes, alone + beside / factor) for factor in steps.tolist()]
    least = min(error for error, _ in lines)
    good = [k for k, (error, _) in enumerate(lines) if error <= least + _AS_GOOD]
    ends = np.array([0.0, float(sizes.max())])
    source = f"{len(sizes)} operations of the run itself"

    def table(k: int) -> CostTable:
        shared = steps[k : k + 1] if beside.sum() > 0 else np.empty(0)
        error, (alpha, beta) = lines[k]
        return CostTable(ends, alpha + beta * ends, ends[1 : 1 + len(shared)], shared, error, source, ring=ring)

    middle = good[len(good) // 2]
    return replace(table(middle), others=tuple(table(k) for k in {good[0], good[-1]} - {middle}))


def _line(sizes: NDArray[np.float64], work: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    """(median relative error, (ns, ns per byte)) of the line through operations, by least squares on relative errors."""
    weight = 1 / np.maximum(work, 1.0)
    design = np.stack([np.ones_like(sizes), sizes], axis=1) * weight[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design, work * weight, rcond=None)
    alpha, beta = max(float(alpha), 0.0), max(float(beta), 1e-9)
    return float(np.median(np.abs((alpha + beta * sizes) / work - 1))), (alpha, beta)
