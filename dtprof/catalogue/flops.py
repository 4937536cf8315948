"""Floating point operations of training transformers, under the conventions by which they are published.

The same step has different FLOP/s by each: name the convention with the number, and compare times rather than shares. All
counts are floats (a step of a model of 291 thousand million parameters does not fit into 64 bits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Counted:
    """What the conventions look at: ``params`` (those that a token is multiplied by: without those of experts that it does not
    visit), ``layers``, ``hidden``, ``seq`` (tokens of a sequence), ``vocab``; ``attention``: width of queries of all heads
    together, ``hidden`` where it is 0.
    """

    params: float
    layers: int
    hidden: int
    seq: int
    vocab: int = 0
    attention: int = 0

    @property
    def _score_width(self) -> float:
        return float(self.layers) * (self.attention or self.hidden) * self.seq


def six_n(model: Counted) -> float:
    """6 N per token: two for the forward pass and four for the backward pass; attention's products are left out.

    Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1.
    """
    return 6.0 * model.params


def palm(model: Counted) -> float:
    """6 N + 12 L h s per token: the whole square of attention's scores, masked or not.

    Chowdhery et al. 2022, PaLM, appendix B. LLM-Foundry counts so.
    """
    return 6.0 * model.params + 12.0 * model._score_width


def causal(model: Counted) -> float:
    """6 N + 6 L h s per token: half of the square, which is what a causal mask leaves.

    Dao 2023, FlashAttention-2, section 4.1 (causal: half). Newer versions of Megatron count so.
    """
    return 6.0 * model.params + 6.0 * model._score_width


def megatron(model: Counted) -> float:
    """72 L h^2 (1 + s / 6h + V / 12 L h) per token: forward and backward, whole square, feed-forward of 4 h, no recomputation.

    Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, appendix, equation 3, without the
    second forward pass; Korthikanti et al. 2022, Reducing Activation Recomputation, appendix A, the model's FLOPs.
    """
    return 72.0 * _square(model) * (1 + model.seq / (6 * model.hidden) + _head(model) / 12)


def megatron_recomputed(model: Counted) -> float:
    """96 L h^2 (1 + s / 6h + V / 16 L h) per token: as ``megatron`` with the layers' forward pass done twice.

    Narayanan et al. 2021, appendix, equation 3: that paper's teraFLOP/s, a hardware utilisation (HFU).
    """
    return 96.0 * _square(model) * (1 + model.seq / (6 * model.hidden) + _head(model) / 16)


def megatron_selective(model: Counted) -> float:
    """72 L h^2 (1 + s / 3h + V / 12 L h) per token: attention's products done again.

    Korthikanti et al. 2022, appendix A, hardware FLOPs with selective recomputation.
    """
    return 72.0 * _square(model) * (1 + model.seq / (3 * model.hidden) + _head(model) / 12)


def palm_recomputed(model: Counted) -> float:
    """4/3 of ``palm``: all of the forward pass done twice; what LLM-Foundry calls HFU with full activation checkpointing."""
    return palm(model) * 4 / 3


# per token, by the name that is printed with the number
CONVENTIONS: Final[dict[str, Callable[[Counted], float]]] = {
    "6N": six_n,
    "PaLM": palm,
    "causal": causal,
    "Megatron": megatron,
    "Megatron, full recompute": megatron_recomputed,
    "Megatron, selective recompute": megatron_selective,
    "PaLM HFU, full recompute": palm_recomputed,
}


def utilisation(per_token: float, tokens_per_s: float, devices: int, peak_flops: float) -> float:
    """Share of the peak of ``devices`` devices: an MFU where ``per_token`` counts the model's FLOPs (PaLM, appendix B), an HFU
    where it counts what is recomputed too. ``tokens_per_s`` is of all devices together, ``peak_flops`` of one, FLOP/s.
    """
    if devices < 1 or not peak_flops > 0:
        raise ValueError("utilisation needs a device and its peak")
    return per_token * tokens_per_s / (devices * peak_flops)


def chinchilla(compute_flops: float) -> tuple[float, float]:
    """Parameters and tokens that make best use of a budget of training FLOPs: C = 6 N D with 20 tokens for each parameter.

    Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, table 3 (approach 1: both grow as the square root).
    """
    if not compute_flops > 0:
        raise ValueError("a budget has to be above 0 FLOPs")
    params = (compute_flops / 120.0) ** 0.5
    return params, 20.0 * params


def device_hours(per_token: float, tokens: float, share: float, peak_flops: float) -> float:
    """Hours of one device for training on ``tokens`` at a utilisation of ``share`` of ``peak_flops`` (FLOP/s of a device)."""
    if not share > 0 or not peak_flops > 0:
        raise ValueError("utilisation and peak have to be above 0")
    return per_token * tokens / (share * peak_flops) / 3600.0


def cost_per_million_tokens(tokens_per_s_device: float, price_per_device_hour: float) -> float:
    """Price of training on a million tokens, in the currency of ``price_per_device_hour``."""
    if not tokens_per_s_device > 0:
        raise ValueError("tokens per second have to be above 0")
    return price_per_device_hour * 1e6 / (tokens_per_s_device * 3600.0)


def _square(model: Counted) -> float:
    return float(model.layers) * float(model.hidden) ** 2


def _head(model: Counted) -> float:
    return model.vocab / (float(model.layers) * model.hidden)
