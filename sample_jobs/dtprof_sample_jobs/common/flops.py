"""Floating point operations of training, and what part of a device's peak they come to."""

from __future__ import annotations

# dense, without sparsity, in 10^12 per second, by a part of the device's name and the precision; NVIDIA's data sheets:
# A100 80GB (2021), H100 SXM and PCIe (2022), H200 (2024), B200 (2024)
PEAKS = {
    "A100": {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0},
    "H100 PCIe": {"fp32": 51.0, "tf32": 378.0, "bf16": 756.0},
    "H100": {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5},
    "H200": {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5},
    "B200": {"fp32": 75.0, "tf32": 1100.0, "bf16": 2250.0},
}


def flops_per_token(layers: int, dim: int, sequence: int, vocabulary: int, experts: int = 1) -> int:
    """Model FLOPs of forward and backward per token: 6 N + 12 L d s.

    PaLM (Chowdhery et al. 2022), appendix B: 6 per parameter that is multiplied (12 L d^2 in the blocks, d V in the head,
    none in the embeddings), and 12 L d s for the two products of attention, causal or not. Recomputation does not count.
    With a mixture of experts each token is multiplied by the 8 d^2 of a feed-forward layer ``experts`` times.
    Megatron-LM (Narayanan et al. 2021) counts the same: 72 L d^2 (1 + s / 6 d + V / 12 L d), a third more with recomputation.
    """
    return 6 * ((4 + 8 * experts) * layers * dim**2 + dim * vocabulary) + 12 * layers * dim * sequence


def peak(device: str, precision: str) -> float | None:
    """Dense peak of a device in FLOP/s, or None where it is not known."""
    found = next((peaks for name, peaks in PEAKS.items() if name in device), None)
    return found[precision] * 1e12 if found else None


def mfu(tokens_per_s: float, per_token: int, devices: int, device: str, precision: str) -> float | None:
    """Model FLOPs utilisation (PaLM, appendix B): tokens per second of all devices, over what their peak allows; or None."""
    best = peak(device, precision)
    return tokens_per_s * per_token / (devices * best) if best else None
