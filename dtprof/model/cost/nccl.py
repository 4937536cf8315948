"""NCCL's own model of its collectives: the time that it expects of each algorithm and protocol, by which it chooses.

Primary source: NCCL, src/graph/tuning.cc at commit 5067397 of June 2026 (ncclTunerConstantsDefaults, ncclTopoTuneModel,
ncclTopoGetAlgoTime, treeCorrectionFactor). Left out: CollNet, NVLS over several nodes, PAT, and what a network adds to the
constants. The times are made for choosing and are too short for small sizes: ``expected`` says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dtprof.errors import InputError

Algorithm = Literal["ring", "tree", "nvls"]
Protocol = Literal["LL", "LL128", "Simple"]
Wire = Literal["nvlink", "pci"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
# us, by protocol
_BASE: dict[Algorithm, tuple[float, float, float]] = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
# us of one step over a wire, by protocol
_STEP: dict[str, dict[Algorithm, tuple[float, float, float]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "pci": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "net": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
_NVLS_US = 25.0
# us to hand a message to the network, by maker of the host's processor; Simple hands over so many
_NET_US = {False: 1.0, True: 2.0}
_NET_SIMPLE = 3
# GB/s of all channels, by architecture (Volta, Ampere, Hopper, Blackwell) or host, then by nodes (1, 2, more)
_LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
# GB/s of a channel, the same way
_RING_LL128_MOST = ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 36.7), (40.0, 40.0, 40.0))
_TREE_LL128_MOST = ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
# what is left of a tree's bandwidth at 64 bytes, 128, … 256 MiB
_TREE_LEFT: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ),
}  # fmt: skip
# a ring over several nodes with Simple reaches a plateau: Volta, later ones
_PLATEAU = (1.9, 1.4)
_PLATEAU_BYTES = 64


@dataclass(frozen=True)
class Links:
    """How the ranks of a group are connected, as NCCL's search leaves it.

    ``inside``: wire between the GPUs of a node; ``inside_gb_s``: bus bandwidth of all its channels there, GB/s;
    ``between_gb_s``: that between nodes; ``channels``: how many there are; ``capability``: compute capability, 80 is 8.0;
    ``amd_host``: the hosts have AMD's processors.
    """

    inside: Wire
    inside_gb_s: float
    between_gb_s: float = 0.0
    channels: int = 16
    capability: int = 80
    amd_host: bool = False

    @property
    def generation(self) -> int:
        """0 Volta or Turing, 1 Ampere or Ada, 2 Hopper, 3 Blackwell."""
        return sum(self.capability >= least for least in (80, 90, 100))


@dataclass(frozen=True)
class Way:
    """One way to do an operation, and ns that NCCL expects of it."""

    algorithm: Algorithm
    protocol: Protocol
    ns: float


def ways(op: str, size: int, ranks: int, nodes: int, links: Links) -> list[Way]:
    """All ways of an operation of ``size`` bytes (nccl-tests' S) over ``ranks`` on ``nodes``, the fastest first.

    InputError where NCCL's model does not hold the operation, or the group is none.
    """
    if op not in OPS:
        raise InputError(f"NCCL's tuning model has no {op}", f"it has {', '.join(OPS)}")
    if ranks < 2 or nodes < 1 or ranks % nodes:
        raise InputError(f"{ranks} ranks on {nodes} nodes", "give two ranks or more, as many on each node")
    if nodes > 1 and links.between_gb_s <= 0:
        raise InputError(f"{nodes} nodes, and no bandwidth between them", "give Links its between_gb_s")
    found = [
        Way(algorithm, protocol, _ns(op, size, algorithm, protocol, ranks, nodes, links))
        for algorithm, protocol in _known(op, nodes, links)
    ]
    return sorted(found, key=lambda way: way.ns)


def time_ns(
    op: str, size: int, ranks: int, nodes: int, links: Links, algorithm: str | None = None, protocol: str | None = None
) -> float:
    """ns that NCCL expects: of the way it takes, or of the best with that ``algorithm`` and ``protocol``."""
    found = [
        way
        for way in ways(op, size, ranks, nodes, links)
        if algorithm in (None, way.algorithm) and protocol in (None, way.protocol)
    ]
    if not found:
        wanted = " ".join(filter(None, (algorithm, protocol)))
        raise InputError(f"NCCL does no {op} by {wanted} there", "leave the algorithm or the protocol out")
    return found[0].ns


def _known(op: str, nodes: int, links: Links) -> Iterator[tuple[Algorithm, Protocol]]:
    algorithms: tuple[Algorithm, ...] = ("ring", "tree") if op == "all_reduce" else ("ring",)
    for algorithm in algorithms:
        for protocol in PROTOCOLS:
            if protocol != "LL128" or (links.inside == "nvlink" and links.capability >= 70):
                yield algorithm, protocol
    if op == "all_reduce" and nodes == 1 and links.inside == "nvlink" and links.generation >= 2:
        yield "nvls", "Simple"


def _ns(op: str, size: int, algorithm: Algorithm, protocol: Protocol, ranks: int, nodes: int, links: Links) -> float:
    bus = _bus_gb_s(algorithm, protocol, nodes, links)
    steps = _steps(op, ranks)
    gb_s = bus / 2 if algorithm == "tree" else bus * ranks / steps
    latency = _latency_us(op, algorithm, protocol, ranks, nodes, links) * 1e3
    if algorithm == "tree":
        place = int(math.log2(size >> 6)) if size >= 64 else -1
        gb_s *= _TREE_LEFT[protocol][place] if 0 <= place < len(_TREE_LEFT[protocol]) else 1.0
    simple_ring = algorithm == "ring" and protocol == "Simple"
    if simple_ring and nodes > 1 and op == "all_reduce" and size / (links.channels * ranks) >= _PLATEAU_BYTES:
        latency *= _PLATEAU[min(links.generation, 1)]
    return latency + size / gb_s


def _steps(op: str, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


def _bus_gb_s(algorithm: Algorithm, protocol: Protocol, nodes: int, links: Links) -> float:
    """Bus bandwidth of all channels together."""
    where, kind = min(nodes, 3) - 1, links.generation
    bus = links.inside_gb_s if nodes == 1 else min(links.inside_gb_s, links.between_gb_s)
    ll_most = _LL_MOST[kind if nodes == 1 else int(links.amd_host)][where]
    if algorithm == "nvls":
        return 2 * bus * _NVLS_EFFICIENCY[kind] * (links.channels - 1) / links.channels
    if algorithm == "ring":
        if protocol == "LL":
            return min(ll_most, bus / 2)
        return min(bus * 0.92, links.channels * _RING_LL128_MOST[kind][where]) if protocol == "LL128" else bus
    bus = min(bus * 0.92, links.channels * _TREE_MOST[kind][where])
    if protocol == "LL":
        return min(bus / 3.8, ll_most)
    if protocol == "LL128":
        return min(bus * (7 / 9 if nodes == 1 else 120 / 128), links.channels * _TREE_LL128_MOST[kind][where])
    return bus


def _latency_us(op: str, algorithm: Algorithm, protocol: Protocol, ranks: int, nodes: int, links: Links) -> float:
    if algorithm == "nvls":
        return _NVLS_US
    place = PROTOCOLS.index(protocol)
    base, inside = _BASE[algorithm][place], _STEP[links.inside][algorithm][place]
    # with one rank on a node its latencies are fully exposed, as a tree's are
    outside = _STEP["net"]["tree" if ranks == nodes else algorithm][place]
    if algorithm == "tree":
        return base + 2 * ((ranks // nodes - 1) * inside + int(math.log2(nodes)) * outside)
    if op in ("broadcast", "reduce"):
        return base + (inside if nodes == 1 else outside)
    if nodes > 1:
        inside = max(inside, _NET_US[links.amd_host] * (_NET_SIMPLE if protocol == "Simple" else 1))
    crossings = 0 if nodes == 1 else 2 * (nodes - 1) if op == "all_reduce" else nodes - 1
    return base + (_steps(op, ranks) - crossings) * inside + crossings * outside
