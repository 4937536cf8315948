"""Context parallelism: causal attention over a sequence that is divided among the ranks of a group.

Splits
    contiguous   rank r has the r-th part. The last part attends to all of the text, the first one to itself alone: of c ranks
                 the last has (2c - 1) / c times the mean of the work.
    zigzag       twice as many parts, of which rank r has the r-th from the beginning and the r-th from the end: all have the
                 same work (torch calls it head-tail load balancing).

Ring (Liu et al., Ring Attention, 2023): keys and values go round the ring, and every rank attends to those that it holds
while the next ones arrive. Results are joined by their log-sum-exp, so that they are exact (Milakov and Gimelshein, 2018; Dao
et al., FlashAttention, 2022). In the backward pass keys and values go round again, and their gradients with them: what one
rank has added the next one gets while it computes its own part.

Ulysses (Jacobs et al., DeepSpeed Ulysses, 2023): an all-to-all gives every rank the whole sequence for some of the heads, and
another one gives the result back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dtprof

SPLITS = ("zigzag", "contiguous")


@dataclass(frozen=True)
class Split:
    """How a sequence is cut, and which parts each rank has."""

    kind: str
    ranks: int

    @property
    def parts(self) -> int:
        """Number of parts, all of one length."""
        return self.ranks * (2 if self.kind == "zigzag" else 1)

    def of(self, rank: int) -> tuple[int, ...]:
        """Numbers of the parts of a rank, ascending."""
        return (rank, self.parts - 1 - rank) if self.kind == "zigzag" else (rank,)

    def places(self, rank: int, sequence: int) -> Tensor:
        """Places in the text of a rank's tokens, int64 of shape (sequence / ranks,)."""
        size = sequence // self.parts
        return torch.cat([torch.arange(part * size, (part + 1) * size) for part in self.of(rank)])

    def pairs(self, rank: int, source: int) -> Iterator[tuple[int, int, float]]:
        """What the queries of ``rank`` attend to of ``source``: (own part, its part, work), parts by their place on the rank.

        The work of a pair of parts is 1, that of a part with itself, where half is masked, 1/2.
        """
        for i, mine in enumerate(self.of(rank)):
            for j, theirs in enumerate(self.of(source)):
                if mine >= theirs:
                    yield i, j, 0.5 if mine == theirs else 1.0

    def work(self, rank: int) -> float:
        """Part of all the work of causal attention that a rank has; the parts of all ranks add up to 1."""
        mine = sum(work for source in range(self.ranks) for *_, work in self.pairs(rank, source))
        return mine / (self.parts**2 / 2)


class Exchange:
    """A message to the next rank of the ring and one from the rank before, under way; a ring of one sends nothing."""

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup) -> None:
        place, size = dist.get_rank(group), dist.get_world_size(group)
        self.sent, self.got, self.works = tensor, tensor, list[dist.Work]()
        if size == 1:
            return
        after, before = (dist.get_global_rank(group, (place + step) % size) for step in (1, -1))
        self.got = torch.empty_like(tensor)
        send, receive = dist.P2POp(dist.isend, tensor, after, group), dist.P2POp(dist.irecv, self.got, before, group)
        self.works = dist.batch_isend_irecv([send, receive])

    def wait(self) -> Tensor:
        """What has come."""
        works, self.works = self.works, []
        if works:
            with dtprof.annotate("ring wait"):
                for work in works:
                    work.wait()
        return self.got


@dataclass(frozen=True)
class Ring:
    """Ring attention of one rank, to be called as torch's ``scaled_dot_product_attention``.

    ``block_ns`` is emulated time of causal attention over the whole sequence, of which this rank takes its part, twice in
    the backward pass. Without ``overlap`` a message is sent when the computing beside it has ended.
    """

    split: Split
    group: dist.ProcessGroup
    block_ns: int = 0
    overlap: bool = True
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", dist.get_rank(self.group))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        """Attention of this rank's queries; q, k, v of shape (batch, heads, sequence / ranks, width)."""
        assert is_causal
        out: Tensor = _RingAttention.apply(q, k, v, self)
        return out

    def turns(self, first: Tensor, compute: Callable[[Tensor, int], None]) -> None:
        """``compute(tensor, source)`` for the tensors of all ranks, one after the other, this rank's own at first."""
        held, size = first, self.split.ranks
        for turn in range(size):
            more = turn < size - 1
            coming = Exchange(held, self.group) if more and self.overlap else None
            with dtprof.annotate(f"ring turn {turn}"):
                compute(held, (self.rank - turn) % size)
            if more:
                held = (coming or Exchange(held, self.group)).wait()

    def blocks(self, source: int, length: int) -> Iterator[tuple[slice, slice, float]]:
        """Slices of this rank's ``length`` queries and of the keys of ``source`` that meet, and the work of each pair."""
        size = length // len(self.split.of(self.rank))
        for i, j, work in self.split.pairs(self.rank, source):
            yield slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size), work

    def take(self, x: Tensor, operator: Callable[[Tensor, int], None], work: float, times: int) -> None:
        """The emulated time of a block."""
        if self.block_ns:
            operator(x, round(times * self.block_ns * work / (self.split.parts**2 / 2)))


def scores(q: Tensor, k: Tensor, work: float) -> Tensor:
    """q k' / sqrt(width) of two parts, masked where they are the same one (``work`` 1/2); float32."""
    found = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])
    if work < 1:
        found = found.masked_fill(torch.ones(found.shape[-2:], dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return found


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Tensor:
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        weight = torch.full((*q.shape[:-1], 1), float("-inf"), device=q.device)  # log of the sum of exp so far

        def attend(held: Tensor, source: int) -> None:
            for mine, theirs, work in ring.blocks(source, q.shape[2]):
                found = scores(q[:, :, mine], held[0, :, :, theirs], work)
                here = found.logsumexp(-1, keepdim=True)
                joined = torch.logaddexp(weight[:, :, mine], here)
                value = (found - joined).exp() @ held[1, :, :, theirs].float()
                total[:, :, mine] = total[:, :, mine] * (weight[:, :, mine] - joined).exp() + value
                weight[:, :, mine] = joined
                ring.take(q, torch.ops.dtprof_lab.forward, work, 1)

        with torch.autocast(q.device.type, enabled=False):
            ring.turns(torch.stack([k, v]), attend)
        out = total.to(q.dtype)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, out, weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        ring: Ring = ctx.ring
        q, k, v, out, weight = ctx.saved_tensors
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        delta = (grad.float() * out.float()).sum(-1, keepdim=True)
        scale, under_way = 1 / math.sqrt(q.shape[-1]), list[Exchange]()

        def attend(held: Tensor, source: int) -> None:
            added = torch.zeros(held.shape, dtype=torch.float32, device=q.device)
            for mine, theirs, work in ring.blocks(source, q.shape[2]):
                key, value, grads = held[0, :, :, theirs].float(), held[1, :, :, theirs].float(), grad[:, :, mine].float()
                share = (scores(q[:, :, mine], key, work) - weight[:, :, mine]).exp()
                change = share * (grads @ value.transpose(-2, -1) - delta[:, :, mine]) * scale
                dq[:, :, mine] += change @ key
                added[0, :, :, theirs] += change.transpose(-2, -1) @ q[:, :, mine].float()
                added[1, :, :, theirs] += share.transpose(-2, -1) @ grads
                ring.take(q, torch.ops.dtprof_lab.backward_input, work, 2)
            if under_way:
                added += under_way.pop().wait()
            under_way.append(Exchange(added, ring.group))
            if not ring.overlap:
                under_way[0].wait()

        with torch.autocast(q.device.type, enabled=False):
            ring.turns(torch.stack([k, v]), attend)
        # the last message brings the gradients of this rank's own keys and values home
        dk, dv = under_way.pop().wait()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


@dataclass(frozen=True)
class Ulysses:
    """Attention of some heads over the whole sequence, to be called as torch's ``scaled_dot_product_attention``.

    ``attend`` computes it; ``block_ns`` is emulated time of all heads, divided among the ranks.
    """

    split: Split
    group: dist.ProcessGroup
    attend: Callable[..., Tensor]
    block_ns: int = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        """Attention of this rank's queries; q, k, v of shape (batch, heads, sequence / ranks, width)."""
        size = self.split.ranks
        places = torch.cat([self.split.places(rank, q.shape[2] * size) for rank in range(size)]).to(q.device)
        # (ranks, 3, batch, heads / ranks, sequence / ranks, width): what goes to each rank, then what comes from each
        heads = torch.stack([q, k, v]).unflatten(2, (size, -1)).movedim(2, 0)
        whole = _AllToAll.apply(heads, self.group).movedim(0, 3).flatten(3, 4)[:, :, :, places.argsort()]
        if self.block_ns:
            whole = _Takes.apply(whole, self.block_ns // size)
        found = self.attend(whole[0], whole[1], whole[2], is_causal=is_causal)
        back = found[:, :, places].unflatten(2, (size, -1)).movedim(2, 0)
        out: Tensor = _AllToAll.apply(back, self.group).movedim(0, 1).flatten(1, 2)
        return out


class _AllToAll(torch.autograd.Function):
    """x[r] goes to rank r, and the result's [r] has come from rank r; the gradients go back in the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return all_to_all(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_to_all(grad, ctx.group), None


def all_to_all(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x[r] of shape (ranks, …) goes to rank r."""
    sent = x.contiguous()
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return got


class _Takes(torch.autograd.Function):
    """The identity, which takes a time in forward and twice as much in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ns: int) -> Tensor:
        ctx.ns = ns
        torch.ops.dtprof_lab.forward(x, ns)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        torch.ops.dtprof_lab.backward_input(grad, 2 * ctx.ns)
        return grad, None
