"""What a measured run shows of its DDP steps: when gradients become ready, when buckets travel, when the step is over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.model.typical import ENOUGH, plain_steps, typical_step
from dtprof.run import Part, Run
from dtprof.schema import MISSING

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RankStep:
    """One step of one rank; ns from the common origin of the step.

    ``ready``: gradient of each parameter accumulated; ``plain``: the same as it would be untraced; ``launched``:
    when each bucket's communication began on this rank;
    ``ended``: when it was over; ``backward``: begin and end of the backward pass, where marked; ``begin`` and ``end`` of the
    step.
    """

    rank: int
    begin: float
    ready: Floats
    plain: Floats
    launched: Floats
    ended: Floats
    backward: tuple[float, float] | None
    end: float


@dataclass(frozen=True)
class Seen:
    """The DDP steps of a run.

    ``names``, ``sizes`` (bytes) and ``dtypes`` of the parameters; ``buckets``: members of each bucket by number, as measured;
    ``steps``: step -> its ranks; ``handover_ns``: ns of a call that hands over one all-reduce, median, None where none is
    recorded; ``typical_ns``: median duration of the untraced training steps, else of the traced ones;
    ``untraced``: how many of those there were; ``config``: the arguments of DDP.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]
    steps: dict[int, tuple[RankStep, ...]]
    typical_ns: float
    untraced: int
    config: dict[str, object]
    backend: str
    n: int
    handover_ns: float | None = None
    reasons: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> Floats:
        """Bytes of each bucket."""
        return np.array([sum(self.sizes[i] for i in bucket) for bucket in self.buckets], float)


def observe(run: Run) -> Seen | str:
    """The DDP steps of a run, or the reason why there are none to be had."""
    configs = {p.ordinal: _configs(p) for p in run.parts}
    models = next((c for c in configs.values() if c), [])
    if not models:
        return "no DistributedDataParallel was recorded: run the job with dtprof's ddp collector"
    if len(models) > 1:
        return f"the job has {len(models)} DistributedDataParallel models; whose gradients are whose is not recorded"
    config = models[0]
    if config.get("comm_hook"):
        return f"a communication hook ({config['comm_hook']}) does the job's reduction: not modelled; measure without it"
    parts = [p for p in run.parts if p.rank is not None and len(run.table("grads", p.ordinal))]
    ranks = config.get("ranks")
    n = len(ranks) if isinstance(ranks, list) else len(parts)
    if len(parts) < n:
        return f"{len(parts)} of {n} ranks have gradient times: bring the parts of all"
    names, sizes = _parameters(run, parts[0])
    buckets = _buckets(run, parts[0], names)
    if not buckets:
        return "the buckets' members are not known: DDP had not rebuilt them when the capture began; capture from step 3 on"
    steps = _steps(run, parts, names, len(buckets))
    if not steps:
        return "no captured step has the times of all buckets on all ranks: capture the same whole steps on all"
    traced = float(np.median([max(r.end - r.begin for r in ranks) for ranks in steps.values()]))
    typical, untraced = typical_step(run, parts, traced)
    handover = _handover(run, parts)
    return Seen(names, sizes, buckets, steps, typical, untraced, dict(config), str(config.get("backend")), n, handover)


def _configs(part: Part) -> list[dict[str, object]]:
    for collector in part.extra.get("collectors", ()):
        if collector.get("name") == "ddp":
            return list(collector.get("facts", {}).get("models", ()))
    return []


def _parameters(run: Run, part: Part) -> tuple[tuple[str, ...], tuple[int, ...]]:
    grads = run.table("grads", part.ordinal)
    sizes = dict(zip(grads.text("parameter"), grads["bytes"].tolist(), strict=True))
    return tuple(str(n) for n in sizes), tuple(int(s) for s in sizes.values())


def _buckets(run: Run, part: Part, names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Members of the buckets of the last step that has them all."""
    table = run.table("buckets", part.ordinal)
    place = {name: i for i, name in enumerate(names)}
    for step in sorted(set(table["step"].tolist()), reverse=True):
        rows = np.flatnonzero(table["step"] == step)
        rows = rows[np.argsort(table["bucket"][rows], kind="stable")]
        members = [table["members"][r] for r in rows.tolist()]
        if all(m is not None and all(x in place for x in m) for m in members):
            return tuple(tuple(place[x] for x in m) for m in members)
    return ()


def _steps(run: Run, parts: list[Part], names: tuple[str, ...], count: int) -> dict[int, tuple[RankStep, ...]]:
    found: dict[int, dict[int, RankStep]] = {}
    origins = _origins(run, parts)
    for part in parts:
        for step, seen in _of_part(run, part, names, count, origins).items():
            found.setdefault(step, {})[part.ordinal] = seen
    return {s: tuple(ranks[p.ordinal] for p in parts) for s, ranks in sorted(found.items()) if len(ranks) == len(parts)}


def _origins(run: Run, parts: list[Part]) -> dict[int, int]:
    """First begin of every step over the ranks, run clock."""
    out: dict[int, int] = {}
    for part in parts:
        steps = run.table("steps", part.ordinal)
        for step, ts in zip(steps["step"].tolist(), steps["host_ts"].tolist(), strict=True):
            begin = ts + part.clock_offset_ns
            out[step] = min(out.get(step, begin), begin)
    return out


def _of_part(run: Run, part: Part, names: tuple[str, ...], count: int, origins: dict[int, int]) -> dict[int, RankStep]:
    steps, grads, buckets = (run.table(t, part.ordinal) for t in ("steps", "grads", "buckets"))
    texts = grads.text("parameter")
    place = {name: i for i, name in enumerate(names)}
    kinds = steps.text("kind")
    passes = _backward_passes(run, part)
    plain = _without_tracing(run, part, count)
    out = {}
    for row, step in enumerate(steps["step"].tolist()):
        mine, sent = np.flatnonzero(grads["step"] == step), np.flatnonzero(buckets["step"] == step)
        if len(mine) != len(names) or len(sent) != count or kinds[row] not in (None, "train") or not steps["captured"][row]:
            continue
        shift = part.clock_offset_ns - origins[step]
        ready = np.zeros(len(names))
        for i in mine.tolist():
            ready[place[str(texts[i])]] = grads["ready"][i] + shift
        sent = sent[np.argsort(buckets["bucket"][sent], kind="stable")]
        if np.any(buckets["end"][sent] == MISSING):
            continue
        begin = float(steps["host_ts"][row] + shift)
        out[step] = RankStep(
            int(part.rank or 0), begin, ready, begin + plain(ready - begin),
            _shifted(buckets["start"][sent], shift), _shifted(buckets["end"][sent], shift),
            (passes[step][0] + shift, passes[step][1] + shift) if step in passes else None,
            begin + float(steps["host_dur"][row]),
        )  # fmt: skip
    return out


def _without_tracing(run: Run, part: Part, count: int) -> Callable[[Floats], Floats]:
    """From ns of a traced step to those of an untraced one: as the buckets' ready times, recorded in both, moved in the median.

    As it is where fewer than five untraced steps have them.
    """
    buckets, steps = run.table("buckets", part.ordinal), run.table("steps", part.ordinal)
    begins = dict(zip(steps["step"].tolist(), steps["host_ts"].tolist(), strict=True))
    traced = set(steps["step"][steps["captured"]].tolist())
    plain = set(plain_steps(run, [part]))
    found: dict[bool, dict[int, list[float]]] = {False: defaultdict(list), True: defaultdict(list)}
    whole = {step for step, n in Counter(buckets["step"].tolist()).items() if n == count and step in begins}
    for step, bucket, ready in zip(*(buckets[c].tolist() for c in ("step", "bucket", "ready")), strict=True):
        if step in whole and (step in traced or step in plain) and ready != MISSING:
            found[step in traced][bucket].append(float(ready - begins[step]))
    both = [[found[kind].get(b, []) for b in range(count)] for kind in (True, False)]
    if any(len(each) == 0 for each in both[0]) or any(len(each) < ENOUGH for each in both[1]):
        return lambda times: times
    at, moved = ([0.0, *(float(np.median(each)) for each in kind)] for kind in both)
    return lambda times: np.interp(times, at, moved) + np.maximum(times - at[-1], 0.0)


def _handover(run: Run, parts: list[Part]) -> float | None:
    """Median duration of the calls that hand over an all-reduce in captured steps, ns."""
    found: list[int] = []
    for part in parts:
        events = run.table("events", part.ordinal)
        found += events["dur"][events.is_("name", "c10d::allreduce_") & events.is_("kind", "cpu_op")].tolist()
    return float(np.median(found)) if found else None


def _shifted(times: Ints, shift: int) -> Floats:
    return np.asarray(times + shift, float)


def _backward_passes(run: Run, part: Part) -> dict[int, tuple[int, int]]:
    """Begin and end of the last backward range of every step."""
    events = run.table("events", part.ordinal)
    rows = np.flatnonzero(events.is_("kind", "range") & events.is_("phase", "backward"))
    names = events.text("name")
    out: dict[int, tuple[int, int]] = {}
    for row in rows.tolist():
        if str(names[row]).partition("#")[0] == "backward":
            begin = int(events["ts"][row])
            out[int(events["step"][row])] = begin, begin + int(events["dur"][row])
    return out
