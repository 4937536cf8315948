"""What well-tuned trainings reach of a device's peak: published model FLOPs utilisations of dense transformers in bf16."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usual:
    """``low`` to ``high``: shares of the dense bf16 peak; ``source``: where they were published."""

    low: float
    high: float
    source: str


_A100 = Usual(
    0.44, 0.52, "Narayanan et al. 2021, table 1: 44 to 52% of 312 TFLOP/s on up to 3,072 A100 (recomputation counted)"
)
_H100 = Usual(0.38, 0.43, "The Llama 3 Herd of Models 2024, table 4: 38 to 43% of 989 TFLOP/s on 8,192 and 16,384 H100")

# by the names of dtprof.catalogue.hardware; H200 and GH200 have the H100's processor
_BY_DEVICE = {
    "A100 SXM 80GB": _A100, "A100 SXM 40GB": _A100, "H100 SXM": _H100, "H200 SXM": _H100, "GH200": _H100,
}  # fmt: skip


def usual_mfu(device: str) -> Usual | None:
    """What is usual on a device of the catalogue; None where nobody has published it."""
    return _BY_DEVICE.get(device)
