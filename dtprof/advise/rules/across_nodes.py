"""Rules about groups of ranks that span hosts although they would fit into one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dtprof.advise.places import severity_of, step_ns
from dtprof.analyse.links import hosts_of_ranks
from dtprof.analyse.parallel import GroupTraffic, ParallelResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, percent, size, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05
_WORDS = {"tp": "tensor parallelism", "ep": "expert parallelism", "cp": "context parallelism", "dp": "data parallelism"}


def spanning(study: Lens) -> list[GroupTraffic]:
    """Groups over several hosts that would fit into one, and send more than any group that has such a place.

    Where a group inside a host sends as much, changing places gains nothing: with HSDP the shards belong inside.
    """
    result: ParallelResult = study.result("parallel")
    on_host = Counter(hosts_of_ranks(study.run).values())
    if len(on_host) < 2:
        return []
    inside = [g for g in result.groups if len(g.hosts) == 1]
    most = max((_sent(g) for g in inside), default=0.0)
    return [
        g for g in result.groups if len(g.hosts) > 1 and len(g.ranks) <= min(on_host.values()) and _sent(g) > most
    ]  # fmt: skip


def _sent(group: GroupTraffic) -> float:
    return group.bytes_per_step if group.bytes_per_step is not None else 0.0


class AcrossNodes:
    """Groups whose messages go between hosts, and need not."""

    id = "comm.group_across_nodes"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Abstains where hosts or bytes are not known, and for groups that no host could hold."""
        whole = step_ns(study.result("accounting"))
        found: dict[str, list[GroupTraffic]] = defaultdict(list)
        for group in spanning(study):
            if self.concerns(group.axis):
                found[group.axis].append(group)
        for axis, groups in found.items():
            cost = sum(g.exposed_ns * len(g.ranks) for g in groups) / sum(len(g.ranks) for g in groups)
            if cost >= _LEAST_SHARE * whole:
                yield self._finding(study, axis, groups, cost, whole)

    def concerns(self, axis: str) -> bool:
        """Is this axis the rule's? Those of tensor and expert parallelism have rules of their own."""
        return axis not in ("tp", "ep")

    def _finding(self, study: Lens, axis: str, groups: list[GroupTraffic], cost: float, whole: float) -> Finding:
        what = f"groups of {_WORDS.get(axis, axis)}" if axis else "groups"
        rows: dict[int, list[int]] = defaultdict(list)
        for o in (o for g in groups for o in g.operations):
            for part, event in o.events.items():
                rows[part].append(event)
        ranks = sorted({r for g in groups for r in g.ranks})
        sent = sum(_sent(g) for g in groups) / len(groups)
        inside = [g for g in study.result("parallel").groups if len(g.hosts) == 1]
        beside = (
            f" The groups inside hosts ({_names(inside)}) send {size(round(max(_sent(g) for g in inside)))}." if inside else ""
        )
        remedy = f"give neighbouring ranks to {axis or 'this group'}: the last axis of the device mesh"
        return Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{what[0].upper()}{what[1:]} ({_names(groups)}) span {counted(len(groups[0].hosts), 'host')} and would fit "
            f"into one: {percent(cost / whole)} of the step is their exposed traffic",
            ranks=tuple(ranks),
            steps=tuple(sorted({o.step for g in groups for o in g.operations if o.step is not None})),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"{counted(round(groups[0].per_step), 'operation')} and {size(round(sent))} per rank and step, "
                    f"{time(groups[0].transfer_ns)} moving; hosts {', '.join(groups[0].hosts)}.{beside}",
                    {part: tuple(found) for part, found in rows.items()},
                ),
            ),
            why=f"{named('rank', groups[0].ranks)} exchange {size(round(sent))} per step between {', '.join(groups[0].hosts)}, "
            "over the slowest links that there are",
            next=remedy,
            apply=f"{remedy}, as in init_device_mesh('cuda', (dp, tp), mesh_dim_names=('dp', 'tp')), where ranks of a "
            "host follow "
            "each other",
            verify="measure again: the group has one host, and its operations take less",
            share=cost / whole,
            bound=True,
        )


class TensorAcrossNodes(AcrossNodes):
    """Tensor parallelism between hosts: it sends activations several times per layer."""

    id = "tp.across_nodes"

    def concerns(self, axis: str) -> bool:
        """Tensor parallelism's."""
        return axis == "tp"


class ExpertsAcrossNodes(AcrossNodes):
    """Expert groups between hosts: every token travels there and back in every layer."""

    id = "moe.groups_across_nodes"

    def concerns(self, axis: str) -> bool:
        """Expert parallelism's."""
        return axis == "ep"


def _names(groups: list[GroupTraffic]) -> str:
    told = "; ".join(",".join(map(str, g.ranks)) for g in groups[:4])
    return f"{told}; …" if len(groups) > 4 else told
