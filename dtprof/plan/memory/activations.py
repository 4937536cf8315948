"""What one layer keeps of one micro-batch for its backward pass, on one rank.

Korthikanti et al. 2022, equations 1 to 6 and table 2, written for any widths: with sequence length s, micro-batch b, hidden
size h, a heads, tensor-parallel size t and a feed-forward part of 4 h they come to s b h (34 + 5 a s / h) without parallelism,
s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism, all divided by t with sequence parallelism, 2 s b h with full
recomputation, and without the term in a s with selective recomputation or with attention that does not write scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.plan.memory.states import element_bytes
from dtprof.plan.spec import Layout, Model, Software


@dataclass(frozen=True)
class Kept:
    """Bytes of one layer and one micro-batch: ``kept`` until its backward pass; ``working``: what it computes again and the
    gradients of what it computed, while its backward pass runs.
    """

    kept: float
    working: float


def tokens(layout: Layout) -> float:
    """Tokens of a micro-batch on one rank, before sequence parallelism."""
    return layout.micro_batch * layout.seq / layout.cp


def sequence_parts(layout: Layout) -> int:
    """Ranks that share what lies outside of the tensor-parallel region."""
    return layout.tp if layout.sequence_parallel else 1


def per_layer(model: Model, layout: Layout, software: Software, *, experts: bool) -> Kept:
    """Of a layer with an ordinary feed-forward part, or with ``experts``."""
    shape = _Shape(model, layout)
    feed = shape.routed() if experts else shape.feed_forward(model.ffn, software)
    whole = shape.attention() + shape.scores() + feed
    backward = shape.gradients(experts)
    if layout.recompute == "full":
        kept, again = shape.hidden(1), whole
    elif by_operation(layout, software):
        kept, again = shape.by_operation(experts), whole
    elif by_block(layout, software):
        kept, again = (whole + shape.hidden(1)) / 2, whole
    elif layout.recompute == "selective":
        kept, again = whole - shape.scores(), shape.scores()
    else:
        kept, again = whole, 0.0
    count = tokens(layout)
    return Kept(count * kept, count * (again + backward))


def by_operation(layout: Layout, software: Software) -> bool:
    """Selective recomputation chosen by operation, as FSDP2's users have it (torchtitan): attention's results and every other
    matrix product are kept. With other software ``selective`` means attention's core (Korthikanti et al. 2022, section 5).
    """
    return layout.recompute == "selective" and software.fsdp == 2


def by_block(layout: Layout, software: Software) -> bool:
    """Selective recomputation of whole blocks, as with FSDP of flat parameters: every other one here, as users choose."""
    return layout.recompute == "selective" and software.fsdp == 1


class _Shape:
    """Bytes per token of the parts of a layer; what is parted over tp, and over the sequence, is divided here."""

    def __init__(self, model: Model, layout: Layout) -> None:
        self.model, self.layout = model, layout
        self.size = element_bytes(layout.precision)
        self.outside = sequence_parts(layout)
        # models with learned positions whose attention writes its scores have dropout: masks of a byte
        self.masks = 1 if model.positions == "learned" and layout.attention == "unfused" else 0
        mla = model.mla
        if mla is None:
            self.queries = model.heads * model.head_dim / layout.tp
            # heads of keys that are fewer than ranks lie on several
            self.keys = self.values = max(model.kv_heads / layout.tp, 1) * model.head_dim
            self.mixed, self.latent = self.queries, 0
        else:
            heads = model.heads / layout.tp
            self.queries = self.keys = heads * (mla.nope_dim + mla.rope_dim)
            self.values = self.mixed = heads * mla.v_dim
            self.latent = mla.kv_rank + mla.rope_dim + mla.q_rank

    def hidden(self, count: float) -> float:
        """``count`` vectors of the hidden size."""
        return count * self.size * self.model.hidden / self.outside

    def _norm_and_mask(self) -> float:
        """A norm's input and output, and the mask of the dropout before the residual sum."""
        return self.hidden(2) + self.masks * self.model.hidden / self.outside

    def attention(self) -> float:
        """All but scores: norm, queries, keys, values, result, sums of its softmax; latent vectors before and after norm."""
        inner = self.size * (self.queries + self.keys + self.values + self.mixed + 2 * self.latent)
        return self._norm_and_mask() + inner + 4 * self.model.heads / self.layout.tp

    def scores(self) -> float:
        """Softmax's result, and with dropout its mask and result: 5 a s in 16 bits; 0 where scores are not written."""
        if self.layout.attention != "unfused":
            return 0.0
        each = 2 * self.size + 1 if self.masks else self.size
        return each * self.model.heads / self.layout.tp * self.layout.seq

    def feed_forward(self, inner: int, software: Software) -> float:
        """Norm, what goes into and comes out of the activation, and of the product with the gate."""
        return self._norm_and_mask() + self.size * self._wide(software) * inner / self.layout.tp

    def _wide(self, software: Software) -> int:
        if not self.model.gated:
            return 2
        return 3 if software.compiled else 4

    def routed(self) -> float:
        """Norm, router, shared experts, and the routed ones' tokens (balanced): in, out, thrice or twice the inner size."""
        moe = self.model.moe
        assert moe is not None
        wide = 3 if self.model.gated else 2
        shared = self.size * wide * moe.shared * moe.ffn / self.layout.tp
        router = 3 * 4 * moe.experts / self.outside
        each = self.size * (2 * self.model.hidden * self.layout.etp + wide * moe.ffn)
        return self._norm_and_mask() + router + shared + moe.top_k * each / self.outside

    def by_operation(self, experts: bool) -> float:
        """Input, attention's result and sums, and of query, key, value, output, gate, up, down the first, third, …"""
        moe = self.model.moe
        out = self.hidden(1) + self.size * (self.queries + self.values + self.mixed) + 4 * self.model.heads / self.layout.tp
        down = self.hidden(1) if self.model.gated else 0.0
        if experts and moe is not None:
            visited = (moe.shared / self.layout.tp + moe.top_k / self.outside) * moe.ffn
            return out + self.size * visited + down
        return out + self.size * self.model.ffn / self.layout.tp + down

    def gradients(self, experts: bool) -> float:
        """Of two hidden vectors and of the two widest results of a layer, in its backward pass."""
        moe = self.model.moe
        if experts and moe is not None:
            wide = moe.top_k * max(moe.ffn, self.model.hidden) / self.outside
        else:
            wide = self.model.ffn / self.layout.tp
        return self.hidden(2) + 2 * self.size * wide
