"""On what a run ran, and in which condition: what makes two runs comparable, and what takes that away.

The fingerprint is hardware, highest clock and software, which a baseline is keyed by. The conditions are what the machine
did meanwhile: a GPU of the same name that was throttled, or shared, is not the same machine.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

import msgspec

from dtprof.analyse.results import AccountingResult, settled
from dtprof.protocols import Lens
from dtprof.run import Part, Run

# a power cap is the normal state of a busy data-centre GPU; these are not
THROTTLING = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_CLOCK_LOSS, _THROTTLED, _FOREIGN, _NO_CORE = 0.05, 0.01, 2.0, 0.05
OTHER_GPU_USE = ("other_gpu_utilization", "other_processes_gpu_utilization")


class Fingerprint(msgspec.Struct, kw_only=True, frozen=True):
    """Hardware, highest clock (MHz, None where not told) and software of a run; ``ranks`` are those that it has."""

    devices: list[str]
    world_size: int | None
    ranks: int | None = None
    hosts: int
    backend: str | None
    max_sm_clock_mhz: float | None = None
    software: dict[str, str] = {}

    @property
    def key(self) -> str:
        """One line that names hardware, clock and software."""
        what = " + ".join(self.devices) or "device not known"
        clock = f" at {self.max_sm_clock_mhz:g} MHz" if self.max_sm_clock_mhz else ""
        some = f"{self.ranks} of " if self.partial else ""
        size = f", {some}{self.world_size} ranks" if self.world_size else ""
        torch = f", torch {self.software['torch']}" if "torch" in self.software else ""
        return f"{what}{clock}{size}, {self.backend or 'no backend'}{torch}"

    @property
    def partial(self) -> bool:
        """Whether ranks are known to be missing."""
        return self.ranks is not None and self.world_size is not None and self.ranks < self.world_size


class Conditions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the machine did during the run; None where nobody looked.

    ``sm_clock_mhz`` is the median; ``throttled`` maps reason to its share of the time; ``other_gpu_percent`` is the
    mean use of the GPU by other processes; ``no_core`` the share of the step in which training threads had no core.
    """

    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttled: dict[str, float] = {}
    other_gpu_percent: float | None = None
    no_core: float | None = None


def fingerprint(run: Run) -> Fingerprint:
    """The fingerprint of a run or a trace."""
    manifest = run.manifest
    versions = manifest.versions or next((v for p in run.parts if isinstance(v := p.extra.get("versions"), dict)), {})
    keep = ("torch", "cuda", "python", "kernel", "dtprof")
    software = {k: str(versions[k]) for k in keep if k in versions}
    driver = next((str(f["driver"]) for p in run.parts if (f := _nvml(p)).get("driver")), "")
    backends = {p.backend for p in run.parts if p.backend}
    return Fingerprint(
        devices=sorted({*manifest.devices, *(p.device for p in run.parts if p.device)}),
        world_size=run.world_size,
        ranks=len(run.ranks),
        hosts=len({p.host for p in run.parts if p.host}),
        backend=" + ".join(sorted(backends)) or None,
        max_sm_clock_mhz=max((c for p in run.parts if (c := _max_clock(p)) is not None), default=None),
        software=software | ({"driver": driver} if driver else {}),
    )


def _nvml(part: Part) -> dict[str, Any]:
    states = part.extra.get("collectors")
    for state in states if isinstance(states, list) else []:
        if isinstance(state, dict) and state.get("name") == "nvml" and isinstance(state.get("facts"), dict):
            facts: dict[str, Any] = state["facts"]
            return facts
    return {}


def _max_clock(part: Part) -> float | None:
    value = _nvml(part).get("max_sm_clock_mhz")
    return float(value) if isinstance(value, int | float) else None


def conditions(study: Lens) -> Conditions:
    """The conditions of a run, from its samples and step counters."""
    run = study.run
    clocks: list[float] = []
    other: list[float] = []
    throttled: dict[str, list[float]] = {}
    for part in run.parts:
        samples = run.table("samples", part.ordinal)
        known = samples.known("value")
        clocks += samples["value"][samples.is_("metric", "sm_clock") & known].tolist()
        other += samples["value"][samples.is_("metric", *OTHER_GPU_USE) & known].tolist()
        for reason in THROTTLING:
            throttled.setdefault(reason, []).extend(
                samples["value"][samples.is_("metric", f"throttle_{reason}") & known].tolist()
            )
    top = [c for p in run.parts if (c := _max_clock(p)) is not None]
    return Conditions(
        sm_clock_mhz=median(clocks) if clocks else None,
        max_sm_clock_mhz=max(top, default=None),
        throttled={reason: share for reason, found in throttled.items() if found and (share := fmean(found)) > 0},
        other_gpu_percent=fmean(other) if other else None,
        no_core=_no_core(study),
    )


def _no_core(study: Lens) -> float | None:
    """Time without a core by the time of the steps, mean over the parts."""
    accounting: AccountingResult = study.result("accounting")
    lengths = {p.part: fmean(s.dur_ns for s in settled(p.steps)) for p in accounting.parts if p.steps}
    shares = []
    for part in study.run.parts:
        steps = study.run.table("steps", part.ordinal)
        timed = steps["host_dur"][steps["complete"] & ~steps.is_("kind", "warm-up")]
        length = float(median(timed.tolist())) if len(timed) else lengths.get(part.ordinal, 0.0)
        table = study.run.table("metrics", part.ordinal)
        delays = table["value"][table.is_("metric", "run_delay") & table.known("value")]
        if len(delays) and length > 0:
            shares.append(float(median(delays.tolist())) / length)
    return fmean(shares) if shares else None


def hardware_differs(a: Fingerprint, b: Fingerprint) -> str:
    """Why runs on ``a`` and ``b`` are not comparable; "" where they are."""
    names = [", ".join(f.devices) or "an unknown one" for f in (a, b)]
    if names[0] != names[1]:
        return f"another device: the baseline is of {names[0]}, the run of {names[1]}"
    for what, x, y in (
        ("another number of ranks", a.world_size, b.world_size),
        ("another number of hosts", a.hosts, b.hosts),
        ("another backend", a.backend, b.backend),
    ):
        if x != y:
            return f"{what}: {x} in the baseline, {y} in the run"
    if a.partial != b.partial or (a.partial and a.ranks != b.ranks):
        there = [f"{f.ranks} of {f.world_size}" if f.partial else "all" for f in (a, b)]
        return f"ranks are missing: {there[0]} are in the baseline, {there[1]} in the run"
    if a.max_sm_clock_mhz and b.max_sm_clock_mhz and a.max_sm_clock_mhz != b.max_sm_clock_mhz:
        return f"another highest clock: {a.max_sm_clock_mhz:g} and {b.max_sm_clock_mhz:g} MHz"
    return ""


def software_differs(a: Fingerprint, b: Fingerprint) -> list[str]:
    """``torch 2.12 to 2.13`` for each version that changed."""
    names = sorted({*a.software, *b.software})
    return [
        f"{n} {a.software.get(n, 'not known')} to {b.software.get(n, 'not known')}"
        for n in names
        if a.software.get(n) != b.software.get(n)
    ]


def disturbances(now: Conditions, before: list[Conditions]) -> list[str]:
    """What kept this run's machine from being the baseline's, in sentences; what nobody recorded disturbs nothing."""
    said = []
    clocks = [c.sm_clock_mhz for c in before if c.sm_clock_mhz]
    if now.sm_clock_mhz and clocks and now.sm_clock_mhz < (1 - _CLOCK_LOSS) * median(clocks):
        top = f" of {now.max_sm_clock_mhz:g}" if now.max_sm_clock_mhz else ""
        said.append(f"SM clock {now.sm_clock_mhz:g}{top} MHz, {median(clocks):g} in the baseline")
    elif (
        now.sm_clock_mhz and not clocks and now.max_sm_clock_mhz and now.sm_clock_mhz < (1 - _CLOCK_LOSS) * now.max_sm_clock_mhz
    ):
        said.append(f"SM clock {now.sm_clock_mhz:g} of {now.max_sm_clock_mhz:g} MHz, not recorded in the baseline")
    for reason, share in sorted(now.throttled.items(), key=lambda item: -item[1]):
        usual = fmean(c.throttled.get(reason, 0.0) for c in before) if before else 0.0
        if share > usual + _THROTTLED:
            said.append(f"{reason.replace('_', ' ')} in {share:.0%} of the time")
    others = [c.other_gpu_percent for c in before if c.other_gpu_percent is not None]
    if now.other_gpu_percent is not None and now.other_gpu_percent > (fmean(others) if others else 0.0) + _FOREIGN:
        said.append(f"other processes use {now.other_gpu_percent:.0f}% of the GPU")
    starved = [c.no_core for c in before if c.no_core is not None]
    if now.no_core is not None and now.no_core > (fmean(starved) if starved else 0.0) + _NO_CORE:
        against = f", {fmean(starved):.0%} in the baseline" if starved else ""
        said.append(f"other load: training threads had no core for {now.no_core:.0%} of the step{against}")
    return said
