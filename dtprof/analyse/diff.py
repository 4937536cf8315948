"""What moved between two runs: the accounting category, and in it the rank, phase, layer, kernel class or operation.

The mean step of either run is the sum of its accounting keys, so the differences of the keys sum to the difference of the
steps exactly. In a synchronous job all ranks have equally long steps and the others wait for the slow one: a rank that
works longer is named before the waiting that it causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from dtprof.analyse.results import ACCOUNTING, AccountingResult, PartAccount, settled
from dtprof.analyse.work import Work, operations_of, work_of
from dtprof.numbers import change, named, time
from dtprof.protocols import Lens
from dtprof.schema import MISSING

WORDS = {
    "compute_ns": "compute",
    "copy_exposed_ns": "exposed copies",
    "comm_wait_ns": "exposed communication (waiting for late ranks)",
    "comm_transfer_ns": "exposed communication (moving data)",
    "comm_unsplit_ns": "exposed communication",
    "idle_host_ns": "idle time in which nothing had been launched",
    "idle_dependency_ns": "idle time on dependencies",
    "idle_input_ns": "waiting for input",
    "idle_checkpoint_ns": "waiting for checkpoints",
    "idle_other_ns": "idle time for reasons that cannot be told",
}
_HOST_WORDS = {**WORDS, "idle_host_ns": "time outside any recorded operator"}
_MOVING = ("comm_transfer_ns", "comm_unsplit_ns")
_OWN = tuple(k for k in ACCOUNTING if not k.startswith("comm_"))
# a cause has to explain this part of the difference; a rank of its own stands out by this part of its excess
_LEAST_PART, _ALONE = 0.25, 0.5
_FACETS = ("phase", "layer", "kernel class", "operation")


@dataclass(frozen=True)
class Moved:
    """One thing in both runs, ns per step (a collective: ns moving); ``rank`` None is the mean over the ranks."""

    facet: str
    name: str
    rank: int | None
    a_ns: float
    b_ns: float

    @property
    def delta_ns(self) -> float:
        """How much longer it takes in B."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True)
class Cause:
    """The accounting key that explains most of the difference; ``ranks`` () is all of them; ``where`` says more of it."""

    key: str
    ranks: tuple[int, ...]
    delta_ns: float
    where: str
    text: str


@dataclass(frozen=True)
class Diff:
    """B against A. ``keys`` are mean ns per step over the ranks; their differences sum to that of the steps exactly.

    ``ranks`` has the differences of the ranks in both runs. ``cannot`` says what could not be compared, and why.
    """

    a_step_ns: int | None
    b_step_ns: int | None
    keys: dict[str, tuple[int, int]]
    ranks: dict[int, dict[str, float]]
    moved: tuple[Moved, ...]
    cause: Cause | None
    cannot: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The first line: the step, and what moved."""
        if self.a_step_ns is None or self.b_step_ns is None:
            return f"the steps cannot be compared: {'; '.join(self.cannot)}"
        share = self.b_step_ns / self.a_step_ns - 1 if self.a_step_ns else 0.0
        clock = "step" if self.keys else "step as its hosts timed it"
        step = f"{clock} {time(self.a_step_ns)} to {time(self.b_step_ns)} ({change(share)})"
        if self.cause is not None:
            return f"{step}: {self.cause.text}"
        return f"{step}: {'no category explains the difference' if self.keys else 'which category moved is not known'}"


def diff(a: Lens, b: Lens) -> Diff:
    """Compare run ``b`` with run ``a``."""
    first: AccountingResult = a.result("accounting")
    second: AccountingResult = b.result("accounting")
    cannot = _differences(a, b)
    usable = [[p for p in r.parts if p.steps and not p.unreliable] for r in (first, second)]
    reason = _incomparable(first, second, usable)
    if reason:
        return Diff(_timed(a), _timed(b), {}, {}, (), None, (*cannot, reason))
    means = [_mean_keys(parts) for parts in usable]
    keys = {k: (means[0][k], means[1][k]) for k in ACCOUNTING}
    by_rank = [_by_rank(parts) for parts in usable]
    common = sorted(set(by_rank[0]) & set(by_rank[1]))
    ranks = {r: {k: by_rank[1][r][k] - by_rank[0][r][k] for k in ACCOUNTING} for r in common}
    if not common:
        cannot.append("no rank is in both runs, so ranks are not compared one by one")
    moved = _moved(a, b, usable, common)
    steps = [sum(m.values()) for m in means]
    cause = _cause(keys, ranks, moved, steps[1] - steps[0], a, b, WORDS if second.on_device else _HOST_WORDS)
    return Diff(steps[0], steps[1], keys, ranks, moved, cause, tuple(cannot))


def _differences(a: Lens, b: Lens) -> list[str]:
    """What makes the runs unlike each other, in sentences."""
    said = []
    for run, name in ((a.run, "A"), (b.run, "B")):
        if run.world_size and len(run.ranks) < run.world_size:
            said.append(f"{name} has {len(run.ranks)} of {run.world_size} ranks")
    worlds = [x.run.world_size or len(x.run.ranks) for x in (a, b)]
    if worlds[0] != worlds[1]:
        said.append(f"A has {worlds[0]} ranks and B {worlds[1]}: means over the ranks are of different jobs")
    devices = [sorted(set(x.run.manifest.devices)) for x in (a, b)]
    if devices[0] and devices[1] and devices[0] != devices[1]:
        said.append(f"A ran on {', '.join(devices[0])} and B on {', '.join(devices[1])}")
    return said


def _incomparable(a: AccountingResult, b: AccountingResult, usable: list[list[PartAccount]]) -> str:
    for name, result, parts in (("A", a, usable[0]), ("B", b, usable[1])):
        if not parts:
            doubt = next((p.unreliable for p in result.parts if p.unreliable), "")
            return f"{name} has no captured step to account for{f' ({doubt})' if doubt else ''}: categories are not compared"
    if a.on_device != b.on_device:
        return "one run accounts for device steps and the other for host steps: categories are not compared"
    return ""


def _timed(study: Lens) -> int | None:
    """Median step of the step clock, ns, the slowest rank of each; None where no step was timed."""
    longest: dict[int, int] = {}
    for part in study.run.parts:
        table = study.run.table("steps", part.ordinal)
        used = table.take(~table.is_("kind", "warm-up") & ~table.is_("kind", "restart"))
        for step, length in zip(used["step"].tolist(), used["host_dur"].tolist(), strict=True):
            if length not in (MISSING, 0):
                longest[step] = max(longest.get(step, 0), length)
    return round(median(longest.values())) if longest else None


def _mean_keys(parts: list[PartAccount]) -> dict[str, int]:
    """Mean ns per step of each key over the parts, rounded so that they sum to the rounded mean step."""
    exact = {k: fmean(fmean(s.accounting[k] for s in settled(p.steps)) for p in parts) for k in ACCOUNTING}
    down = {k: int(v) for k, v in exact.items()}
    short = round(sum(exact.values())) - sum(down.values())
    for key in sorted(exact, key=lambda k: down[k] - exact[k])[:short]:
        down[key] += 1
    return down


def _by_rank(parts: list[PartAccount]) -> dict[int, dict[str, float]]:
    """Rank -> key -> mean ns per step; several captures of one rank count alike."""
    found: dict[int, list[PartAccount]] = {}
    for part in parts:
        if part.rank is not None:
            found.setdefault(part.rank, []).append(part)
    return {
        rank: {k: fmean(fmean(s.accounting[k] for s in settled(p.steps)) for p in mine) for k in ACCOUNTING}
        for rank, mine in found.items()
    }


def _moved(a: Lens, b: Lens, usable: list[list[PartAccount]], common: list[int]) -> tuple[Moved, ...]:
    """Every phase, layer, class and operation, by rank and on average, and the collectives; largest change first."""
    works = [
        [(p.rank, work_of(study.run, p)) for p in parts] for study, parts in zip((a, b), usable, strict=True)
    ]  # each part's work
    found: list[Moved] = []
    for facet in sorted({f for side in works for _, work in side for f in work}):
        means = [fmean(work.get(facet, 0.0) for _, work in side) for side in works]
        found.append(Moved(*facet, None, means[0], means[1]))
        for rank in common:
            of_rank = [_of_rank(side, rank, facet) for side in works]
            found.append(Moved(*facet, rank, of_rank[0], of_rank[1]))
    moving = [
        operations_of(study.result("comm"), {s.step for p in parts for s in settled(p.steps)})
        for study, parts in zip((a, b), usable, strict=True)
    ]
    nothing = (0.0, 0.0, 0.0)
    found += [
        Moved("collective", op, None, moving[0].get(op, nothing)[2], moving[1].get(op, nothing)[2])
        for op in sorted({*moving[0], *moving[1]})
    ]
    return tuple(sorted((m for m in found if m.a_ns or m.b_ns), key=lambda m: -abs(m.delta_ns)))


def _of_rank(side: list[tuple[int | None, Work]], rank: int, facet: tuple[str, str]) -> float:
    return fmean(work.get(facet, 0.0) for r, work in side if r == rank)


def _cause(
    keys: dict[str, tuple[int, int]],
    ranks: dict[int, dict[str, float]],
    moved: tuple[Moved, ...],
    delta: int,
    a: Lens,
    b: Lens,
    words: dict[str, str],
) -> Cause | None:
    """The key with the largest change in the direction of the step's, in ns; waiting only as far as no rank explains it."""
    if delta == 0:
        return None
    sign = 1 if delta > 0 else -1
    mean = {k: sign * (v[1] - v[0]) for k, v in keys.items()}
    scores: list[tuple[float, str, tuple[int, ...]]] = [(mean[k], k, ()) for k in ACCOUNTING if k != "comm_wait_ns"]
    explained = 0.0
    if len(ranks) > 1:
        scores += [s for k in _OWN if (s := _alone(ranks, k, sign)) is not None]
        own = [sign * sum(d[k] for k in _OWN) for d in ranks.values()]
        explained = max(max(own) - fmean(own), 0.0)
    scores.append((mean["comm_wait_ns"] - explained, "comm_wait_ns", ()))
    score, key, who = max(scores)
    if score < _LEAST_PART * abs(delta):
        return None
    where = _collectives(a, b) if key.startswith("comm_") else _place(moved, who, sign, score)
    longer = "longer" if sign > 0 else "less"
    on = f" on {named('rank', who)}" if who else ""
    text = f"{words[key]}{on} takes {time(score)} {longer}{f', {where}' if where else ''}"
    return Cause(key, who, sign * score, where, text)


def _alone(ranks: dict[int, dict[str, float]], key: str, sign: int) -> tuple[float, str, tuple[int, ...]] | None:
    """The rank whose change of ``key`` stands out from the others', or None."""
    changes = {r: sign * d[key] for r, d in ranks.items()}
    rank = max(changes, key=lambda r: changes[r])
    others = median(v for r, v in changes.items() if r != rank)
    return (changes[rank], key, (rank,)) if changes[rank] - others > _ALONE * changes[rank] > 0 else None


def _place(moved: tuple[Moved, ...], who: tuple[int, ...], sign: int, score: float) -> str:
    """Phase, layer, class and operation that carry half of the change or more."""
    rank = who[0] if who else None
    said = []
    for facet in _FACETS:
        mine = [m for m in moved if m.facet == facet and m.rank == rank]
        most = max(mine, key=lambda m: sign * m.delta_ns, default=None)
        if most is not None and sign * most.delta_ns >= score / 2:
            said.append(f"{facet} {most.name}")
    return f"mostly in {', '.join(said)}" if said else ""


def _collectives(a: Lens, b: Lens) -> str:
    """The collective that moved most: how many per step, and their bytes."""
    sides = []
    for study in (a, b):
        accounting: AccountingResult = study.result("accounting")
        sides.append(operations_of(study.result("comm"), {s.step for p in accounting.parts for s in settled(p.steps)}))
    nothing = (0.0, 0.0, 0.0)
    pairs = {op: (sides[0].get(op, nothing), sides[1].get(op, nothing)) for op in {*sides[0], *sides[1]}}
    if not pairs:
        return ""
    op = max(sorted(pairs), key=lambda o: abs(pairs[o][1][2] - pairs[o][0][2]))
    before, after = pairs[op]
    if round(before[0], 1) != round(after[0], 1):
        return f"{op} {before[0]:.3g} to {after[0]:.3g} per step"
    if before[1] != after[1]:
        return f"{op} {before[1] / 1e6:.3g} to {after[1] / 1e6:.3g} MB per step"
    return f"{op} {time(before[2])} to {time(after[2])} moving per step"
