"""Rules about slow and late ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dtprof.advise.places import severity_of, step_ns
from dtprof.analyse.covers import PartView
from dtprof.analyse.lateness import Late, LatenessResult
from dtprof.analyse.links import LinksResult
from dtprof.analyse.parameter_server import ServerResult
from dtprof.analyse.results import AccountingResult, CommResult
from dtprof.analyse.stragglers import Straggler, StragglerResult
from dtprof.analyse.waiting import WaitingResult
from dtprof.findings import Evidence, Finding
from dtprof.model.moe.excess import by_tokens
from dtprof.numbers import counted, interval, named, percent, time
from dtprof.protocols import Lens

# counts of operators that differ by more than this share are different work
_SAME_WORK = 0.02
# garbage collection above this share of the excess explains it
_GC_SHARE = 0.25
# a clock below this share of the peers' explains a slow device
_SLOW_CLOCK = 0.95
# waiting below this share of the step is not worth a finding
_LATE_SHARE = 0.05
_PHASE_WORDS = {"data": "input", "forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer step"}
_KEY_WORDS = {
    "compute_ns": "computing", "copy_exposed_ns": "copies", "idle_host_ns": "time in which nothing is launched",
    "idle_dependency_ns": "waiting inside the device", "idle_input_ns": "input", "idle_checkpoint_ns": "checkpoints",
    "idle_other_ns": "idle time",
}  # fmt: skip

# a rank is as long as its tokens make it if they explain this share of its excess
_EXPLAINED = 0.5


class ComputeRank:
    """One rank computes longer than its peers in every step."""

    id = "straggler.compute_rank"
    keys: tuple[str, ...] = ("compute_ns", "copy_exposed_ns", "idle_dependency_ns", "idle_other_ns")

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains below two complete steps on all ranks, on pipelines, where the excess is inside the noise, where tokens of
        its experts explain most of it, which is moe.expert_balance's to tell, and for a worker that slow_worker names.
        """
        result: StragglerResult = study.result("stragglers")
        server: ServerResult = study.result("parameter_server")
        for straggler in result.found:
            if server.slow is not None and server.slow.rank == straggler.rank:
                continue
            if straggler.main_key in self.keys:
                explained = by_tokens(study.run).get(straggler.part, 0.0)
                if explained < _EXPLAINED * straggler.excess.centre:
                    yield _finding(self.id, study, straggler, result.steps)


class HostRank(ComputeRank):
    """One rank's host code launches its work later than its peers' in every step."""

    id = "straggler.host_rank"
    keys = ("idle_host_ns", "idle_checkpoint_ns")


def _finding(rule: str, study: Lens, s: Straggler, steps: int) -> Finding:
    accounting: AccountingResult = study.result("accounting")
    waiting: WaitingResult = study.result("waiting")
    whole, cost = step_ns(accounting), cost_of(s, waiting.by_victim)
    phase = _PHASE_WORDS.get(s.phase or "", s.phase or "")
    where, most = (phase, "") if s.measured_in_phase else ("step", f", most of it in the {phase}" if phase else "")
    cause, reason = _cause(s)
    others = sorted({p.rank for p in accounting.parts if p.rank is not None and p.rank != s.rank})
    peers = named("rank", others) if len(others) == 1 else "the other ranks"
    longer = f"{time(s.excess.centre)} longer than {peers}{most}, in {s.excess.slowest_in} of {steps} steps"
    does = f"computes its {where}" if rule == ComputeRank.id else f"takes for its {where}"
    return Finding(
        rule=rule,
        severity=severity_of(cost / whole),
        title=f"Rank {s.rank} needs {time(s.excess.centre)} longer for its {where} than {peers}{most}",
        ranks=(s.rank,),
        steps=s.steps,
        seconds_per_step=cost / 1e9,
        evidence=tuple(_evidence(study, s, where, peers, steps, reason)),
        why=f"rank {s.rank} {does} {longer}; {cause}",
        next=_look(s, rule),
        apply=_look(s, rule),
        verify=f"measure the same command again after the repair: rank {s.rank}'s {where} without communication "
        f"should become about {time(cost)} shorter",
        share=cost / whole,
    )


def cost_of(s: Straggler, waited: Mapping[int, float]) -> int:
    """What the others lose by a straggler, ns per step; ``waited``: rank -> exposed waiting per step.

    Computing less, with fewer tokens say, does not make up for a host that is late where ranks meet in between: then the others
    wait for all of its lateness, and it waits for them elsewhere.
    """
    if s.main_key not in HostRank.keys:
        return s.excess.cost
    less = max(-s.by_key["compute_ns"], 0)
    others = [ns for rank, ns in waited.items() if rank != s.rank]
    return max(s.excess.cost, round(min(s.excess.cost + less, s.by_key[s.main_key], *others)))


def _evidence(study: Lens, s: Straggler, where: str, peers: str, steps: int, reason: str) -> Iterator[Evidence]:
    waiting: WaitingResult = study.result("waiting")
    view = PartView(study.run, s.part)
    rows = view.phase_rows(s.phase) if s.phase else np.flatnonzero(view.events.is_("kind", "range"))
    rows = rows[np.isin(view.events["step"][rows], s.steps)]
    yield Evidence(
        f"Without communication, the {where} takes {time(s.excess.centre)} longer on rank {s.rank} than on {peers}"
        f" ({interval(s.excess.low, s.excess.high)}), longest in {s.excess.slowest_in} of {steps} steps.",
        {s.part: tuple(rows.tolist())},
    )
    keys = [(k, v) for k, v in sorted(s.by_key.items(), key=lambda i: -abs(i[1])) if abs(v) * 20 > s.excess.centre]
    lost = [f"{_KEY_WORDS[k]} {_signed(v)}" for k, v in keys]
    if s.no_core_ns is not None:
        lost.append(f"of that without a core {_signed(s.no_core_ns)}")
    yield Evidence("Over the whole step: " + ", ".join(lost) + ".")
    if s.by_phase:
        phases = ", ".join(f"{_PHASE_WORDS.get(p, p)} {_signed(v)}" for p, v in s.by_phase.items())
        yield Evidence(f"By phase, without communication: {phases}.")
    yield Evidence(reason)
    victims = {r: w for r, w in waiting.by_victim.items() if r != s.rank and w > 0}
    if victims:
        told = ", ".join(f"rank {r}: {time(w)}" for r, w in sorted(victims.items(), key=lambda i: -i[1])[:4])
        yield Evidence(f"Waiting per step meanwhile: {told}; rank {s.rank} itself {time(waiting.by_victim.get(s.rank, 0))}.")
    cost = cost_of(s, waiting.by_victim)
    if cost > 1.05 * s.excess.cost:
        yield Evidence(f"That it computes less saves the others nothing where they wait for it: they lose {time(cost)}.")


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else ''}{time(ns)}"


def _cause(s: Straggler) -> tuple[str, str]:
    """The cause in a few words, and in a sentence."""
    work = abs(s.operators - s.peer_operators) <= _SAME_WORK * max(s.peer_operators, 1)
    counts = f"{counted(s.operators, 'operation')} per step on rank {s.rank}, {s.peer_operators:,} on its peers"
    if not work:
        return "it has different work", f"The work differs: {counts}."
    gc = "garbage collection was not recorded"
    if s.gc_ns is not None:
        gc = f"garbage collection took {time(s.gc_ns)} per step" if s.gc_ns > 0 else "no garbage collection"
        if s.gc_ns > _GC_SHARE * s.excess.centre:
            return f"garbage collection takes {time(s.gc_ns)} of it", f"The work is the same ({counts}); {gc}."
    if s.clocks_mhz is not None and s.clocks_mhz[0] < _SLOW_CLOCK * s.clocks_mhz[1]:
        own, others = s.clocks_mhz
        return (
            f"its SM clock is at {own:,.0f} MHz, that of its peers at {others:,.0f} MHz",
            f"The work is the same ({counts}), and its clock is {percent(1 - own / others)} lower: heat, power, or a limit.",
        )
    same_input = s.by_key["idle_input_ns"] < s.excess.centre / 10
    told = "same work" + (", same input time" if same_input else "") + (", no GC" if s.gc_ns is not None else "")
    slow = "the machine is slow" if s.main_key == "compute_ns" else "its host code is slow"
    return f"{told}: {slow}", f"The work is the same ({counts}); {gc}."


def _look(s: Straggler, rule: str) -> str:
    if rule == HostRank.id:
        return f"profile rank {s.rank}'s Python between its operations: what runs there and not on its peers?"
    return f"look at rank {s.rank}'s host and device: clocks, temperature, other processes"


class LateEntry:
    """One rank enters the step later than the others, without being slower afterwards."""

    id = "straggler.late_entry"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where a rank was found slow, where a link is slow, and where the last rank also needs longer than its peers
        to arrive.
        """
        result: LatenessResult = study.result("lateness")
        links: LinksResult = study.result("links")
        if links.slow:
            return
        whole = step_ns(study.result("accounting"))
        if result.rank is not None and result.cost_ns >= _LATE_SHARE * whole:
            yield self._finding(study, result.rank, result.cost_ns, whole, result.steps)

    def _finding(self, study: Lens, rank: int, cost: float, whole: float, late: tuple[Late, ...]) -> Finding:
        waiting: WaitingResult = study.result("waiting")
        comm: CommResult = study.result("comm")
        operations = waiting.operations[rank]
        first = late[0]
        steps = tuple(x.step for x in late)
        single = len(steps) == 1
        rows: dict[int, list[int]] = {}
        for operation in operations:
            for part, event in operation.events.items():
                rows.setdefault(part, []).append(event)
        lag = f"between {time(first.least)} and {time(first.most)}" if first.least != first.most else time(first.most)
        unclear = (
            "one captured step cannot tell a late rank from a profiler that started late on it: capture at least three steps"
            if single
            else f"look at the end of rank {rank}'s previous step: logging, evaluation, checkpoint, data"
        )
        total = sum(waiting.by_culprit.values())
        ids = [o.id for o in operations]
        evidence = (
            Evidence(
                f"Last in {named('operation', ids)}; {time(cost)} of {time(total)} exposed waiting per rank and "
                f"step is for it.",
                {p: tuple(r) for p, r in rows.items()},
            ),
            Evidence(
                f"Rank {rank} enters step {first.step} {lag} after the others; from there to its first operation it needs"
                f" {time(first.needs)}, the others {time(first.needs_least)} to {time(first.needs_most)}."
            ),
        )
        return Finding(
            rule=self.id, severity=severity_of(cost / whole),
            title=f"Rank {rank} enters the step up to {time(max(x.most for x in late))} after the others, and they wait for it",
            ranks=(rank,), steps=steps, seconds_per_step=cost / 1e9, evidence=evidence,
            why=f"rank {rank} enters step {first.step} {lag} after the others; from there to its first "
            f"{_word(comm, first.step)} it needs"
            f" {time(first.needs)}, the others {time(first.needs_least)} to {time(first.needs_most)}. It is late, not slow",
            next=unclear, apply="nothing yet: the cause lies before the capture" if single else unclear,
            verify="capture three steps or more and report again: if the rank enters late in all of them, look "
            "at the end of its step",
            share=cost / whole,
        )  # fmt: skip


def _word(comm: CommResult, step: int) -> str:
    first = next((o for o in comm.operations if o.step == step and not o.one_sided), None)
    return first.op.replace("_", "-") if first else "operation"
