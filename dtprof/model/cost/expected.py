"""What a group's links allow: the time of one of its operations, where nobody has measured it, as a range.

From NCCL's own model (``nccl``) and what measured all-reduces of 1 MiB to 1 GiB on one host were found to take beside it:
t = base + step (2 (n - 1)) + S / memory + 2 (n - 1) / n S / links. The last two add up on Ampere, where a ring is not bound by
its links alone. Fitted on every second size of 2, 4 and 8 GPUs; docs/predict.md has the errors on the other sizes and groups.
Where nothing was fitted the range begins at NCCL's own time and ends where the measured ones were seen to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtprof.catalogue.collectives import busbw_factor
from dtprof.catalogue.hardware import PCIE_X16_GB_S, Gpu
from dtprof.model.cost.nccl import OPS, Links, time_ns

_MIB = 1 << 20
# GB/s that NCCL counts for an NVLink (src/graph/topo.h), from each compute capability on
_NCCL_NVLINK = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0))
# channels that NCCL makes on a host full of them, from each compute capability on
_CHANNELS = ((100, 32), (90, 16), (80, 24), (0, 12))
# a ring over PCIe shares the host's bridges: at least so much of the line is left to it
_LEAST_PCIE = 0.4
_FULL_HOST = 8


@dataclass(frozen=True)
class Fitted:
    """What was measured of one architecture: us, us per step, GB/s or None, share of the line, relative half-width (90%)."""

    base_us: float
    step_us: float
    memory_gb_s: float | None
    share: float
    spread: float


# by compute capability; on A100-SXM4 with NVSwitch, and on V100-SXM2 in a mesh
FITTED = {80: Fitted(38.5, 2.97, 473.5, 1.036, 0.10), 70: Fitted(23.3, 3.08, None, 0.903, 0.10)}
# elsewhere: how far measured times were seen to lie above NCCL's own
_MORE, _MORE_NS = 1.25, 60e3
# over nodes healthy groups were seen to take from so much less than NCCL's own to so much more, below and from a size on
_LESS_BETWEEN, _MORE_BETWEEN, _LARGE_BETWEEN = 1.2, (5.0, 1.5), 16 * _MIB


@dataclass(frozen=True)
class Expectation:
    """ns that an operation should take: the shortest and the longest that is plausible; ``source`` in words."""

    low_ns: float
    high_ns: float
    source: str

    @property
    def ns(self) -> float:
        """The middle."""
        return (self.low_ns + self.high_ns) / 2


def expected(
    op: str, size: int, ranks: int, nodes: int, gpu: Gpu, between: tuple[float, float] | None = None
) -> Expectation | str:
    """What an operation of ``size`` bytes (nccl-tests' S) should take over ``ranks`` GPUs on ``nodes``; or why nobody knows.

    ``between``: GB/s of the line between nodes, the least and the most that it may be.
    """
    if nodes > 1 and between is None:
        return "the group spans several hosts, and what lies between them is not recorded"
    if op not in OPS:
        return f"what {op} should take is not modelled"
    factor = busbw_factor(op, ranks)
    lines = lines_of(gpu, ranks)
    if factor is None or ranks < 2:
        return "one rank alone moves nothing"
    if nodes > 1 and between is not None:
        return _over_nodes(op, size, ranks, nodes, gpu, between)
    told = f"{gpu.name} ({gpu.source})"
    if gpu.capability is None:
        best = factor * size / max(lines)
        return Expectation(best, best * _MORE + _MORE_NS, f"the line rate of {told}")
    times = [_of_line(op, size, ranks, gpu, gpu.capability, line) for line in lines]
    fitted = gpu.capability in FITTED and gpu.fast is not None
    what = "measured all-reduces of its like" if fitted else "NCCL's own constants"
    return Expectation(min(t[0] for t in times), max(t[1] for t in times), f"{told} and {what}")


def _over_nodes(op: str, size: int, ranks: int, nodes: int, gpu: Gpu, between: tuple[float, float]) -> Expectation | str:
    if ranks % nodes:
        return f"its {ranks} ranks are spread unevenly over {nodes} hosts"
    least, most = between
    # a lone rank on its host has no links inside
    inside = lines_of(gpu, ranks // nodes) if ranks > nodes else between
    low = _between(op, size, ranks, nodes, gpu, max(inside), most) / _LESS_BETWEEN
    if op == "all_reduce" and nodes == 2:
        # a tree over two nodes sends each byte once over the line between them
        low = min(low, size / min(most, max(inside)))
    more = _MORE_BETWEEN[size >= _LARGE_BETWEEN]
    high = _between(op, size, ranks, nodes, gpu, min(inside), least) * more + _MORE_NS
    rates = f"{most:.3g}" if most < 1.02 * least else f"{least:.3g} to {most:.3g}"
    return Expectation(low, high, f"{rates} GB/s that the ports between its {nodes} hosts have, and NCCL's own constants")


def _between(op: str, size: int, ranks: int, nodes: int, gpu: Gpu, inside: float, between: float) -> float:
    if gpu.capability is None:
        return (busbw_factor(op, ranks) or 1.0) * size / min(inside, between)
    links = replace(links_of(gpu, gpu.capability, inside), between_gb_s=between)
    return time_ns(op, size, ranks, nodes, links)


def lines_of(gpu: Gpu, ranks: int) -> tuple[float, ...]:
    """GB/s per direction of a GPU's links to its peers: the least and the most, where the group does not say."""
    pcie = PCIE_X16_GB_S[gpu.pcie]
    if gpu.fast is None:
        return _LEAST_PCIE * pcie, pcie
    if gpu.fast.reach == "pair":
        return (_LEAST_PCIE * pcie, gpu.fast.gb_s) if ranks == 2 else (_LEAST_PCIE * pcie, pcie)
    if gpu.fast.reach == "some" and ranks < _FULL_HOST:
        return gpu.fast.link_gb_s, gpu.fast.gb_s
    return (gpu.fast.gb_s,)


def _of_line(op: str, size: int, ranks: int, gpu: Gpu, capability: int, line: float) -> tuple[float, float]:
    """The shortest and the longest time over links of ``line`` GB/s, ns."""
    links = links_of(gpu, capability, line)
    own = time_ns(op, size, ranks, 1, links)
    fit = FITTED.get(capability)
    if fit is None or links.inside != "nvlink":
        return own, own * _MORE + _MORE_NS
    if size >= _MIB:
        ns = _measured(fit, op, size, ranks, line)
        return ns * (1 - fit.spread), ns * (1 + fit.spread)
    # below what was measured: NCCL's own, and what it lacked at the smallest measured size
    return own, own * max(1.0, _measured(fit, op, _MIB, ranks, line) / time_ns(op, _MIB, ranks, 1, links)) * (1 + fit.spread)


def _measured(fit: Fitted, op: str, size: float, ranks: int, line: float) -> float:
    """ns by the fitted form; the halves of an all-reduce take half of its steps and of its passes over memory."""
    half = 1.0 if op == "all_reduce" else 0.5
    moved = (busbw_factor(op, ranks) or 1.0) * size / (fit.share * line)
    memory = half * size / fit.memory_gb_s if fit.memory_gb_s else 0.0
    return (fit.base_us + fit.step_us * half * 2 * (ranks - 1)) * 1e3 + memory + moved


def links_of(gpu: Gpu, capability: int, line: float) -> Links:
    """The links of a host as NCCL counts them, for GPUs with ``line`` GB/s to their peers."""
    channels = next(count for least, count in _CHANNELS if capability >= least)
    if gpu.fast is None or line <= PCIE_X16_GB_S[gpu.pcie]:
        return Links("pci", line, channels=channels, capability=capability)
    counted = next((rate for least, rate in _NCCL_NVLINK if capability >= least), gpu.fast.link_gb_s)
    return Links("nvlink", line / gpu.fast.link_gb_s * counted, channels=channels, capability=capability)
