"""A small GPT in plain torch: pre-norm blocks, causal attention, a loss in ``forward`` so that wrappers see one call.

A pipeline takes the same model apart: ``embed`` on the first stage, some of ``blocks`` on each, ``project`` and ``loss`` on
the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import dtprof

ATTENTION = ("sdpa", "math")
Attend = Callable[..., Tensor]  # of q, k, v, each of shape (batch, heads, sequence, width), and is_causal


class Block(nn.Module):
    """One transformer block on (batch, sequence, dim); ``attention`` is "sdpa" (torch picks a kernel) or "math" (in full)."""

    def __init__(self, dim: int, heads: int, attention: str = "sdpa") -> None:
        super().__init__()
        self.width = dim // heads
        self.attend: Attend = functional.scaled_dot_product_attention if attention == "sdpa" else math_attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward layer, each added to its input."""
        # head by head, each with its query, key and value: a share of the rows is that of some of the heads (Megatron-LM)
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (-1, 3, self.width)).permute(3, 0, 2, 1, 4)
        attention = self.attend(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out

    def feed_forward(self, x: Tensor) -> Tensor:
        """The layer behind attention, on its normalised input."""
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


def math_attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    """softmax(q k' / sqrt(d)) v, all matrices of scores in memory; q, k, v of shape (batch, heads, sequence, d)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


class GPT(nn.Module):
    """Token and position embeddings, ``layers`` blocks, a linear head."""

    def __init__(self, vocabulary: int, layers: int, dim: int, heads: int, sequence: int, attention: str = "sdpa") -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(sequence, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def embed(self, inputs: Tensor, places: Tensor | None = None) -> Tensor:
        """Tokens (batch, sequence) to (batch, sequence, dim); ``places`` (sequence,) in the text where not 0, 1, 2, …"""
        places = torch.arange(inputs.shape[1], device=inputs.device) if places is None else places
        x: Tensor = self.tokens(inputs) + self.positions(places)
        return x

    def project(self, x: Tensor) -> Tensor:
        """(batch, sequence, dim) to logits (batch, sequence, vocabulary)."""
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits (batch, sequence, vocabulary) against tokens (batch, sequence)."""
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean next-token cross-entropy of ``tokens`` (batch, sequence + 1)."""
        x = self.embed(tokens[:, :-1])
        for number, block in enumerate(self.blocks):
            with dtprof.annotate("block", layer=f"blocks.{number}"):
                x = block(x)
        return self.loss(self.project(x), tokens[:, 1:])
