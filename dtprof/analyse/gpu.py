"""The GPUs' own counters: clocks that are held down, memory errors, link errors.

``study.result("gpu")`` is a ``GpuResult``, from the readings of the collector ``nvml`` (table ``samples``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.table import Table

# reasons for which a healthy GPU never slows down (nvml.h, nvmlClocksEventReasons); a software power cap is normal under load
FAULTY = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
POWER_CAP = "sw_power_cap"
ERRORS = {
    "ecc": ("ecc_uncorrected", "ecc_corrected"),
    "nvlink": ("nvlink_recovery", "nvlink_replay", "nvlink_crc_data", "nvlink_crc_flit"),
    "pcie": ("pcie_replay",),
}
LEAST_READINGS = 5
# a reading counts as under load from this utilisation on, %
_LOADED = 50.0


@dataclass(frozen=True)
class GpuReadings:
    """One part. ``held``: reason -> share of the readings in which it held the clocks down; ``clock``: median SM clock under
    load, MHz, ``free_clock`` that of readings without a reason of FAULTY; ``hottest``: C; ``errors``: counter -> how many
    came."""

    part: int
    rank: int | None
    device: str | None
    readings: int
    held: dict[str, float]
    clock: float | None
    free_clock: float | None
    hottest: float | None
    errors: dict[str, int]

    @property
    def faulty(self) -> float:
        """The largest share of a reason of FAULTY."""
        return max((self.held.get(reason, 0.0) for reason in FAULTY), default=0.0)


@dataclass(frozen=True)
class GpuResult:
    """Parts with readings."""

    parts: tuple[GpuReadings, ...]


def analyse(study: Lens) -> GpuResult:
    """Readings of every part that has any."""
    found = (_of_part(study.run, p.ordinal, p.rank, p.device) for p in study.run.parts)
    return GpuResult(tuple(r for r in found if r is not None))


def _of_part(run: Run, ordinal: int, rank: int | None, device: str | None) -> GpuReadings | None:
    samples = run.table("samples", ordinal)
    clocks = _series(samples, "sm_clock")
    held_down = _series(samples, "throttle_reasons")
    counters = {name: came for names in ERRORS.values() for name in names if (came := _came(samples, name)) is not None}
    readings = max(len(clocks[0]), len(held_down[0]))
    if not readings and not counters:
        return None
    reasons = {m.removeprefix("throttle_"): _series(samples, m) for m in samples.values("metric") if m.startswith("throttle_")}
    held = {name: float(np.mean(values > 0)) for name, (_, values) in reasons.items() if name != "reasons" and len(values)}
    slowed = np.unique(np.concatenate([t[v > 0] for name in FAULTY if name in reasons for t, v in [reasons[name]]] or [_NONE]))
    loaded = _under_load(samples, clocks[0])
    heat = _series(samples, "temperature")[1]
    return GpuReadings(
        ordinal, rank, device, readings, held, _median(clocks[1][loaded]),
        _median(clocks[1][loaded & ~np.isin(clocks[0], slowed)]), float(heat.max()) if len(heat) else None, counters,
    )  # fmt: skip


_NONE = np.empty(0, np.int64)


def _series(samples: Table, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = samples.is_("metric", metric) & samples.known("value")
    return samples["ts"][rows], samples["value"][rows]


def _came(samples: Table, metric: str) -> int | None:
    """How much a cumulative counter grew; None where it was not read twice."""
    _, values = _series(samples, metric)
    return None if len(values) < 2 else int(max(values[-1] - values[0], 0))


def _under_load(samples: Table, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Instants with the device at work; all of them where its utilisation was not read."""
    ts, values = _series(samples, "gpu_utilization")
    return np.isin(at, ts[values >= _LOADED]) if len(ts) else np.ones(len(at), bool)


def _median(values: NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) >= LEAST_READINGS else None
