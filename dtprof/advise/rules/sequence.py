"""The rule about sequence parallelism, both ways round: it does not pay, or it would."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.advise.rules.comm_small import Small, small_of
from dtprof.advise.rules.memory_options import changed, how_full
from dtprof.analyse.memory_room import Room
from dtprof.analyse.parallel import GroupTraffic, ParallelResult
from dtprof.analyse.results import AccountingResult
from dtprof.analyse.work import work_of
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, memory, percent, size, time
from dtprof.plan.own import plan_of
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05
_HALVES = frozenset({"all_gather", "reduce_scatter"})
_REPEATED = ("layer_norm", "layernorm", "rms_norm", "rmsnorm", "dropout")


def _whole(group: GroupTraffic) -> bool:
    """Does this group all-reduce, and neither gather nor scatter?"""
    ops = {o.op for o in group.operations}
    return "all_reduce" in ops and not ops & _HALVES


def _repeated(study: Lens) -> float:
    """Time of normalization and dropout per step, mean of the parts, ns."""
    accounting: AccountingResult = study.result("accounting")
    spent = [
        sum(ns for (facet, name), ns in work_of(study.run, part).items() if facet == "operation" and _is_repeated(name))
        for part in accounting.parts
        if part.steps
    ]
    return float(np.mean(spent)) if spent else 0.0


def _is_repeated(name: str) -> bool:
    return any(word in name.lower() for word in _REPEATED)


def _unused(study: Lens, groups: list[GroupTraffic]) -> Iterator[Finding]:
    accounting: AccountingResult = study.result("accounting")
    room: Room = study.result("memory_room")
    whole, ranks = step_ns(accounting), min(len(g.ranks) for g in groups)
    repeated = _repeated(study)
    saved = repeated * (1 - 1 / ranks)
    if saved < _LEAST_SHARE * whole and not room.tight:
        return
    own = plan_of(study.run)
    freed = -changed(own, replace(own.layout, sequence_parallel=True)) if not isinstance(own, str) else 0
    full = (Evidence(how_full(room)),) if room.tight else ()
    kept = (Evidence(f"By the planner's formulas it frees {memory(freed)} of the fullest rank."),) if freed > 0 else ()
    pays = saved >= _LEAST_SHARE * whole
    title = (
        f"{percent(saved / whole)} of the step repeats norms and dropout on every rank of a tensor-parallel group"
        if pays
        else "Memory is full, and every rank of a tensor-parallel group keeps the whole sequence between its layers"
    )
    yield Finding(
        rule=SequenceParallel.id,
        severity=severity_of(saved / whole) if pays and not room.tight else "medium",
        title=title,
        ranks=ranks_of(accounting),
        steps=steps_of(accounting),
        seconds_per_step=saved / 1e9 if pays else None,
        evidence=(
            Evidence(f"Norms and dropout take {time(repeated)} per step on every rank, of which 1/{ranks} would be left."),
            *full,
            *kept,
        ),
        why=f"groups of {ranks} ranks all-reduce, so each rank has the whole sequence and repeats the work between layers",
        next="divide norms, dropout and residuals along the sequence: as many bytes are sent, in twice as many operations",
        apply='parallelize_module(…, {"norm": SequenceParallel(), …}) in torch; Megatron-LM: --sequence-parallel',
        verify="dtprof gate with two commands, with and without it, and the peaks of memory",
        share=saved / whole if pays else None,
        bound=True,
    )


class SequenceParallel:
    """Sequence parallelism whose many small operations are latency; or none, though norms are repeated or memory is full."""

    id = "tp.sequence_parallel"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only along the axis tp; latency is told where that is known, repeated work where operators are recorded."""
        result: ParallelResult = study.result("parallel")
        tensor = {",".join(map(str, g.ranks)): g for g in result.groups if g.axis == "tp"}
        if not tensor:
            return
        small: dict[str, list[Small]] = defaultdict(list)
        for one in small_of(study):
            small[one.group].append(one)
        unused = [g for name, g in tensor.items() if _whole(g) and not small[name]]
        if unused:
            yield from _unused(study, unused)
        yield from self._latency(study, tensor, small)

    def _latency(self, study: Lens, tensor: dict[str, GroupTraffic], small: dict[str, list[Small]]) -> Iterator[Finding]:
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        for name, group in tensor.items():
            found = [s for s in small[name] if s.op in _HALVES]
            if {s.op for s in found} == _HALVES:
                # one all-reduce has the latency of one of the two
                saved = min(min(s.per_step * s.alpha_ns for s in found), sum(s.exposed_ns for s in found))
                if saved >= _LEAST_SHARE * whole:
                    yield self._finding(group, found, saved, whole, accounting)

    def _finding(
        self, group: GroupTraffic, found: list[Small], saved: float, whole: float, accounting: AccountingResult
    ) -> Finding:
        sizes = [o.bytes or 0 for s in found for o in s.operations]
        rows: dict[int, list[int]] = defaultdict(list)
        for o in (o for s in found for o in s.operations):
            for part, event in o.events.items():
                rows[part].append(event)
        return Finding(
            rule=self.id,
            severity="low",
            title=f"Sequence parallelism sends {counted(round(sum(s.per_step for s in found)), 'operation')} per step of "
            f"{size(round(sum(sizes) / len(sizes)))}: mostly latency, which one all-reduce for each pair would pay once",
            ranks=group.ranks,
            steps=steps_of(accounting),
            seconds_per_step=saved / 1e9,
            evidence=(
                Evidence(
                    f"Each pays {time(found[0].alpha_ns)} before its first byte ({found[0].source}).",
                    {part: tuple(events) for part, events in rows.items()},
                ),
            ),
            why="an all-gather and a reduce-scatter move as much as the all-reduce that they replace, in two operations "
            "instead of "
            "one",
            next="leave sequence parallelism out where memory allows: it saves activations, and here it costs latency",
            apply="parallelize without SequenceParallel; compare the peaks of memory",
            verify="dtprof gate with two commands, with and without it",
            share=saved / whole,
            bound=True,
        )  # fmt: skip
