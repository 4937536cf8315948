"""Rules about communication that the step waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from dtprof.advise.compiled import REMEDY, WHY, owns_backward
from dtprof.advise.places import per_rank, ranks_of, severity_of, step_ns, steps_of
from dtprof.advise.rules.comm_bandwidth import reached
from dtprof.analyse.lateness import LatenessResult
from dtprof.analyse.links import LinksResult
from dtprof.analyse.parallel import axis_of
from dtprof.analyse.pipeline import PipelineResult
from dtprof.analyse.results import AccountingResult, CommResult, Operation, settled
from dtprof.analyse.stragglers import StragglerResult
from dtprof.analyse.waiting import WaitingResult
from dtprof.findings import Evidence, Finding
from dtprof.model.moe.excess import by_tokens
from dtprof.numbers import bandwidth, counted, named, percent, size, time
from dtprof.protocols import Lens

# a share of the step below this is not worth a finding
LEAST_SHARE = 0.05
# the ranks that this share of the waiting is for are the ones waited for
_MAIN_SHARE = 0.8
# more tokens are why a rank is waited for if they take this share of the waiting
_EXPLAINED = 0.5
# what shortens exposed communication, by the mesh axis that most of it goes along
_REMEDIES = {
    "dp": "start communication earlier (smaller or reordered buckets, prefetch), send less (bf16 gradients), or a faster link",
    "tp": "keep tensor parallelism inside a host, use fewer ranks for it, or overlap it (asynchronous tensor parallelism)",
    "ep": "keep experts' groups inside a host, send tokens in fewer bytes, or compute shared layers beside the all-to-alls",
    "cp": "send the next keys and values before attending to those at hand, or use fewer ranks per sequence",
    "pp": "send while computing goes on (isend), and fewer, larger messages",
}
_OVERLAP = "overlap it with computing: bucket size and order under DDP, prefetch under FSDP; or reduce the bytes"


class Waiting:
    """Ranks wait inside communication for a rank that arrives later."""

    id = "comm.waiting"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where ranks are missing (waiting cannot be told), where a straggler finding says why already, where a link
        is slow (who gets its data late comes late to the next operation), and for ranks whose experts have more tokens.
        """
        links: LinksResult = study.result("links")
        if links.slow:
            return
        waiting: WaitingResult = study.result("waiting")
        accounting: AccountingResult = study.result("accounting")
        stragglers: StragglerResult = study.result("stragglers")
        whole = step_ns(accounting)
        late: LatenessResult = study.result("lateness")
        named_already = {s.rank for s in stragglers.found} | ({late.rank} if late.rank is not None else set())
        if waiting.per_step_ns >= LEAST_SHARE * whole:
            named_already |= _busier(study, waiting)
        explained = sum(waiting.by_culprit.get(r, 0) for r in named_already)
        left = waiting.per_step_ns - explained
        if left < LEAST_SHARE * whole or not waiting.by_culprit:
            return
        culprits = {r: w for r, w in waiting.by_culprit.items() if r not in named_already}
        if not culprits:
            return
        blamed = _blamed(culprits, left, len(ranks_of(accounting)))
        yield self._finding(study, culprits, blamed, left, whole)

    def _finding(self, study: Lens, culprits: dict[int, float], blamed: list[int], left: float, whole: float) -> Finding:
        waiting: WaitingResult = study.result("waiting")
        operations = {o.id: o for r in blamed or culprits for o in waiting.operations[r]}
        worst = sorted(waiting.by_victim.items(), key=lambda i: -i[1])[:4]
        rows: dict[int, list[int]] = defaultdict(list)
        for operation in operations.values():
            for part, event in operation.events.items():
                rows[part].append(event)
        shares = ", ".join(f"rank {r}: {percent(w / left)}" for r, w in list(culprits.items())[:4])
        who = named("rank", blamed)
        cost = _of_the_others(study, sum(culprits[r] for r in blamed), blamed) if blamed else left
        if blamed:
            arrives, them, does = ("arrives", "it", "does") if len(blamed) == 1 else ("arrive", "them", "do")
            most = percent(sum(culprits[r] for r in blamed) / left)
            why = f"{who} {arrives} last in {counted(len(operations), 'operation')} and {most} of the waiting is for {them}"
            remedy = f"compare what {who} {does} before {named('operation', list(operations)[:6])} with the others"
        elif (early := _early(waiting.by_victim)) is not None:
            why = (
                f"rank {early} arrives first and does nearly all of the waiting: it has less work than the others, or is faster"
            )
            remedy = f"give rank {early} as much work as the others have"
        else:
            why = f"no single rank arrives last ({shares}): work that varies from step to step or from rank to rank"
            remedy = "even out the work of the ranks (sequence lengths, input), or look for noise on the hosts"
        return Finding(
            rule=self.id,
            severity=severity_of(left / whole),
            title=f"{percent(left / whole)} of the step is waiting inside communication, "
            + (f"mostly for {who}" if blamed else "for no single rank"),
            ranks=tuple(sorted(blamed or culprits)),
            steps=steps_of(study.result("accounting")),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(f"Of the waiting, by the rank that arrives last: {shares}.", {p: tuple(r) for p, r in rows.items()}),
                Evidence("Waiting per step: " + ", ".join(f"rank {r}: {time(w)}" for r, w in worst) + "."),
                Evidence(_transfer(study.result("comm"))),
            ),
            why=why,
            next=remedy,
            apply="make the ranks arrive together; moving data faster does not shorten waiting",
            verify="measure again and compare the waiting per rank",
            share=cost / whole,
        )


def _busier(study: Lens, waiting: WaitingResult) -> set[int]:
    """Ranks whose tokens explain half of what is waited for them or more: that is moe.expert_balance's to tell."""
    rank_of = {p.ordinal: p.rank for p in study.run.parts}
    more = {rank_of[part]: ns for part, ns in by_tokens(study.run).items()}
    return {r for r, ns in waiting.by_culprit.items() if more.get(r, 0.0) > 0 and more.get(r, 0.0) >= _EXPLAINED * ns}


def _of_the_others(study: Lens, mean: float, blamed: list[int]) -> float:
    """What each of the other ranks waits, from the mean over all of them: by so much the step is longer. In a pipeline the
    ranks of later stages wait for the backward passes of earlier ones anyway.
    """
    ranks = ranks_of(study.result("accounting"))
    others = [r for r in ranks if r not in blamed]
    if not others:
        return mean
    result: PipelineResult = study.result("pipeline")
    drains = [sum(ns for (kind, stage), ns in p.takes.items() if kind != "F" and stage < min(r.stages))
              for p in result.pipelines for r in p.ranks if r.rank in others]  # fmt: skip
    return max(mean * len(ranks) / len(others) - (float(np.mean(drains)) if drains else 0.0), 0.0)


def _blamed(culprits: dict[int, float], left: float, ranks: int) -> list[int]:
    """The few ranks that most waiting is for: at most a third of all; empty where the ranks arrive last in turn."""
    few: list[int] = []
    for rank in culprits:
        if sum(culprits[r] for r in few) >= _MAIN_SHARE * left:
            break
        few.append(rank)
    return few if len(few) <= max(1, ranks // 3) else []


def _early(by_victim: dict[int, float]) -> int | None:
    """The rank that waits alone for all the others; None where several wait, or there are only two."""
    rank = max(by_victim, key=lambda r: by_victim[r])
    return rank if len(by_victim) > 2 and by_victim[rank] >= _MAIN_SHARE * sum(by_victim.values()) else None


def _transfer(comm: CommResult) -> str:
    moved = [o.transfer_ns for o in comm.operations if o.transfer_ns is not None]
    return f"Moving the data itself takes {time(sum(moved))} for all {counted(len(moved), 'operation')} whose waiting is known."


class Exposed:
    """Communication that moves data while nothing computes."""

    id = "comm.exposed"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Waiting is not counted here; where waiting cannot be told apart the price is an upper bound and says so."""
        accounting: AccountingResult = study.result("accounting")
        comm: CommResult = study.result("comm")
        whole = step_ns(accounting)
        moving, unsplit = per_rank(accounting, "comm_transfer_ns"), per_rank(accounting, "comm_unsplit_ns")
        if not moving:
            return
        cost = float(np.mean([moving[r] + unsplit[r] for r in moving]))
        if cost < LEAST_SHARE * whole:
            return
        bound = float(np.mean(list(unsplit.values()))) > 0.1 * cost
        hidden = float(np.mean([s.comm_hidden_ns for p in accounting.parts for s in settled(p.steps)]))
        worst = _worst(comm)
        evidence = [
            Evidence(f"{time(cost)} per step is exposed "
            f"communication{' (waiting included where it cannot be told)' if bound else ''};"
                     f" {time(hidden)} more is hidden behind computing."),
            *_largest(worst),
            *_links(study, worst),
        ]  # fmt: skip
        op = worst[0].op.replace("_", "-") if worst else "communication"
        missing = _missing_peers(study)
        why = f"{op} moves data while nothing computes: {time(cost)} per step exposed, {time(hidden)} hidden"
        axis = _axis(study, worst)
        remedy = _REMEDIES.get(axis, _REMEDIES["dp"])
        apply = remedy if axis in _REMEDIES and axis != "dp" else _OVERLAP
        if bound:
            why = (
                f"{time(cost)} per step, {time(hidden)} more hidden; moving data or waiting for a late rank "
                f"cannot be told apart: {missing}"
            )
            remedy = "report all ranks together: put their traces into one folder; then waiting and moving are told apart"
            if _mostly_one_sided(comm):
                remedy = "look at the senders: what do they do before the operations that their receivers wait in?"
            elif present_all(study):
                remedy = "measure again on a quieter machine: ends that differ hide who waited for whom"
        if owns_backward(study.run):
            why, remedy, apply = f"{why}; {WHY}", REMEDY, REMEDY
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{percent(cost / whole)} of the step is exposed communication{', waiting included' if bound else ''}",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=tuple(evidence),
            why=why,
            next=remedy,
            apply=apply,
            verify="measure again with the change: exposed communication should fall and hidden communication rise",
            share=cost / whole,
            bound=bound,
        )


def _axis(study: Lens, worst: list[Operation]) -> str:
    """Mesh axis along which the longest operation goes, "" where it is not known."""
    ranks = worst[0].group.split(",") if worst else []
    return axis_of(study.run, tuple(map(int, ranks))) if ranks and all(r.isdigit() for r in ranks) else ""


def present_all(study: Lens) -> bool:
    """Are all ranks of the job in the run?"""
    world = study.run.world_size
    return world is not None and len(study.run.ranks) >= world


def _missing_peers(study: Lens) -> str:
    present, world = len(study.run.ranks), study.run.world_size
    if world and present < world:
        return f"{present} of {world} ranks are present"
    comm: CommResult = study.result("comm")
    if _mostly_one_sided(comm):
        return "most of it is one-sided (send, receive, broadcast, …): their ranks need not end together"
    if any(o.n_present == o.n and o.transfer_ns is None and not o.one_sided for o in comm.operations):
        return "some operations do not end together on all ranks"
    return "the peers of these operations are not known"


def _mostly_one_sided(comm: CommResult) -> bool:
    """Does most of the time that is not told apart lie in operations that need not end together?"""
    untold = [(o.one_sided, sum(o.dur_ns.values())) for o in comm.operations if o.transfer_ns is None]
    return 2 * sum(spent for one_sided, spent in untold if one_sided) > sum(spent for _, spent in untold)


def _worst(comm: CommResult) -> list[Operation]:
    return sorted(
        (o for o in comm.operations if o.transfer_upper_ns), key=lambda o: -(o.transfer_ns or o.transfer_upper_ns or 0)
    )


def _links(study: Lens, worst: list[Operation]) -> list[Evidence]:
    """What the group of the longest operation reaches of what its links allow, or why that is not known."""
    found = reached(study).get((worst[0].op, worst[0].group)) if worst else None
    if found is None:
        return []
    told = f"What the links of its group allow is not known: {found}" if isinstance(found, str) else found.sentence
    return [Evidence(f"{told[0].upper()}{told[1:]}.")]


def _largest(worst: list[Operation]) -> list[Evidence]:
    """The three longest operations in words."""
    out = []
    for o in worst[:3]:
        moved = f"moves {size(o.bytes)}" if o.bytes is not None else "moves bytes that are not known"
        took = f"in {time(o.transfer_ns)}" if o.transfer_ns is not None else f"in at most {time(o.transfer_upper_ns)}"
        rate = f", bus bandwidth {bandwidth(o.busbw_gb_s)}" if o.busbw_gb_s is not None else ""
        out.append(Evidence(f"Operation {o.id} ({o.op.replace('_', '-')}, {counted(o.n_present, 'rank')}) "
        f"{moved} {took}{rate}.",
                            {p: (e,) for p, e in o.events.items()}))  # fmt: skip
    return out
