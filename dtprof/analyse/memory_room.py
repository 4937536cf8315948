"""Room: what is left of the devices' memory, by stage, and what offloading moves.

``study.result("memory_room")`` is a ``Room``. A device's size is what NVML said, else the smallest that the catalogue has of
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dtprof import intervals
from dtprof.analyse.compute import gpu_of_all
from dtprof.analyse.covers import PartView
from dtprof.analyse.host_steps import facts, metric
from dtprof.analyse.memory import MemoryResult, PartMemory
from dtprof.analyse.results import AccountingResult, settled
from dtprof.protocols import Lens
from dtprof.run import Run

# from this share of a device on memory is tight: the allocator begins to give back and ask again
TIGHT = 0.92
_OFFLOAD = "offload"


@dataclass(frozen=True)
class Offloading:
    """Bytes per step that leave and come back, usual rank; ``exposed_ns``: time of the moves with nothing computed beside them,
    per step, mean of the parts; ``rows``: part -> ranges."""

    moved: float
    exposed_ns: float
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Room:
    """``capacity``: bytes of a device, None on a CPU job; ``peak``: of the fullest part with an allocator's peak;
    ``stages``: pipeline stage -> highest peak of its ranks; ``failures``: requests that were not met."""

    capacity: int | None
    fullest: PartMemory | None
    stages: dict[int, int]
    failures: int
    offloading: Offloading | None

    @property
    def peak(self) -> int | None:
        """Bytes of the fullest rank."""
        return self.fullest.peak.bytes if self.fullest is not None and self.fullest.peak is not None else None

    @property
    def tight(self) -> bool:
        """Did a request fail, or is the fullest rank near the end of its device?"""
        near = self.capacity is not None and self.peak is not None and self.peak >= TIGHT * self.capacity
        return self.failures > 0 or near

    def would_fit(self, more: float, share: float = 0.9) -> bool | None:
        """Would so many bytes more leave the fullest rank below this share of its device? None where that is not known."""
        if self.capacity is None or self.peak is None:
            return None
        return self.peak + more <= share * self.capacity


def analyse(study: Lens) -> Room:
    """Room on the fullest rank; peaks of resident memory say nothing of a device and are left out."""
    memory: MemoryResult = study.result("memory")
    run = study.run
    told = [p for p in memory.parts if p.peak is not None and p.peak.basis == "allocated"]
    fullest = max(told, key=lambda p: p.peak.bytes if p.peak else 0, default=None)
    stages: dict[int, int] = {}
    for part in memory.parts:
        place = run.manifest.coordinates.get(str(part.rank), {})
        if part.peak is not None and "pp" in place:
            stages[int(place["pp"])] = max(stages.get(int(place["pp"]), 0), part.peak.bytes)
    failures = sum(max(len(p.failed), p.failures) for p in memory.parts)
    return Room(_capacity(run), fullest, dict(sorted(stages.items())), failures, _offloading(study))


def _capacity(run: Run) -> int | None:
    told = [total for part in run.parts if isinstance(total := facts(part, "nvml").get("memory_total"), int)]
    if told:
        return min(told)
    gpu = gpu_of_all(run)
    return min(gpu.memory_gb) * 10**9 if gpu is not None else None


def _offloading(study: Lens) -> Offloading | None:
    accounting: AccountingResult = study.result("accounting")
    moved = [ns for p in study.run.parts if (ns := _moved(study.run, p.ordinal))]
    parts = [p for p in accounting.parts if p.steps]
    if not moved or not parts:
        return None
    exposed, rows = 0.0, dict[int, tuple[int, ...]]()
    for account in parts:
        view, steps = PartView(study.run, account.part), settled(account.steps)
        named = np.array([n.partition("|")[0] == _OFFLOAD for n in view.events.values("name")] + [False], bool)
        mine = np.flatnonzero(named[view.events["name"]] & view.events.is_("kind", "range") & (view.lane_device < 0))
        cover = view.cover(mine)
        if view.on_device:
            cover = intervals.subtract(cover, view.device_compute)
        exposed += sum(intervals.total(intervals.clip(cover, s.ts, s.ts + s.dur_ns)) for s in steps) / len(steps) / len(parts)
        rows[account.part] = tuple(mine[np.isin(view.events["step"][mine], [s.step for s in steps])].tolist())
    return Offloading(float(np.median(moved)), exposed, rows)


def _moved(run: Run, part: int) -> float:
    """Bytes that a step brings back, median."""
    told = [v for v in metric(run, part, "offload_in").values() if v > 0]
    return float(np.median(told)) if told else 0.0
