"""What processors and links can do at best: dense peaks, memory, and what connects them, by the names that drivers give.

Every entry names the vendor's document that its figures stand in. Rates of links are per direction and of the line: no protocol
reaches them. A rate that a document gives for both directions together is halved here. FLOP/s are dense, accumulated in
fp32, at the boost clock; what a matrix product reaches is less (about 70 to 90%).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Fabric = Literal["nvlink", "xgmi"]
_ROUND = 1e12


@dataclass(frozen=True)
class Fast:
    """The links of one GPU to the other GPUs of its host.

    ``links`` of ``link_gb_s`` each (GB/s per direction); ``reach``: ``all`` peers at the full rate (a switch, or links to all
    that add up), ``some`` (a mesh, where it depends on who is asked for), ``pair`` (a bridge between two cards).
    """

    fabric: Fabric
    links: int
    link_gb_s: float
    reach: Literal["all", "some", "pair"] = "all"

    @property
    def gb_s(self) -> float:
        """All links of a GPU together, GB/s per direction."""
        return self.links * self.link_gb_s


@dataclass(frozen=True)
class Gpu:
    """One GPU as a driver names it.

    ``pattern`` matches that name; ``tflops``: type -> dense peak, 1e12 FLOP/s; ``memory_gb``: sizes that are sold, 1e9 bytes;
    ``memory_gb_s``; ``capability``: CUDA compute capability times ten, None for others; ``pcie``: generation, x16; ``fast``:
    None where cards are connected by PCIe alone; ``source``: the vendor's document.
    """

    name: str
    pattern: str
    tflops: dict[str, float]
    memory_gb: tuple[int, ...]
    memory_gb_s: float
    capability: int | None
    pcie: int
    source: str
    fast: Fast | None = None

    def flops(self, dtype: str) -> float | None:
        """Dense peak in FLOP/s; ``bf16`` stands for ``fp16`` and the other way round where one of them is not named."""
        other = {"bf16": "fp16", "fp16": "bf16"}.get(dtype)
        found = self.tflops.get(dtype)
        if found is None and other and self.capability != 70 and self.capability != 75:
            found = self.tflops.get(other)
        return None if found is None else found * _ROUND


def _nvlink(links: int, link_gb_s: float, reach: Literal["all", "some", "pair"] = "all") -> Fast:
    return Fast("nvlink", links, link_gb_s, reach)


_H100 = {"bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 66.9}
_A100 = {"bf16": 312.0, "tf32": 156.0, "fp32": 19.5}
_MI300 = {"bf16": 1307.4, "fp8": 2614.9, "tf32": 653.7, "fp32": 163.4}
_A100_DOC = "NVIDIA A100 Tensor Core GPU data sheet"
_H100_DOC = "NVIDIA H100 Tensor Core GPU Architecture, table 3"
_V100_DOC = "NVIDIA V100 Tensor Core GPU data sheet"

# the first pattern that matches counts
GPUS: tuple[Gpu, ...] = (
    Gpu("GB300", r"GB300", {"bf16": 2500, "fp8": 5000}, (288,), 8000, 103, 6,
        "NVIDIA GB300 NVL72 data sheet, a 72nd of it", _nvlink(18, 50)),
    Gpu("B300 SXM", r"\bB300", {"bf16": 2250, "fp8": 4500}, (288,), 8000, 103, 6,
        "NVIDIA DGX B300 data sheet, an eighth of it", _nvlink(18, 50)),
    Gpu("GB200", r"GB200", {"bf16": 2500, "fp8": 5000}, (186,), 8000, 100, 5,
        "NVIDIA GB200 NVL72 data sheet, a 72nd of it", _nvlink(18, 50)),
    Gpu("B200 SXM", r"\bB200", {"bf16": 2250, "fp8": 4500}, (180,), 8000, 100, 5,
        "NVIDIA DGX B200 data sheet, an eighth of it", _nvlink(18, 50)),
    Gpu("GH200", r"GH200", _H100, (96, 144), 4000, 90, 5, "NVIDIA GH200 Grace Hopper Superchip data sheet, with HBM3",
        _nvlink(18, 25)),
    Gpu("H200 SXM", r"\bH200(?! NVL)", _H100, (141,), 4800, 90, 5, "NVIDIA H200 Tensor Core GPU data sheet", _nvlink(18, 25)),
    Gpu("H100 NVL", r"\bH100 NVL", {"bf16": 835, "fp8": 1671, "tf32": 417, "fp32": 60}, (94,), 3900, 90, 5,
        "NVIDIA H100 Tensor Core GPU data sheet, H100 NVL", _nvlink(12, 25, "pair")),
    Gpu("H100 PCIe", r"\bH100 PCIe", {"bf16": 756, "fp8": 1513, "tf32": 378, "fp32": 51.2}, (80,), 2000, 90, 5, _H100_DOC,
        _nvlink(12, 25, "pair")),
    Gpu("H100 SXM", r"\bH100", _H100, (80,), 3350, 90, 5, _H100_DOC, _nvlink(18, 25)),
    Gpu("A100 PCIe 80GB", r"\bA100[- ]PCIE-80GB|\bA100 80GB PCIe", _A100, (80,), 1935, 80, 4, _A100_DOC,
        _nvlink(12, 25, "pair")),
    Gpu("A100 PCIe 40GB", r"\bA100[- ]PCIE", _A100, (40,), 1555, 80, 4, _A100_DOC, _nvlink(12, 25, "pair")),
    Gpu("A100 SXM 80GB", r"\bA100[- ]SXM\w*-80GB", _A100, (80,), 2039, 80, 4, _A100_DOC, _nvlink(12, 25)),
    # PG509 is the board of the SXM4 module
    Gpu("A100 SXM 40GB", r"\bA100[- ]SXM|\bA100-PG509", _A100, (40,), 1555, 80, 4, _A100_DOC, _nvlink(12, 25)),
    Gpu("V100 SXM2", r"\bV100-SXM", {"fp16": 125.0, "fp32": 15.7}, (16, 32), 900, 70, 3, _V100_DOC, _nvlink(6, 25, "some")),
    Gpu("V100 PCIe", r"\bV100-PCIE", {"fp16": 112.0, "fp32": 14.0}, (16, 32), 900, 70, 3, _V100_DOC),
    Gpu("L40S", r"\bL40S", {"bf16": 362.0, "fp8": 733.0, "tf32": 183.0, "fp32": 91.6}, (48,), 864, 89, 4,
        "NVIDIA L40S data sheet"),
    Gpu("L4", r"\bL4\b", {"bf16": 121.0, "fp8": 242.5, "tf32": 60.0, "fp32": 30.3}, (24,), 300, 89, 4,
        "NVIDIA L4 Tensor Core GPU data sheet; its figures with sparsity, halved"),
    Gpu("A40", r"\bA40\b", {"bf16": 149.7, "tf32": 74.8, "fp32": 37.4}, (48,), 696, 86, 4, "NVIDIA A40 data sheet",
        _nvlink(4, 14.0625, "pair")),
    Gpu("A10", r"\bA10\b", {"bf16": 125.0, "tf32": 62.5, "fp32": 31.2}, (24,), 600, 86, 4, "NVIDIA A10 data sheet"),
    Gpu("T4", r"\bT4\b", {"fp16": 65.0, "fp32": 8.1}, (16,), 320, 75, 3, "NVIDIA T4 data sheet"),
    Gpu("RTX 4090", r"\bRTX 4090(?! ?[DL])", {"bf16": 165.2, "fp8": 330.3, "tf32": 82.6, "fp32": 82.6}, (24,), 1008, 89, 4,
        "NVIDIA Ada GPU Architecture, appendix A"),
    Gpu("RTX 3090", r"\bRTX 3090(?! Ti)", {"bf16": 71.0, "tf32": 35.6, "fp32": 35.6}, (24,), 936, 86, 4,
        "NVIDIA Ampere GA102 GPU Architecture, appendix A", _nvlink(4, 14.0625, "pair")),
    Gpu("MI355X", r"\bMI355X", {"bf16": 2516.6, "fp8": 5033.2, "fp32": 157.3}, (288,), 8000, None, 5,
        "AMD Instinct MI355X data sheet; its rate of a link is of both directions", Fast("xgmi", 7, 76.8)),
    Gpu("MI325X", r"\bMI325X", _MI300, (256,), 6000, None, 5, "AMD Instinct MI325X data sheet", Fast("xgmi", 7, 64)),
    Gpu("MI300X", r"\bMI300X", _MI300, (192,), 5300, None, 5, "AMD Instinct MI300X data sheet", Fast("xgmi", 7, 64)),
    Gpu("MI250X", r"\bMI250X", {"bf16": 191.5, "fp32": 23.9}, (64,), 1638, None, 4,
        "AMD Instinct MI250X data sheet; a device is one of its two dies, half of it"),
)  # fmt: skip

# GB/s per direction of 16 lanes after the line code: 8 GT/s a lane and 128b/130b in generation 3, twice that in each later one
PCIE_X16_GB_S = {3: 15.75, 4: 31.5, 5: 63.0, 6: 126.0}
PCIE_SOURCE = "PCI Express Base Specification, revisions 3.0 to 6.0"
# Gb/s per direction of one port of four lanes
NETWORKS_GBIT = {"InfiniBand EDR": 100, "InfiniBand HDR": 200, "InfiniBand NDR": 400, "InfiniBand XDR": 800}
NETWORKS_SOURCE = "InfiniBand Trade Association, InfiniBand roadmap"
# a share of a device has neither its peaks nor its links
_PARTS = re.compile(r"\bMIG\b|\bGRID\b")
_PATTERNS = [(re.compile(gpu.pattern, re.IGNORECASE), gpu) for gpu in GPUS]


def gpu_of(name: str | None) -> Gpu | None:
    """The GPU that a driver calls ``name`` (``NVIDIA H100 80GB HBM3``); None where it is not listed, or a part of one."""
    if not name or _PARTS.search(name):
        return None
    return next((gpu for pattern, gpu in _PATTERNS if pattern.search(name)), None)


def network_of(gbit: float) -> str | None:
    """The network whose port has so many Gb/s; None for others."""
    return next((name for name, rate in NETWORKS_GBIT.items() if rate == gbit), None)
