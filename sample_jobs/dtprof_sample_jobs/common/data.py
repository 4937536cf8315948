"""Synthetic tokens: every rank and step has its own batch, the same in every run with the same seed."""

from __future__ import annotations

import torch
from torch import Tensor


class SyntheticTokens:
    """``batch(step)`` gives int64 tokens of shape (batch, sequence + 1)."""

    def __init__(self, vocabulary: int, batch: int, sequence: int, *, seed: int, rank: int) -> None:
        self.vocabulary, self.shape, self.seed, self.rank = vocabulary, (batch, sequence + 1), seed, rank

    def batch(self, step: int) -> Tensor:
        """The batch of a step, on the host."""
        generator = torch.Generator().manual_seed(hash((self.seed, self.rank, step)) % 2**31)
        return torch.randint(self.vocabulary, self.shape, generator=generator)
