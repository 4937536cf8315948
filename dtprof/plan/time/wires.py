"""Communication between ranks of one job: inside a node, over nodes and out of a pod, shared with the groups beside.

Sizes by nccl-tests' conventions (doc/PERFORMANCE.md). Inside a node: ``dtprof.model.cost.expected``. Over nodes a ring, with
the latencies by which NCCL chooses (src/graph/tuning.cc at commit 5067397, protocol Simple) and the line at a fitted share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dtprof.catalogue.collectives import busbw_factor
from dtprof.catalogue.hardware import Gpu
from dtprof.model.cost.expected import expected
from dtprof.plan.spec import Cluster

# seconds: once, of a step inside a node, of one over the network; a ring over several nodes takes this much longer
_BASE, _INSIDE, _OUTSIDE, _PLATEAU = 8.4e-6, 3.4e-6, 14e-6, 1.4
# of the line inside a node, where nothing was measured
_OF_LINE = 0.75

# links by which ranks of a part of a node reach each other in a mesh, as measured all-reduces over 2 to 7 V100-SXM2 show
_MESH = {2: 1, 3: 2, 4: 4, 5: 2, 6: 2, 7: 4}


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: ``ranks`` of them, ``near`` of each node, with ``step`` ranks of the job from one to the next."""

    ranks: int
    near: int
    span: int

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return -(-self.ranks // self.near)


def group(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """Ranks with ``stride`` between neighbours: with stride 1 they fill a node first (Megatron's order: tp, cp, dp, pp)."""
    near = max(1, min(ranks, gpus_per_node // stride if stride <= gpus_per_node else 1))
    return Group(ranks, near, ranks * stride)


@dataclass(frozen=True)
class Wires:
    """Times of operations on one cluster; ``network``: share of the line that a network reaches."""

    cluster: Cluster
    network: float
    known: dict[tuple[str, float, Group], float] = field(default_factory=dict, compare=False)

    def time(self, op: str, size: float, ranks: Group) -> float:
        """Seconds of an operation of ``size`` bytes, all groups of its kind at work at once; 0 of one rank."""
        if ranks.ranks < 2 or size <= 0:
            return 0.0
        key = (op, size, ranks)
        if key not in self.known:
            self.known[key] = self._inside(op, size, ranks.ranks) if ranks.nodes == 1 else self._over(op, size, ranks)
        return self.known[key]

    def latency(self, op: str, ranks: Group) -> float:
        """Seconds of it that do not depend on size."""
        if ranks.ranks < 2:
            return 0.0
        steps = 2.0 if op == "all_reduce" else 1.0
        crossings = ranks.nodes - 1
        along = (ranks.ranks - 1 - crossings) * _INSIDE + crossings * _OUTSIDE
        return _BASE + steps * along * (_PLATEAU if ranks.nodes > 1 else 1.0)

    def per_rank(self, ranks: Group) -> float:
        """Bytes/s of bus bandwidth of a ring over nodes: its share of its node's ports, or the links inside."""
        return min(self._ports(ranks), self.cluster.intra_gb_s * _OF_LINE * 1e9)

    def _ports(self, ranks: Group) -> float:
        """Bytes/s of a group's share of its node's ports, less out of a pod."""
        line = self.cluster.inter_gb_s * self.network * ranks.near / self.cluster.gpus_per_node
        if self.cluster.pod_gpus and ranks.span > self.cluster.pod_gpus:
            line *= self.cluster.pod_share
        return line * 1e9

    def _inside(self, op: str, size: float, ranks: int) -> float:
        gpu = _met(self.cluster.gpu, ranks)
        factor = busbw_factor(op, ranks) or 1.0
        asked = expected(op, int(size), ranks, 1, gpu)
        if isinstance(asked, str):
            return _BASE + factor * size / (self.cluster.intra_gb_s * _OF_LINE * 1e9)
        whole = self.cluster.gpu.fast
        slower = whole.gb_s / self.cluster.intra_gb_s if whole and self.cluster.intra_gb_s else 1.0
        return asked.ns * 1e-9 * slower

    def _over(self, op: str, size: float, ranks: Group) -> float:
        if op == "all_to_all":
            # no ring: what a rank sends out of its node goes through its own share of the ports
            outside = 1 - ranks.near / ranks.ranks
            return self.latency(op, ranks) + outside * size * ranks.near / self._ports(ranks)
        factor = busbw_factor(op, ranks.ranks) or 1.0
        return self.latency(op, ranks) + factor * size / self.per_rank(ranks)


def _met(gpu: Gpu, ranks: int) -> Gpu:
    """The GPU with the links that a group of so many ranks has of a mesh."""
    if gpu.fast is None or gpu.fast.reach != "some" or ranks not in _MESH:
        return gpu
    return replace(gpu, fast=replace(gpu.fast, links=_MESH[ranks], reach="all"))
