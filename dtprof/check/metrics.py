"""The numbers of a run that a baseline keeps: what each is, which way is worse, and how much is allowed.

time    durations: compared as ratios, with a wide margin, because machines and days differ
bytes   memory: compared as ratios, with the margin of ratios
share   parts of the step in [0, 1]: compared as differences; measured within one run, so that the margin is tight
exact   counts and bytes that the program determines: any difference counts
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import msgspec

from dtprof.analyse.covers import PartView
from dtprof.analyse.results import ACCOUNTING, AccountingResult, CommResult, KernelResult, PartAccount, settled
from dtprof.model.pipeline.observe import observe
from dtprof.protocols import Lens
from dtprof.schema import MEMORY_CATEGORIES, MISSING

Kind = Literal["time", "bytes", "ratio", "share", "exact"]
Worse = Literal["more", "less"]
STEP = "step_time_ns"


class Metric(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One metric with its value in each of several runs."""

    kind: Kind
    values: list[float]
    worse: Worse = "more"


@dataclass(frozen=True)
class Measured:
    """One metric of one run."""

    kind: Kind
    value: float
    worse: Worse = "more"


def measure(study: Lens) -> dict[str, Measured]:
    """All metrics that this run has; what was not recorded is absent."""
    found: dict[str, Measured] = {}
    step = step_time(study)
    if step is not None:
        found[STEP] = Measured("time", step)
    accounting: AccountingResult = study.result("accounting")
    used = [p for p in accounting.parts if p.steps and not p.unreliable]
    if used:
        found |= _shares(accounting)
        found |= _communication(study, used)
        found |= _work(study, used)
        found |= _pipeline(study)
    return found | _utilization(study) | _memory(study)


def step_time(study: Lens) -> float | None:
    """Median step, ns, of the step clock where there is one, else of the accounting: the slowest rank of each step."""
    longest: dict[int, int] = defaultdict(int)
    for part in study.run.parts:
        steps = study.run.table("steps", part.ordinal)
        untraced = ~steps["captured"] if (~steps["captured"] & steps.is_("kind", "train")).any() else steps["captured"]
        used = steps.take(untraced & steps["complete"] & ~steps.is_("kind", "warm-up"))
        for number, length in zip(used["step"].tolist(), used["host_dur"].tolist(), strict=True):
            if length != MISSING:
                longest[number] = max(longest[number], length)
    if not longest:
        accounting: AccountingResult = study.result("accounting")
        for part_account in accounting.parts:
            for step in settled(part_account.steps):
                longest[step.step] = max(longest[step.step], step.dur_ns)
    return float(median(longest.values())) if longest else None


def _shares(accounting: AccountingResult) -> dict[str, Measured]:
    shares = accounting.mean_shares()
    found = {
        f"share.{key.removesuffix('_ns')}": Measured("share", shares[key], "less" if key == "compute_ns" else "more")
        for key in ACCOUNTING
    }
    exposed = sum(shares[k] for k in ("comm_wait_ns", "comm_transfer_ns", "comm_unsplit_ns"))
    found["share.comm_exposed"] = Measured("share", exposed)
    hidden = [s.comm_hidden_ns for p in accounting.parts for s in settled(p.steps)]
    whole = [s.dur_ns for p in accounting.parts for s in settled(p.steps)]
    if sum(hidden) or exposed:
        overlap = sum(hidden) / (sum(hidden) + exposed * sum(whole))
        found["share.comm_overlap"] = Measured("share", overlap, "less")
    return found


def _communication(study: Lens, used: list[PartAccount]) -> dict[str, Measured]:
    """Collectives and their bytes per step: those of the steps that the trace holds whole."""
    comm: CommResult = study.result("comm")
    steps = {s.step for p in used for s in settled(p.steps) if s.complete}
    inside = [o for o in comm.operations if o.step in steps]
    if not steps or not inside:
        return {}
    found = {}
    for op in sorted({o.op for o in inside}):
        mine = [o for o in inside if o.op == op]
        found[f"comm.{op}.count"] = Measured("exact", round(len(mine) / len(steps), 6))
        if all(o.bytes is not None and o.bytes_known == "exact" for o in mine):
            found[f"comm.{op}.bytes"] = Measured("exact", round(sum(o.bytes or 0 for o in mine) / len(steps), 6))
    return found


def _pipeline(study: Lens) -> dict[str, Measured]:
    """The bubble: part of the ranks' time, from the first pass of a step to the last, in which a rank runs no pass; median.

    It is the idle time over the whole (Narayanan et al., 2021). Only of CPU runs: on a GPU the host, which marks the passes,
    runs ahead of them.
    """
    accounting: AccountingResult = study.result("accounting")
    seen = observe(study.run)
    if accounting.on_device or isinstance(seen, str):
        return {}
    bubbles = []
    for step in seen.steps.values():
        every = [p for passes in step.passes.values() for p in passes]
        whole = (max(p.end for p in every) - min(p.start for p in every)) * len(step.passes)
        bubbles.append(1 - sum(p.end - p.start for p in every) / whole)
    return {"share.pipeline_bubble": Measured("share", median(bubbles))}


def _work(study: Lens, used: list[PartAccount]) -> dict[str, Measured]:
    """Device operations per step, and the share of each kernel class in the time of compute kernels."""
    found: dict[str, Measured] = {}
    accounting: AccountingResult = study.result("accounting")
    if not accounting.on_device:
        return found
    launches = []
    for part in used:
        view = PartView(study.run, part.part)
        steps = [s.step for s in settled(part.steps) if s.complete]
        launches += [int((view.device_step == s).sum()) for s in steps]
    if launches:
        found["device.launches"] = Measured("exact", round(fmean(launches), 6))
    kernels: KernelResult = study.result("kernels")
    classes = {k: v for k, v in kernels.classes.items() if k not in ("communication", "copy")}
    whole = sum(classes.values())
    for name, spent in classes.items():
        worse: Worse = "less" if name in ("gemm", "attention") else "more"
        found[f"kernels.{name}"] = Measured("share", spent / whole, worse)
    return found


def _utilization(study: Lens) -> dict[str, Measured]:
    """Model FLOPs utilization (Chowdhery et al., 2022) where the job records it as ``dtprof.metric("mfu", share)``; median."""
    found: list[float] = []
    for part in study.run.parts:
        table = study.run.table("metrics", part.ordinal)
        found += table["value"][table.is_("metric", "mfu") & table.known("value")].tolist()
    # a percentage is no share
    return {"share.mfu": Measured("share", median(found), "less")} if found and 0 <= min(found) <= max(found) <= 1 else {}


def _memory(study: Lens) -> dict[str, Measured]:
    """Largest bytes of each memory category over parts and time."""
    peaks: dict[str, int] = {}
    for part in study.run.parts:
        table = study.run.table("memory", part.ordinal)
        for category in MEMORY_CATEGORIES:
            mine = table["bytes"][table.is_("category", category)]
            if len(mine):
                peaks[category] = max(peaks.get(category, 0), int(mine.max()))
    return {f"memory.{name}.peak_bytes": Measured("bytes", float(v)) for name, v in peaks.items() if v > 0}
