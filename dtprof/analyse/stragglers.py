"""Who is slow: own time of every rank in every step, compared like with like.

Own time is the step without its exposed communication: what the rank itself needed, whoever waited for whom. In a
synchronous job all steps are equally long and the slow rank is the one with most own time and least waiting. On a CPU job
the time in which the training thread could have run but had no core is taken out, where the host recorded it: a rank
that other processes keep from running is not slow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, CommResult, PartAccount, PhaseResult, StepAccount, settled
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import PHASES, POINT_TO_POINT
from dtprof.stats import Floats, bounds, location

OWN_KEYS = (
    "compute_ns", "copy_exposed_ns", "idle_host_ns", "idle_dependency_ns", "idle_input_ns", "idle_checkpoint_ns",
    "idle_other_ns",
)  # fmt: skip
_LEAST_STEPS = 2
# of more steps than this every second, third, … is compared: pairs of steps grow with the square
_MOST_STEPS = 1000
_LEAST_NS = 1_000_000
# excess that counts, as a share of the others' own time: fewer steps ask for more
_SHARE_FEW, _SHARE_MANY, _MANY_STEPS = 0.10, 0.05, 30
# level of the exact bounds; below seven steps they do not exist and every step must show the excess
_ALPHA = 0.01
# 99% quantiles of Student's t by the number of steps (degrees of freedom and one)
_STUDENT = {2: 31.82, 3: 6.96, 4: 4.54, 5: 3.75, 6: 3.36}
# a phase that holds this share of the whole excess is where it lies
_MAIN_PHASE = 0.5


@dataclass(frozen=True)
class Excess:
    """How much longer one rank needs than the median of its peers, ns per step: centre, exact bounds, and what repair saves."""

    centre: int
    low: int
    high: int
    cost: int
    slowest_in: int


@dataclass(frozen=True)
class Straggler:
    """One rank that needs longer than its peers; times per step.

    ``phase`` is where most of the excess lies (None: no phase holds most of it); ``excess`` is measured there if
    ``measured_in_phase``, else over the whole step. ``by_key`` and ``by_phase`` share it out against the median peer.
    ``clocks_mhz``: SM clock of its device and of its peers', medians over the run, where NVML was read.
    """

    part: int
    rank: int
    steps: tuple[int, ...]
    phase: str | None
    measured_in_phase: bool
    excess: Excess
    by_key: dict[str, int]
    by_phase: dict[str, int]
    operators: int
    peer_operators: int
    gc_ns: int | None
    no_core_ns: int | None
    clocks_mhz: tuple[float, float] | None = None

    @property
    def main_key(self) -> str:
        """The accounting key that explains most of the excess."""
        return max(self.by_key, key=lambda k: self.by_key[k])


@dataclass(frozen=True)
class StragglerResult:
    """Stragglers, largest cost first; ``abstained`` says why none could be looked for ("" where it could)."""

    found: tuple[Straggler, ...]
    steps: int
    abstained: str


def analyse(study: Lens) -> StragglerResult:
    """Compare the own time of all ranks step by step."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    parts = [p for p in accounting.parts if p.rank is not None and p.steps and not p.unreliable]
    if len({p.rank for p in parts}) < 2:
        return StragglerResult((), 0, "fewer than two ranks with steps")
    if len({p.rank for p in parts}) < len(parts):
        return StragglerResult((), 0, "several captures of one rank: ranks cannot be paired")
    compared = {p.part for p in parts}
    if len({(p.attempt, p.window) for p in study.run.parts if p.ordinal in compared}) > 1:
        return StragglerResult((), 0, "the ranks were recorded in different runs or windows")
    alike = _alike(study.run, parts, any(o.op in POINT_TO_POINT for o in comm.operations))
    if not alike:
        return StragglerResult((), 0, "point-to-point traffic: ranks of different pipeline stages do different work")
    mine = {p.part: {s.step: s for s in settled(p.steps) if s.complete} for p in parts}
    common = sorted(set.intersection(*(set(s) for s in mine.values())))
    if len(common) < _LEAST_STEPS:
        return StragglerResult((), len(common), f"{len(common)} complete steps on all ranks; {_LEAST_STEPS} are needed")
    common = common[:: -(-len(common) // _MOST_STEPS)]
    uneven = {rank for split in study.result("parallel").splits if split.ascending for rank in split.compute_ns}
    found = [s for group in alike for s in _compared(study, accounting, group, mine, common) if s.rank not in uneven]
    if not comm.operations:
        # ranks that meet where nothing is recorded, as over RPC, do so around the update: waiting there is not their own time
        found = [s for s in found if s.phase != "optimizer"]
    return StragglerResult(tuple(sorted(found, key=lambda s: -s.excess.cost)), len(common), "")


def _alike(run: Run, parts: list[PartAccount], messages: bool) -> list[list[PartAccount]]:
    """Parts that do the same work: all of them, or those of one pipeline stage; [] where messages are exchanged along an axis
    that is not known, or no stage has two ranks.
    """
    mesh = run.manifest.mesh
    if mesh.get("pp", 1) <= 1:
        return [parts] if not messages or mesh.get("cp", 1) > 1 else []
    stages: dict[int, list[PartAccount]] = {}
    for part in parts:
        stage = run.manifest.coordinates.get(str(part.rank), {}).get("pp")
        if stage is not None:
            stages.setdefault(stage, []).append(part)
    return [found for found in stages.values() if len(found) > 1]


def _compared(
    study: Lens,
    accounting: AccountingResult,
    parts: list[PartAccount],
    mine: dict[int, dict[int, StepAccount]],
    common: list[int],
) -> list[Straggler]:
    """The stragglers of parts that do the same work."""
    own = np.array([[_own(mine[p.part][s]) for s in common] for p in parts], np.float64)
    delays = None if accounting.on_device else _delays(study.run, parts, common)
    by_phase = _phase_matrices(study, parts, common)
    return [s for i in range(len(parts)) if (s := _straggler(study, parts, mine, common, own, delays, by_phase, i)) is not None]


def _own(step: StepAccount) -> int:
    return sum(step.accounting[k] for k in OWN_KEYS)


def least_share(steps: int) -> float:
    """Excess that counts with this many steps, as a share of the others' own time."""
    return _SHARE_MANY if steps >= _MANY_STEPS else _SHARE_FEW


def excess_of(times: Floats, i: int, least: float) -> Excess | None:
    """Whether row ``i`` of ``times`` (parts x steps, ns) is longer than its peers by ``least`` or more, beyond the noise.

    From seven steps on the exact signed-rank bound at level 1% must reach half of the centre; with fewer, every single
    step must, and Student's t must exceed its 99% quantile.
    """
    others = np.delete(times, i, axis=0)
    excess, cost = times[i] - np.median(others, axis=0), times[i] - others.max(axis=0)
    centre = location(excess)
    if centre < least or location(cost) <= 0:
        return None
    limits = bounds(excess, _ALPHA)
    if limits is None:
        error = float(excess.std(ddof=1) / np.sqrt(len(excess)))
        limits = float(excess.min()), float(excess.max())
        if centre < _STUDENT[len(excess)] * error:
            return None
    if limits[0] < centre / 2:
        return None
    return Excess(round(centre), round(limits[0]), round(limits[1]), round(location(cost)), int(np.sum(cost > 0)))


def narrower(a: Excess | None, b: Excess | None) -> Excess | None:
    """The better known of two measurements of one excess."""
    found = [e for e in (a, b) if e is not None]
    return min(found, key=lambda e: e.high - e.low) if found else None


def _straggler(
    study: Lens,
    parts: list[PartAccount],
    mine: dict[int, dict[int, StepAccount]],
    common: list[int],
    own: Floats,
    delays: Floats | None,
    by_phase: dict[str, Floats],
    i: int,
) -> Straggler | None:
    least = max(_LEAST_NS, least_share(len(common)) * float(np.median(np.delete(own, i, axis=0))))
    no_core = None if delays is None else round(location(delays[i] - np.median(np.delete(delays, i, axis=0), axis=0)))
    whole = excess_of(own if delays is None else np.maximum(own - delays, 0), i, least)
    by = {n: round(location(t[i] - np.median(np.delete(t, i, axis=0), axis=0))) for n, t in by_phase.items()}
    raw = location(own[i] - np.median(np.delete(own, i, axis=0), axis=0))
    phase = max(by, key=lambda n: by[n]) if by else None
    if phase is not None and (by[phase] < least or by[phase] < _MAIN_PHASE * raw):
        phase = None
    inside = excess_of(by_phase[phase], i, least + max(no_core or 0, 0)) if phase is not None else None
    excess = narrower(whole, inside)
    if excess is None:
        return None
    part = parts[i]
    peers = [p for p in parts if p.part != part.part]
    operators = {p.part: _operators(study.run, p.part, common) for p in parts}
    return Straggler(
        part=part.part,
        rank=part.rank if part.rank is not None else -1,
        steps=tuple(common),
        phase=phase,
        measured_in_phase=excess is inside,
        excess=excess,
        by_key={k: _gap(mine, part, peers, common, k) for k in OWN_KEYS},
        by_phase=by,
        operators=operators[part.part],
        peer_operators=int(np.median([operators[p.part] for p in peers])),
        gc_ns=_gc(study.run, mine[part.part], part.part, common),
        no_core_ns=no_core,
        clocks_mhz=_clocks(study.run, part, peers),
    )


def _delays(run: Run, parts: list[PartAccount], common: list[int]) -> Floats | None:
    """Time without a core (parts x steps, ns); None where any part or step lacks it."""
    rows = []
    for part in parts:
        table = run.table("metrics", part.part)
        mine = table.is_("metric", "run_delay") & table.known("value")
        of = dict(zip(table["step"][mine].tolist(), table["value"][mine].tolist(), strict=True))
        if not all(s in of for s in common):
            return None
        rows.append([of[s] for s in common])
    return np.array(rows, np.float64)


def _clocks(run: Run, part: PartAccount, peers: list[PartAccount]) -> tuple[float, float] | None:
    """Median SM clock of a part and of its peers, MHz; None where one is not known."""
    found = []
    for each in (part, *peers):
        samples = run.table("samples", each.part)
        values = samples["value"][samples.is_("metric", "sm_clock")]
        if not len(values):
            return None
        found.append(float(np.median(values)))
    return found[0], float(np.median(found[1:]))


def _gap(
    mine: dict[int, dict[int, StepAccount]], part: PartAccount, peers: list[PartAccount], common: list[int], key: str
) -> int:
    gaps = [mine[part.part][s].accounting[key] - np.median([mine[p.part][s].accounting[key] for p in peers]) for s in common]
    return round(location(np.array(gaps, np.float64)))


def _phase_matrices(study: Lens, parts: list[PartAccount], common: list[int]) -> dict[str, Floats]:
    """Phase -> times (parts x steps): on a device its compute kernels, else the host's time without communication."""
    spent: Counter[tuple[int, str, int]] = Counter()
    for p in parts:
        spent.update(_kernels_by_phase(study.run, p.part) if p.steps[0].on_device else _host_by_phase(study, p.part))
    names = [n for n in PHASES if all(any(spent[(p.part, n, s)] for s in common) for p in parts)]
    return {n: np.array([[spent[(p.part, n, s)] for s in common] for p in parts], np.float64) for n in names}


def _host_by_phase(study: Lens, part: int) -> Counter[tuple[int, str, int]]:
    phases: PhaseResult = study.result("phases")
    spent: Counter[tuple[int, str, int]] = Counter()
    for time in phases.times:
        if time.part == part:
            spent[(part, time.phase, time.step)] += time.own_ns
    return spent


def _kernels_by_phase(run: Run, part: int) -> Counter[tuple[int, str, int]]:
    view = PartView(run, part)
    rows = view.device_rows[view.events["kind"][view.device_rows] == view.events.code("kind", "kernel")]
    spent: Counter[tuple[int, str, int]] = Counter()
    columns = (view.events[c][rows].tolist() for c in ("phase", "step", "dur"))
    for phase, step, dur in zip(*columns, strict=True):
        if phase >= 0:
            spent[(part, PHASES[phase], step)] += dur
    return spent


def _operators(run: Run, part: int, common: list[int]) -> int:
    """Device operations, or operators on a CPU job, per step."""
    view = PartView(run, part)
    rows = view.device_rows if view.on_device else np.flatnonzero(view.events.is_("kind", "cpu_op"))
    return int(np.isin(view.events["step"][rows], common).sum() / len(common))


def _gc(run: Run, steps: dict[int, StepAccount], part: int, common: list[int]) -> int | None:
    """Garbage-collection pauses per step in ns; None where nobody recorded them."""
    samples = run.table("samples", part)
    pauses = samples.is_("metric", "gc_pause")
    if not len(samples):
        return None
    inside = sum(
        float(samples["value"][pauses & (samples["ts"] >= steps[s].ts) & (samples["ts"] < steps[s].ts + steps[s].dur_ns)].sum())
        for s in common
    )
    return round(inside / len(common))
