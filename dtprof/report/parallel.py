"""Pipelines, experts and workers in words and as a document: what a run's parallelism did, whatever the rules found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dtprof.analyse.moe import MoeResult
from dtprof.analyse.parameter_server import ServerResult
from dtprof.analyse.pipeline import PipelineResult
from dtprof.numbers import counted, digits, percent, time
from dtprof.protocols import Lens


@dataclass(frozen=True)
class ParallelFacts:
    """The results of the analyses of pipelines, experts and parameter servers."""

    pipeline: PipelineResult
    moe: MoeResult
    server: ServerResult


def gather(study: Lens) -> ParallelFacts:
    """Ask a study for them."""
    return ParallelFacts(study.result("pipeline"), study.result("moe"), study.result("parameter_server"))


def sentences(facts: ParallelFacts | None) -> Iterator[tuple[str, str]]:
    """(label, sentence) of what the run has of these."""
    if facts is None:
        return
    for p in facts.pipeline.pipelines[:1]:
        theory = f" (equal stages: {percent(p.theory)})" if p.theory is not None else ""
        waits = [(w, sum(r.waits(w) for r in p.ranks) / len(p.ranks)) for w in ("warm-up", "steady", "drain")]
        yield (
            "PIPELINE",
            (
                f"{counted(p.stages, 'stage')}, {counted(p.microbatches, 'micro-batch', 'micro-batches')}: bubble "
                f"{percent(p.bubble)}{theory}; per rank and step {', '.join(f'{w} {time(ns)}' for w, ns in waits)}"
            ),
        )
    if layers := facts.moe.layers:
        hot = max(layers, key=lambda x: x.ratio)
        lost, moved = sum(x.lost_ns for x in layers), sum(x.dispatch_ns + x.combine_ns + x.other_ns for x in layers)
        size = f"{counted(len(hot.tokens), 'expert')} in {counted(len(layers), 'layer')}"
        most = f"the hottest, {hot.hot} in {hot.name}, has {digits(hot.ratio)} times the mean"
        yield "EXPERTS", f"{size}: {most}; per step all-to-alls move {time(moved)}, and {time(lost)} is waited for busy ranks"
    if facts.server.workers:
        stale = ", ".join(f"rank {w.rank}: {digits(w.updates)}" for w in facts.server.workers[:8])
        yield "WORKERS", f"gradients are so many updates late when they are applied: {stale}"


def document(facts: ParallelFacts | None) -> dict[str, Any]:
    """Pipelines, layers of experts and workers; empty lists where the run has none."""
    if facts is None:
        return {"pipelines": [], "experts": [], "workers": []}
    return {
        "pipelines": [
            {
                "stages": p.stages, "microbatches": p.microbatches, "bubble": p.bubble, "theory": p.theory,
                "ranks": [
                    {"rank": r.rank, "stages": r.stages, "busy_ns": r.busy_ns, "between_ns": r.between_ns,
                     "warm_up_ns": r.waits("warm-up"), "steady_ns": r.waits("steady"), "drain_ns": r.waits("drain")}
                    for r in p.ranks
                ],
            }
            for p in facts.pipeline.pipelines
        ],
        "experts": [
            {"layer": x.name, "tokens": x.tokens, "tokens_by_rank": x.by_rank, "dropped": x.dropped,
             "dispatch_ns": x.dispatch_ns, "combine_ns": x.combine_ns, "other_ns": x.other_ns, "lost_ns": x.lost_ns,
             "wire_bytes": x.wire_bytes}
            for x in facts.moe.layers
        ],
        "workers": [
            {"rank": w.rank, "computes_ns": w.computes_ns, "waits_ns": w.waits_ns, "staleness_clocks": w.clocks,
             "staleness_updates": w.updates, "most_updates": w.most_updates}
            for w in facts.server.workers
        ],
    }  # fmt: skip
