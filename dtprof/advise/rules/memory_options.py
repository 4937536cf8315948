"""Rules about what memory is spent or saved with: activation checkpointing, offloading, ZeRO stages; both ways round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dtprof import intervals
from dtprof.advise.places import ddp_models, ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.covers import PartView
from dtprof.analyse.memory_room import Room
from dtprof.analyse.results import AccountingResult, settled
from dtprof.findings import Evidence, Finding, Severity
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.numbers import counted, memory, percent, time
from dtprof.plan.memory import peak_bytes
from dtprof.plan.own import Own, plan_of
from dtprof.plan.spec import Layout
from dtprof.protocols import Lens
from dtprof.run import Run

_LEAST_SHARE = 0.05
# a remedy is worth naming from this share of the peak on
_LEAST_FREED = 0.10
_FITS = 0.85


def changed(own: Own, layout: Layout) -> int:
    """Bytes that the fullest rank takes more with another layout, by the planner's formulas (docs/planner.md)."""
    now, then = (peak_bytes(own.model, own.cluster, one, own.software).allocated for one in (own.layout, layout))
    return then - now


def _urgent(room: Room) -> Severity:
    return "high" if room.failures else "medium"


def how_full(room: Room) -> str:
    """How full the fullest rank is, in words."""
    failed = f"; {counted(room.failures, 'request')} failed" if room.failures else ""
    of = f" of {memory(room.capacity)}" if room.capacity is not None else ""
    return f"The fullest rank's peak is {memory(room.peak)}{of}{failed}."


class Checkpointing:
    """Activations are computed again although they would fit; or kept although they do not."""

    id = "memory.checkpointing"

    def find(self, study: Lens) -> Iterator[Finding]:
        """What is recomputed is measured; whether it would fit is told by the planner's formulas, from the measured peak on."""
        room: Room = study.result("memory_room")
        accounting: AccountingResult = study.result("accounting")
        again = [np.mean([s.recompute_ns or 0 for s in settled(p.steps)]) for p in accounting.parts if p.steps]
        told = any(s.recompute_ns is not None for p in accounting.parts for s in p.steps)
        cost, whole = float(np.mean(again)) if again else 0.0, step_ns(accounting)
        own = plan_of(study.run)
        if cost >= _LEAST_SHARE * whole and not isinstance(own, str) and not room.failures:
            yield from self._needless(room, accounting, own, cost, whole)
        elif room.tight and told and not cost:
            yield from self._missing(room, accounting, own)

    def _needless(self, room: Room, accounting: AccountingResult, own: Own, cost: float, whole: float) -> Iterator[Finding]:
        more = changed(own, replace(own.layout, recompute="none"))
        if not room.would_fit(more):
            return
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{percent(cost / whole)} of the step computes activations again that would fit into memory",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(f"Forward operators inside the backward pass: {time(cost)} per step."),
                Evidence(f"{how_full(room)} Keeping all activations takes about {memory(more)} more (docs/planner.md)."),
            ),
            why="activation checkpointing trades time for memory that this job does not need",
            next="no activation checkpointing, or only for some of the layers; then look at the peak again",
            apply="the job's own option; torch.utils.checkpoint around fewer blocks, or selective (matrix products are kept)",
            verify="dtprof gate with both commands, and the peak of the report",
            share=cost / whole,
            bound=True,
        )

    def _missing(self, room: Room, accounting: AccountingResult, own: Own | str) -> Iterator[Finding]:
        activations = (room.fullest.categories.get("activation") if room.fullest else None) or 0
        freed = -changed(own, replace(own.layout, recompute="full")) if not isinstance(own, str) else activations
        selective = -changed(own, replace(own.layout, recompute="selective")) if not isinstance(own, str) else 0
        if not room.peak or freed < _LEAST_FREED * room.peak:
            return
        some = f", selective about {memory(selective)}" if selective > 0 else ""
        yield Finding(
            rule=self.id,
            severity=_urgent(room),
            title=f"Memory is full, and activations of up to {memory(freed)} could be computed again instead",
            ranks=(),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(how_full(room)),
                Evidence(f"Full activation checkpointing frees up to {memory(freed)}{some}."),
            ),
            why="nothing is recomputed: what each layer keeps for its backward pass stays until then",
            next="selective activation checkpointing first (attention's scores cost little to compute again), full for some "
            "layers",
            apply="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False); FSDP2: checkpoint before fully_shard",
            verify="the peak of the next report; full costs about a third more computing",
        )


class Offload:
    """Tensors travel to the host and back although they would fit; or nothing does although memory is full."""

    id = "memory.offload"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the metrics ``offload_in`` and ranges named ``offload``; whether it fits is the measured peak plus what
        moves."""
        room: Room = study.result("memory_room")
        accounting: AccountingResult = study.result("accounting")
        away, whole = room.offloading, step_ns(accounting)
        if away is not None:
            if away.exposed_ns >= _LEAST_SHARE * whole and room.would_fit(away.moved):
                yield Finding(
                    rule=self.id,
                    severity=severity_of(away.exposed_ns / whole),
                    title=f"Offloading takes {percent(away.exposed_ns / whole)} of the step for {memory(round(away.moved))} "
                        f"that would fit",
                    ranks=ranks_of(accounting),
                    steps=steps_of(accounting),
                    seconds_per_step=away.exposed_ns / 1e9,
                    evidence=(
                        Evidence(f"{memory(round(away.moved))} come back in every step; {time(away.exposed_ns)} of the "
                            f"moves with "
                                 "nothing computed beside them.", away.rows),
                        Evidence(how_full(room)),
                    ),
                    why="what is offloaded would fit on the device beside all else",
                    next="keep it on the device; if it is needed after all, begin the copies a layer ahead (pinned memory, a "
                    "stream of their own)",
                    apply="the job's own option; FSDP2 without CPUOffloadPolicy",
                    verify="dtprof gate with both commands, and the peak of the report",
                    share=away.exposed_ns / whole,
                    bound=True,
                )  # fmt: skip
            return
        states = (room.fullest.categories.get("optimizer") if room.fullest else None) or 0
        # with several data-parallel ranks sharding frees as much for less time
        if not room.tight or not room.peak or (study.run.world_size or 1) > 1 or states < _LEAST_FREED * room.peak:
            return
        yield Finding(
            rule=self.id,
            severity=_urgent(room),
            title=f"Memory is full, and {memory(states)} of optimizer state could wait on the host",
            ranks=(),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(Evidence(how_full(room)), Evidence(f"Optimizer state: {memory(states)} on the fullest rank.")),
            why="the state is used once per step, and a single rank has nobody to share it with",
            next="offload the optimizer state, or an optimizer with 8-bit states",
            apply="DeepSpeed's ZeRO-Offload, torchao's CPUOffloadOptimizer, or bitsandbytes' AdamW8bit",
            verify="the peak and the step time of the next report",
        )


class ZeroStage:
    """Model states are replicated although memory is full; or sharded although they would fit everywhere."""

    id = "memory.zero_stage"

    def find(self, study: Lens) -> Iterator[Finding]:
        """States are the exact sums of the collector ``memory``; Rajbhandari et al. 2020 say what each stage leaves of them."""
        room: Room = study.result("memory_room")
        ranks = study.run.world_size or 1
        held = room.fullest.categories if room.fullest is not None else {}
        states = {c: held.get(c) or 0 for c in ("parameter", "gradient", "optimizer")}
        if ranks < 2 or room.peak is None or not states["parameter"]:
            return
        if has_fsdp(study.run):
            yield from self._needless(study, room, states, ranks)
        elif room.tight and ddp_models(study.run):
            yield from self._missing(study, room, states, ranks)

    def _missing(self, study: Lens, room: Room, states: dict[str, int], ranks: int) -> Iterator[Finding]:
        rest = 1 - 1 / ranks
        one = states["optimizer"] * rest
        two = one + states["gradient"] * rest
        three = two + states["parameter"] * rest
        if not room.peak or three < _LEAST_FREED * room.peak:
            return
        yield Finding(
            rule=self.id,
            severity=_urgent(room),
            title=f"Memory is full, and every rank holds all of the model's states: ZeRO frees up to {memory(round(three))}",
            ranks=(),
            steps=steps_of(study.result("accounting")),
            seconds_per_step=None,
            evidence=(
                Evidence(how_full(room)),
                Evidence(
                    f"On {ranks} ranks stage 1 frees {memory(round(one))} (optimizer state), stage 2 {memory(round(two))} (and "
                    f"gradients), stage 3 {memory(round(three))} (and parameters)."
                ),
            ),
            why="DistributedDataParallel keeps parameters, gradients and optimizer state on every rank",
            next="stage 1 first: it sends no more bytes than DDP does; stage 3 (FSDP2) sends half as many again",
            apply="ZeroRedundancyOptimizer around the optimizer (stage 1), or fully_shard on every block (stage 3; with "
            "reshard_after_forward=False stage 2)",
            verify="the peak of the next report, and dtprof gate for the time",
        )

    def _needless(self, study: Lens, room: Room, states: dict[str, int], ranks: int) -> Iterator[Finding]:
        accounting: AccountingResult = study.result("accounting")
        exposed, whole = _exposed_gathers(study.run, accounting), step_ns(accounting)
        more = sum(states.values()) * (ranks - 1)
        if exposed < _LEAST_SHARE * whole or room.capacity is None or not room.would_fit(more, _FITS):
            return
        yield Finding(
            rule=self.id,
            severity=severity_of(exposed / whole),
            title=f"Sharding costs {percent(exposed / whole)} of the step in gathers, and the whole model would fit on "
            f"every rank",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=exposed / 1e9,
            evidence=(
                Evidence(
                    f"All-gathers with nothing computed beside them: {time(exposed)} per step, waiting for late ranks included."
                ),
                Evidence(f"{how_full(room)} All states on every rank take {memory(more)} more."),
            ),
            why="parameters are gathered before every use, for memory that this job does not need",
            next="reshard_after_forward=False gathers once per step (overlap.reshard predicts it); DDP, with stage 1 if "
            "need be, not at all",
            apply="fully_shard(…, reshard_after_forward=False), or DistributedDataParallel",
            verify="dtprof gate with both commands, and the peak of the report",
            share=exposed / whole,
            bound=True,
        )


def _exposed_gathers(run: Run, accounting: AccountingResult) -> float:
    """All-gathers beside which nothing is computed, ns per settled step, mean of the parts."""
    parts = [p for p in accounting.parts if p.steps]
    spent = 0.0
    for account in parts:
        view, comm = PartView(run, account.part), run.table("comm", account.part)
        gathers = comm["event"][comm.is_("op", "all_gather")].astype(np.int64)
        busy = view.device_compute if view.on_device else view.host_compute
        alone = intervals.subtract(view.cover(gathers), busy)
        steps = settled(account.steps)
        spent += sum(intervals.total(intervals.clip(alone, s.ts, s.ts + s.dur_ns)) for s in steps) / len(steps) / len(parts)
    return spent
