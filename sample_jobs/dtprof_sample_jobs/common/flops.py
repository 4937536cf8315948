"""Floating point operations of training, and what part of a device's peak they come to."""

from __future__ import annotations

from dtprof.catalogue.flops import Counted, palm, utilisation
from dtprof.catalogue.hardware import gpu_of


def flops_per_token(layers: int, dim: int, sequence: int, vocabulary: int, experts: int = 1) -> float:
    """Model FLOPs of forward and backward per token: 6 N + 12 L d s.

    PaLM (Chowdhery et al. 2022), appendix B: 6 per parameter that is multiplied (12 L d^2 in the blocks, d V in the head,
    none in the embeddings), and 12 L d s for the two products of attention, causal or not. Recomputation does not count.
    With a mixture of experts each token is multiplied by the 8 d^2 of a feed-forward layer ``experts`` times.
    """
    return palm(Counted((4 + 8 * experts) * layers * dim**2 + dim * vocabulary, layers, dim, sequence))


def mfu(tokens_per_s: float, per_token: float, devices: int, device: str, precision: str) -> float | None:
    """Model FLOPs utilisation (PaLM, appendix B) by the dense peak in the catalogue; None where that is not known."""
    gpu = gpu_of(device)
    peak = gpu.flops(precision) if gpu else None
    return utilisation(per_token, tokens_per_s, devices, peak) if peak else None
