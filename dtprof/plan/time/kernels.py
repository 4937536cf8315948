"""Kernels of one rank: matrix products, attention, elementwise work. Seconds throughout this package."""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.plan.constants import Constants
from dtprof.plan.rates import Rates, rates_of
from dtprof.plan.spec import AttentionGeneration, Cluster, Precision, Software

# over FlashAttention 1, with a causal mask: FlashAttention-2 (Dao 2023, figures 4 to 6: 1.7 to 2 times on A100), 3 and cuDNN 9
# on Hopper (Shah et al. 2024, figures 5 and 6: 1.5 to 2 times FlashAttention-2)
_FASTER: dict[AttentionGeneration, float] = {"flash-1": 1.0, "flash-2": 1.8, "flash-3": 2.9, "cudnn": 2.9}
# backward over forward pass: five products to two (Dao et al. 2022, algorithm 4)
FLASH_BACKWARD = 2.5
_HOPPER, _BLACKWELL = 90, 100
# of the tensor cores' rate on Hopper and later that kernels with Ampere's mma instructions reach, as FlashAttention 1 and 2 do;
# what later ones gain is said over these (Luo et al. 2024, Dissecting the Nvidia Hopper GPU Architecture: 62.9% on average)
_MMA = 0.629
# bytes of a value before it is quantized
_READ = 2
_ELEMENT = {"fp32": 4, "tf32": 4, "fp8": 1, "fp4": 0.5}
# elementwise kernels of a compiled layer move a third of what eager ones do: each vector once in and once out
_COMPILED = 1 / 3


@dataclass(frozen=True)
class Device:
    """What one GPU does with this software and these constants: FLOP/s of matrix products (``low`` in the layers' precision,
    ``high`` in 16 bits or more, for the output matrix) and of attention, bytes/s of memory, bytes of an operand; ``quantized``:
    operands are made from 16-bit values first; ``transposes``: in two copies.
    """

    low: float
    high: float
    flash: float
    memory: float
    element: float
    eager: float
    measured: bool
    quantized: bool = False
    transposes: bool = False

    def product(self, m: float, n: float, k: float, *, high: bool = False) -> float:
        """Seconds of an (m x k) (k x n) product: its FLOPs at the rate reached, and its three matrices once through memory."""
        rate, size = (self.high, max(self.element, 2)) if high else (self.low, self.element)
        traffic = max(size, 2) * m * n + size * (n * k + m * k)
        return 2.0 * m * n * k / rate + traffic / self.memory

    def linear(
        self, tokens: float, out: float, inner: float, *, high: bool = False, summed: float = 0.0
    ) -> tuple[float, float]:
        """Seconds of a linear layer's two passes: the backward one has a product for its input and one for its weights, which
        writes ``summed`` bytes more for each weight where it adds to the sum of earlier micro-batches itself.
        """
        backward = self.product(tokens, inner, out, high=high) + self.product(out, inner, tokens, high=high)
        return self.product(tokens, out, inner, high=high), backward + summed * out * inner / self.memory

    def quantizing(self, count: float, reads: int, parts: int) -> float:
        """Seconds of making ``count`` elements operands in 8 or 4 bits, read so often (once for their largest value, unless the
        kernel before has found it); of ``parts`` ranks each makes its part before they are gathered.

        On Hopper a second, transposed copy is made, of what was gathered after that (Transformer Engine's documentation of FP8
        current scaling).
        """
        if not self.quantized:
            return 0.0
        own = (reads * _READ + self.element) / parts
        turned = (self.element if parts == 1 else 2 * self.element) if self.transposes else 0.0
        return (own + turned) * count / self.memory

    def moved(self, count: float) -> float:
        """Seconds of elementwise kernels that move ``count`` bytes in eager mode."""
        return self.eager * count / self.memory


def device(cluster: Cluster, precision: Precision, software: Software, constants: Constants) -> Device:
    """The rates that a GPU of the cluster reaches: ceilings times fitted shares."""
    gpu = cluster.gpu
    low = rates_of(gpu, precision)
    high = low if precision not in ("fp8", "fp4") else rates_of(gpu, "bf16")
    hopper = (gpu.capability or 0) >= _HOPPER
    of_ampere = software.products == "2025" and (gpu.capability or 0) < _BLACKWELL
    share = constants.products(software.products) * cluster.clock
    later = constants.hopper_products if hopper and not of_ampere else 1.0
    fewer_bits = precision in ("fp8", "fp4")
    return Device(
        low=low.matmul * share * later,
        high=high.matmul * share * later,
        flash=_flash(high, software, constants, hopper) * cluster.clock,
        memory=low.memory,
        element=_ELEMENT.get(precision, 2),
        eager=_COMPILED if software.compiled else 1.0,
        measured=low.measured,
        quantized=fewer_bits,
        transposes=(gpu.capability or 0) < _BLACKWELL,
    )


def _flash(rates: Rates, software: Software, constants: Constants, hopper: bool) -> float:
    faster = _FASTER.get(software.attention, 1.0)
    return rates.matmul * constants.flash * faster * (_MMA if hopper else 1.0)
