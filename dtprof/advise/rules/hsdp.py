"""The rule about hybrid sharding: the sum over copies that waits behind the scattering of shards, on links of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dtprof import intervals
from dtprof.advise.places import severity_of, step_ns
from dtprof.analyse.covers import PartView
from dtprof.analyse.links import hosts_of_ranks
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, time
from dtprof.protocols import Lens
from dtprof.run import Part, Run

_LEAST_SHARE = 0.03
# one operation is queued behind the other where so little lies between them, of the shorter one
_BEHIND = 0.10
_PAIR = {"reduce_scatter", "all_reduce"}
Members = tuple[int, ...]


@dataclass
class _Serial:
    """Of one part: ns of either operation in pairs that run one after the other, and the shorter of each, exposed alone."""

    inner: Members
    outer: Members
    scatter_ns: float = 0.0
    reduce_ns: float = 0.0
    gain_ns: float = 0.0
    pairs: int = 0
    steps: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)


class SerialGroups:
    """Gradients are summed over copies behind their scattering over shards, on one stream, although other links do it."""

    id = "layout.hsdp_serial"

    def find(self, study: Lens) -> Iterator[Finding]:
        """A bound: two operations side by side save the shorter of them at most, and no more than is exposed. Groups are told
        apart by their ranks, whatever they are called.
        """
        found = {part.rank: one for part in study.run.parts if part.rank is not None and (one := _serial(study.run, part))}
        if not found:
            return
        whole = step_ns(study.result("accounting"))
        steps = {rank: max(len(one.steps), 1) for rank, one in found.items()}
        gain = float(np.mean([one.gain_ns / steps[rank] for rank, one in found.items()]))
        if gain < _LEAST_SHARE * whole:
            return
        scatter, reduce = (
            float(np.mean([getattr(one, name) / steps[rank] for rank, one in found.items()]))
            for name in ("scatter_ns", "reduce_ns")
        )
        inner, outer = sorted({one.inner for one in found.values()}), sorted({one.outer for one in found.values()})
        told = _places(study.run, inner, outer)
        yield Finding(
            rule=self.id,
            severity=severity_of(gain / whole),
            title=f"Gradients of {_names(outer)} are summed behind the scattering of {_names(inner)}, on the same stream: side "
            f"by side the step is up to {time(gain)} shorter",
            ranks=tuple(sorted(found)),
            steps=tuple(sorted(set().union(*(one.steps for one in found.values())))),
            seconds_per_step=gain / 1e9,
            evidence=(
                Evidence(
                    f"Per rank and step: scattering over shards {time(scatter)}, summing over copies {time(reduce)}, one after "
                    f"the other in {counted(sum(one.pairs for one in found.values()), 'pair')}. The gain is bounded by the "
                    "shorter of each two.",
                    {part.ordinal: tuple(found[part.rank].rows) for part in study.run.parts if part.rank in found},
                ),
                Evidence(told),
            ),
            why="the groups share no link, and the stream lets one wait for the other: the next bucket's scattering could "
            "run beside this one's sum",
            next="a stream of its own for the sum over copies; FSDP2 of torch 2.13 has one",
            apply="keep shards inside a host and copies across; run both groups' operations on different streams",
            verify="measure again: the two operations should overlap in the timeline",
            share=gain / whole,
            bound=True,
        )  # fmt: skip


def _serial(run: Run, part: Part) -> _Serial | None:
    """None where the part has no such pairs, or several kinds of groups take part in them."""
    view, comm = PartView(run, part.ordinal), run.table("comm", part.ordinal)
    groups = run.table("groups", part.ordinal)
    members = {int(i): tuple(r) for i, r in zip(groups["id"].tolist(), groups["ranks"].tolist(), strict=True) if r}
    start, end, lane, step = view.events["ts"], view.end, view.events["lane"], view.events["step"]
    ops = comm.text("op")
    known = sorted(
        (int(start[event]), int(event), ops[row], members[group])
        for row, (event, group) in enumerate(zip(comm["event"].tolist(), comm["group"].tolist(), strict=True))
        if ops[row] in _PAIR and group in members and view.lane_device[event] >= 0
    )
    kinds: Counter[tuple[Members, Members]] = Counter()
    out: dict[tuple[Members, Members], _Serial] = {}
    for (_, one, first, inner), (_, other, second, outer) in pairwise(known):
        if (first, second) != ("reduce_scatter", "all_reduce") or inner == outer or lane[one] != lane[other]:
            continue
        lengths = int(end[one] - start[one]), int(end[other] - start[other])
        gap = int(start[other] - end[one])
        if not 0 <= gap <= _BEHIND * min(lengths):
            continue
        mine = out.setdefault((inner, outer), _Serial(inner, outer))
        kinds[inner, outer] += 1
        alone = intervals.subtract((start[[one, other]], end[[one, other]]), view.device_compute)
        mine.scatter_ns, mine.reduce_ns = mine.scatter_ns + lengths[0], mine.reduce_ns + lengths[1]
        mine.gain_ns += min(*lengths, int(np.sum(alone[1] - alone[0])))
        mine.pairs += 1
        mine.steps.add(int(step[one]))
        mine.rows += [one, other]
    return out[kinds.most_common(1)[0][0]] if out else None


def _names(groups: list[Members]) -> str:
    shown = " and ".join(named("rank", members) for members in groups[:2])
    return f"{shown} and others" if len(groups) > 2 else shown


def _places(run: Run, inner: list[Members], outer: list[Members]) -> str:
    """Whether shards lie inside a host, as they should: they are gathered and scattered most."""
    hosts = hosts_of_ranks(run)
    if any(rank not in hosts for group in (*inner, *outer) for rank in group):
        return "The hosts are not known: shards belong inside one, as they are gathered and scattered in every layer."
    apart = [group for group in inner if len({hosts[rank] for rank in group}) > 1]
    if apart:
        return f"The shards of {_names(apart)} span hosts: they belong inside one, and copies across."
    spans = any(len({hosts[rank] for rank in group}) > 1 for group in outer)
    return f"Shards lie inside a host{' and copies across, as they should: keep it so' if spans else ''}."
