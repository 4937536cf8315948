"""Rules about the GPUs' own state: clocks held down, errors of memory and links."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import per_rank, severity_of, step_ns, steps_of
from dtprof.analyse.gpu import ERRORS, FAULTY, LEAST_READINGS, POWER_CAP, GpuReadings, GpuResult
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import count, fixed, named, percent, time
from dtprof.protocols import Lens

_LEAST_HELD = 0.05
# a power cap is worth a word only where it costs this share of the clock of the peers
_LEAST_SLOWER = 0.10
# corrected errors and link replays come singly on healthy hardware
_MANY = 10


class Throttling:
    """A GPU's clocks are held down: by heat, by its power supply, or by a power cap that its peers do not feel."""

    id = "gpu.throttling"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs NVML's readings, at least five. The price takes computing to go with the clock; null where no clock
        compares."""
        result: GpuResult = study.result("gpu")
        accounting: AccountingResult = study.result("accounting")
        told = [p for p in result.parts if p.readings >= LEAST_READINGS and p.rank is not None]
        held = [(p, lost) for p in told if (lost := _lost(p, told)) is not None]
        if not held:
            return
        compute, whole = per_rank(accounting, "compute_ns"), step_ns(accounting)
        cost = max((compute[p.rank] * lost for p, lost in held if lost > 0 and p.rank in compute), default=None)
        share = None if cost is None else cost / whole
        worst = max(held, key=lambda one: (one[0].faulty, one[1]))[0]
        parts = sorted((p for p, _ in held), key=lambda p: p.rank or 0)
        ranks = tuple(sorted({p.rank for p in parts if p.rank is not None}))
        reasons = sorted({r for p in parts for r in (*FAULTY, POWER_CAP) if p.held.get(r, 0.0) >= _LEAST_HELD})
        slow = f" at {fixed(worst.clock, 0)} MHz" if worst.clock is not None else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(share) if share is not None else "medium",
            title=f"The GPU of {named('rank', ranks)} is held down{slow} ({', '.join(r.replace('_', ' ') for r in reasons)})",
            ranks=ranks,
            steps=steps_of(accounting),
            seconds_per_step=None if cost is None else cost / 1e9,
            evidence=tuple(Evidence(_words(p)) for p in parts[:8]),
            why=f"its clocks are held down in {percent(max(worst.held.get(r, 0.0) for r in reasons))} of the readings"
            + (f", and computing takes {time(cost)} longer for it" if cost is not None else ""),
            next="look at cooling and power of that host (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER); move the job "
            "meanwhile",
            apply="repair or replace; a clock that all ranks can hold (nvidia-smi -lgc) makes the step steady, not faster",
            verify="measure again: no throttle reason, and the same clock on all ranks",
            share=share,
            bound=cost is not None,
        )


def _lost(part: GpuReadings, told: list[GpuReadings]) -> float | None:
    """Share of the computing time that the lower clock costs; 0 where held down but not comparable; None where healthy."""
    peers = [
        p.free_clock for p in told if p is not part and p.device == part.device and p.faulty < _LEAST_HELD and p.free_clock
    ]
    usual = float(np.median(peers)) if peers else part.free_clock
    slower = 1 - part.clock / usual if usual and part.clock else 0.0
    if part.faulty >= _LEAST_HELD:
        return max(slower, 0.0)
    capped = part.held.get(POWER_CAP, 0.0) >= _LEAST_HELD
    return slower if capped and peers and slower >= _LEAST_SLOWER else None


def _words(part: GpuReadings) -> str:
    held = ", ".join(f"{r.replace('_', ' ')} {percent(s)}" for r, s in sorted(part.held.items(), key=lambda i: -i[1]) if s > 0)
    heat = f", {fixed(part.hottest, 0)} C at most" if part.hottest is not None else ""
    clock = f", {fixed(part.clock, 0)} MHz in the middle" if part.clock is not None else ""
    return f"Rank {part.rank}, {count(part.readings)} readings: {held}{clock}{heat}."


class _Errors:
    """Counters of errors that grew during the run."""

    id = kind = what = why = next = ""

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only what came during the run counts; there is no price, for what an error costs is not recorded."""
        result: GpuResult = study.result("gpu")
        grave, many = ERRORS[self.kind][0], ERRORS[self.kind][1:]
        bad = [p for p in result.parts if p.errors.get(grave, 0) > 0 or sum(p.errors.get(n, 0) for n in many) >= _MANY]
        if not bad:
            return
        ranks = tuple(sorted({p.rank for p in bad if p.rank is not None}))
        serious = any(p.errors.get(grave, 0) for p in bad)
        number = sum(sum(p.errors.get(n, 0) for n in ERRORS[self.kind]) for p in bad)
        yield Finding(
            rule=self.id,
            severity="high" if serious and self.kind == "ecc" else "medium" if serious else "low",
            title=f"{count(number)} {self.what} came during the run on {named('rank', ranks)}",
            ranks=ranks,
            steps=(),
            seconds_per_step=None,
            evidence=tuple(
                Evidence(
                    f"Rank {p.rank}: "
                    + ", ".join(f"{n} {count(p.errors[n])}" for n in ERRORS[self.kind] if n in p.errors)
                    + "."
                )
                for p in bad[:8]
            ),
            why=self.why,
            next=self.next,
            apply=self.next,
            verify="the counters of the next run stay where they are",
        )


class Ecc(_Errors):
    """Memory errors of a GPU."""

    id, kind, what = "gpu.ecc", "ecc", "memory errors (ECC)"
    why = "memory of the GPU gives wrong bits; uncorrected ones end the job or spoil its numbers"
    next = "drain that GPU: nvidia-smi -q -d ECC,ROW_REMAPPER shows rows that wait for a reset; replace it if they come again"


class NvLink(_Errors):
    """Errors of a GPU's links."""

    id, kind, what = "gpu.nvlink", "nvlink", "NVLink errors"
    why = "packets between GPUs are sent again, or a link is brought up again: collectives over it stutter"
    next = "nvidia-smi nvlink -e names the link; reseat or replace the module or its cable"
