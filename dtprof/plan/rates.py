"""What matrix products and memory of a GPU reach at best, measured where somebody has measured it."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.catalogue.hardware import Gpu
from dtprof.errors import InputError

_MEASURED_SOURCE = "Bekman, Machine Learning Engineering Open Book, accelerators: maximum achievable matmul FLOP/s (MAMF)"
# 1e12 FLOP/s of the best of many shapes, by GPU and type
_MEASURED: dict[str, dict[str, float]] = {
    "A100 SXM 40GB": {"bf16": 271.2}, "A100 SXM 80GB": {"bf16": 271.2}, "A100 PCIe 40GB": {"bf16": 252.9},
    "A100 PCIe 80GB": {"bf16": 252.9}, "H100 SXM": {"bf16": 794.5, "fp8": 1402.6}, "H200 SXM": {"bf16": 794.5, "fp8": 1453.4},
    "GH200": {"bf16": 828.6}, "B200 SXM": {"bf16": 1745.0, "fp8": 3432.5}, "B300 SXM": {"bf16": 1769.0, "fp8": 3353.3},
    "GB200": {"bf16": 1822.0, "fp8": 3615.6}, "MI300X": {"bf16": 668.4}, "MI325X": {"bf16": 784.9}, "MI355X": {"bf16": 1565.0},
}  # fmt: skip
# of the peak, where nobody measured: the mean of the above over their peaks
_OF_PEAK = 0.80
# fp4 tensor cores do twice as many operations as fp8 ones (NVIDIA Blackwell data sheets, dense)
_FP4 = 2.0


@dataclass(frozen=True)
class Rates:
    """``matmul``: FLOP/s of the best matrix product; ``memory``: bytes/s of its memory; ``source`` of the former in words."""

    matmul: float
    memory: float
    measured: bool
    source: str


def rates_of(gpu: Gpu, precision: str) -> Rates:
    """The ceilings of a GPU for matrix products of this precision; InputError where it has none such."""
    kind = "bf16" if precision == "fp16" and "fp16" not in gpu.tflops else "fp8" if precision == "fp4" else precision
    more = _FP4 if precision == "fp4" else 1.0
    memory = gpu.memory_gb_s * 1e9
    measured = _MEASURED.get(gpu.name, {}).get(kind)
    if measured is not None:
        return Rates(measured * 1e12 * more, memory, True, _MEASURED_SOURCE)
    peak = gpu.flops(kind)
    if peak is None:
        raise InputError(f"{gpu.name} has no {precision} matrix products", f"it has {', '.join(gpu.tflops)}")
    return Rates(_OF_PEAK * peak * more, memory, False, f"{_OF_PEAK:.0%} of the peak in {gpu.source}")
