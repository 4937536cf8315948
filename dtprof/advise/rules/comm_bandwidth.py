"""The rule about bandwidth: how much of what its links allow a group of ranks reaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.advise.places import per_rank, severity_of, step_ns
from dtprof.advise.predicted import in_words, outcome
from dtprof.analyse.results import AccountingResult, CommResult, Operation
from dtprof.catalogue.collectives import busbw_factor
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding
from dtprof.model.cost.allowed import Allowed, allowed
from dtprof.numbers import bandwidth, counted, named, percent, size, time
from dtprof.protocols import Lens

# operations below this size say little about bandwidth
LEAST_BYTES = 1 << 20
LEAST_COUNT = 3
# below this share of what the slowest plausible links allow a group is slow: computing beside it takes up to a third on GPUs,
# and more on CPUs
SLOW, SLOW_ON_HOSTS = 0.6, 0.5
# groups of one kind whose sizes differ by no more than this factor are compared with each other
_ALIKE = 2.0
_LEAST_SHARE = 0.05
# an operation is alone where others overlap no more of it than this share
_BESIDE = 0.1


@dataclass(frozen=True)
class Reached:
    """What the operations of a group reach of what is allowed.

    ``share``: of the middle of what is allowed, ``sure``: of the slowest that is plausible; ``gb_s`` and ``allowed_gb_s`` (low,
    high): bus bandwidth; ``excess_ns``: what a step loses to it; ``source`` in words.
    """

    op: str
    group: str
    operations: tuple[Operation, ...]
    share: float
    sure: float
    gb_s: float
    allowed_gb_s: tuple[float, float]
    excess_ns: float
    source: str

    @property
    def sentence(self) -> str:
        """``all-reduce of ranks 0,1 reaches 37% of what its links allow: 54 GB/s of 130 to 160 GB/s``."""
        low, high = self.allowed_gb_s
        may = bandwidth(low) if high < 1.02 * low else f"{bandwidth(low)} to {bandwidth(high)}"
        return (
            f"{_word(self.op)} of {_who(self.group)} reaches {percent(min(self.share, 1.0))} of what its links allow: "
            f"{bandwidth(self.gb_s)} of bus bandwidth, of {may} ({self.source})"
        )


def reached(study: Lens) -> dict[tuple[str, str], Reached | str]:
    """(op, group) -> what it reaches, or why that is not known; for all operations that end together on all ranks."""
    comm: CommResult = study.result("comm")
    found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    alone = _alone(comm.operations)
    for o, single in zip(comm.operations, alone, strict=True):
        factor = busbw_factor(o.op, o.n) if o.n else None
        if o.one_sided or factor is None or o.step is None:
            continue
        large = (o.bytes or 0) >= LEAST_BYTES and o.bytes_known == "exact"
        mine = found[o.op, o.group]
        if large and single and o.transfer_ns:
            mine.append(o)
    peers = {key: _typical(mine) for key, mine in found.items() if len(mine) >= LEAST_COUNT}
    return {key: _judge(study, key, mine, peers) for key, mine in found.items()}


def _judge(
    study: Lens, key: tuple[str, str], mine: Sequence[Operation], peers: dict[tuple[str, str], tuple[float, float, int]]
) -> Reached | str:
    if len(mine) < LEAST_COUNT:
        return (
            f"fewer than {LEAST_COUNT} operations of {size(LEAST_BYTES)} or more travel alone, with all ranks present and "
            "known bytes"
        )
    first = mine[0]
    may = allowed(study.run, first.op, first.n or 0, first.dur_ns.keys())
    if isinstance(may, str):
        best = _best_peer(key, peers)
        if best is None:
            return may
        may = best
    ranges = np.array([may.range_ns(o.bytes or 0) for o in mine])
    took = np.array([o.transfer_ns or 0 for o in mine], float)
    moved = float(sum(o.bytes or 0 for o in mine)) * (busbw_factor(first.op, first.n or 0) or 1.0)
    low, high = ranges.sum(axis=0).tolist()
    steps, spent = len({o.step for o in mine}), float(took.sum())
    return Reached(
        *key, tuple(mine), (low + high) / 2 / spent, high / spent, moved / spent, (moved / high, moved / low),
        float(np.maximum(took - ranges[:, 1], 0).sum()) / steps, may.source,
    )  # fmt: skip


def _typical(mine: Sequence[Operation]) -> tuple[float, float, int]:
    """(lower quartile of the bus bandwidth, median bytes, ranks) of the operations of a group."""
    rates = [o.busbw_gb_s for o in mine if o.busbw_gb_s]
    return float(np.quantile(rates, 0.25)) if rates else 0.0, float(np.median([o.bytes or 0 for o in mine])), mine[0].n or 0


def _best_peer(key: tuple[str, str], peers: dict[tuple[str, str], tuple[float, float, int]]) -> Allowed | None:
    """What the best other group of the run that is like this one makes of its links."""
    own = peers[key]
    like = {
        k: rate
        for k, (rate, at, n) in peers.items()
        if k != key and k[0] == key[0] and n == own[2] and own[1] / _ALIKE <= at <= own[1] * _ALIKE
    }
    if not like or max(like.values()) <= 0:
        return None
    best = max(like, key=lambda k: like[k])
    factor = busbw_factor(key[0], own[2]) or 1.0

    def range_ns(size: int) -> tuple[float, float]:
        return (factor * size / like[best],) * 2

    return Allowed(range_ns, f"the same operation of {_who(best[1])} in this run")


def _alone(operations: Sequence[Operation]) -> list[bool]:
    """For each operation: does no other one of its ranks overlap more than a small part of it?"""
    order = sorted(range(len(operations)), key=lambda i: operations[i].first_start_ns)
    beside = [0] * len(operations)
    newest: dict[int, int] = {}
    for i in order:
        o = operations[i]
        for rank in o.dur_ns:
            if (j := newest.get(rank)) is not None:
                shared = min(operations[j].end_ns, o.end_ns) - o.first_start_ns
                beside[i], beside[j] = max(beside[i], shared), max(beside[j], shared)
            if j is None or o.end_ns >= operations[j].end_ns:
                newest[rank] = i
    return [b <= _BESIDE * max(o.end_ns - o.first_start_ns, 1) for b, o in zip(beside, operations, strict=True)]


class Bandwidth:
    """A group of ranks moves its data much slower than its links allow."""

    id = "comm.bandwidth"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where neither a measurement nor the catalogue nor a like group says what is allowed."""
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        limit = SLOW if accounting.on_device else SLOW_ON_HOSTS
        moving = per_rank(accounting, "comm_transfer_ns")
        for found in reached(study).values():
            if isinstance(found, str) or found.sure >= limit:
                continue
            exposed = [moving.get(rank, 0.0) for rank in found.operations[0].dur_ns]
            cost = min(found.excess_ns, float(np.mean(exposed)))
            if cost >= _LEAST_SHARE * whole:
                yield self._finding(study, found, cost, whole)

    def _finding(self, study: Lens, found: Reached, cost: float, whole: float) -> Finding:
        faster = round(1 / found.share, 2)
        predicted = outcome(study.run, [Edit("net.bandwidth_scale", faster)])
        saving = predicted.saving() if predicted is not None else None
        if saving is not None and saving.seconds_per_step <= 0:
            saving = None
        told = in_words(predicted) if predicted is not None and saving is not None else ""
        nccl = study.result("comm").backend == "nccl"
        where = "topology (nvidia-smi topo -m), NCCL's transport (NCCL_DEBUG=INFO)" if nccl else "the interface in use"
        remedy = f"look for what slows the links: {where}, link errors, other traffic"
        rows: dict[int, list[int]] = defaultdict(list)
        for o in found.operations:
            for part, event in o.events.items():
                rows[part].append(event)
        took = [o.transfer_ns or 0 for o in found.operations]
        evidence = [
            Evidence(
                f"{counted(len(took), 'operation')} of {size(LEAST_BYTES)} or more, each with nothing beside it, moved "
                f"{size(sum(o.bytes or 0 for o in found.operations))} in {time(sum(took))}; {found.sentence}.",
                {part: tuple(events) for part, events in rows.items()},
            ),
            Evidence("Only the shortest participation of each operation counts, so waiting for late ranks is no part of it."),
        ]
        if told:
            evidence.append(Evidence(f"Predicted with links {faster:g} times as fast: {told}."))
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{_who(found.group)[0].upper()}{_who(found.group)[1:]}: {_word(found.op)} reaches "
            f"{percent(found.share)} of what its links allow",
            ranks=tuple(sorted(found.operations[0].dur_ns)),
            steps=tuple(sorted({o.step for o in found.operations if o.step is not None})),
            seconds_per_step=cost / 1e9,
            evidence=tuple(evidence),
            why=found.sentence,
            next=remedy + (f". At what the links allow: {told}" if told else ""),
            apply=remedy,
            verify="dtprof job collectives on these hosts, for its bandwidth by size and link by link; then measure again",
            share=cost / whole,
            bound=True,
            prediction=saving,
        )


def _word(op: str) -> str:
    return op.replace("_", "-")


def _who(group: str) -> str:
    ranks = group.split(",")
    return named("rank", [int(r) for r in ranks]) if all(r.isdigit() for r in ranks) else group
