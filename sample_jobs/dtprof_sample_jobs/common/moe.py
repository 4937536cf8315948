"""A mixture of experts on (tokens, dim): top-k router, uneven all-to-all to the ranks that have the experts, and back.

Router probabilities p are a softmax over the experts; a token goes to its k experts of largest p, and what they return is added
with weights p, normalised over the k (Shazeer et al. 2017; Mixtral, 2024). With a capacity factor c an expert takes at most
ceil(c k T / E) of the T tokens of each rank, in their order; the assignments beyond are dropped (GShard, Lepikhin et al. 2020).
The auxiliary loss of a layer is E sum_e f_e P_e, with f_e the part of the assignments that are e's and P_e the mean of p over
the rank's tokens (Switch Transformer, Fedus et al. 2021, eq. 4): 1 where all experts have equally many.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import dtprof
from dtprof_sample_jobs.common.delay import left
from dtprof_sample_jobs.common.emulate import EmulatedLayer, Through
from dtprof_sample_jobs.common.model import Block

Splits = list[int]


@dataclass(frozen=True)
class Skew:
    """Planted: of every rank's tokens the first ``share`` choose ``expert``, and no other does."""

    expert: int
    share: float


@dataclass(frozen=True)
class Routing:
    """``experts`` in all, ``top_k`` of them per token; ``capacity`` is the factor c or None; ``token_ns``: see Expert."""

    experts: int
    top_k: int
    capacity: float | None = None
    token_ns: int = 0
    skew: Skew | None = None


class Expert(nn.Module):
    """Two matrices with GELU between them, (tokens, dim) to the same.

    Where ``token_ns`` is not 0 it takes so long per token, and twice as much in backward, besides what backward computes.
    """

    def __init__(self, dim: int, hidden: int, token_ns: int) -> None:
        super().__init__()
        self.up, self.down, self.token_ns = nn.Linear(dim, hidden), nn.Linear(hidden, dim), token_ns

    def forward(self, x: Tensor) -> Tensor:
        """What the expert makes of its tokens, which may be none."""
        began, ns = time.perf_counter_ns(), self.token_ns * len(x)
        out: Tensor = self.down(functional.gelu(self.up(x)))
        if ns:
            torch.ops.dtprof_lab.forward(x.detach(), left(ns, began, x.device))
            out = Through.apply(out, 2 * ns)
        return out


class _AllToAll(torch.autograd.Function):
    """Rows to the ranks of a group, ``sends[r]`` of them to rank r, and gradients the way back; in a range, named here."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, name: str, layer: str, sends: Splits, receives: Splits, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.name, ctx.layer, ctx.sends, ctx.receives, ctx.group = name, layer, sends, receives, group
        with dtprof.annotate(name, layer=layer):
            return _exchange(x, sends, receives, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with dtprof.annotate(f"{ctx.name} backward", phase="backward", layer=ctx.layer):
            return _exchange(grad, ctx.receives, ctx.sends, ctx.group), None, None, None, None, None


def _exchange(x: Tensor, sends: Splits, receives: Splits, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((sum(receives), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), receives, sends, group=group)
    return out


class MixtureOfExperts(nn.Module):
    """All experts at first, the same on every rank; after ``keep`` those of this rank alone. ``layer`` is its name in tags.

    After a forward pass ``tokens`` says what each expert of this rank computed, ``dropped`` what this rank's tokens could not
    send to each of all, ``aux`` is the auxiliary loss.
    """

    def __init__(self, dim: int, hidden: int, routing: Routing, layer: str) -> None:
        super().__init__()
        self.routing, self.layer = routing, layer
        self.router = nn.Linear(dim, routing.experts, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert(dim, hidden, routing.token_ns) for e in range(routing.experts)})
        self.tokens: dict[int, int] = {}
        self.dropped: Splits = []
        self.aux = torch.zeros(())

    def keep(self, group: dist.ProcessGroup) -> None:
        """Divide the experts among the ranks of ``group``, neighbours together."""
        self.group, self.size = group, dist.get_world_size(group)
        each = self.routing.experts // self.size
        first = dist.get_rank(group) * each
        self.experts = nn.ModuleDict({str(e): self.experts[str(e)] for e in range(first, first + each)})

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of every token, (T, k), and their weights; sets ``aux``."""
        many, k, skew = self.routing.experts, self.routing.top_k, self.routing.skew
        with dtprof.annotate("router", layer=self.layer), torch.autocast(x.device.type, enabled=False):
            p = self.router(x.float()).softmax(-1)
            scores = p.detach().clone()
            if skew is not None:
                scores[:, skew.expert] = -1
                scores[: round(skew.share * len(x)), skew.expert] = 2
            chosen = scores.topk(k).indices
            part = functional.one_hot(chosen, many).sum((0, 1)) / (k * max(len(x), 1))
            self.aux = many * (part * p.mean(0)).sum()
            weights = p.gather(1, chosen)
            return chosen, weights / weights.sum(1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """Weighted sum of what the chosen experts make of each token; x of shape (…, dim)."""
        flat = x.flatten(0, -2)
        chosen, weights = self.choose(flat)
        order, sends = self._within_capacity(chosen)
        local = len(self.experts)
        table = sends.view(self.size, local)
        theirs = torch.empty_like(table)
        with dtprof.annotate("token counts", layer=self.layer):
            dist.all_to_all_single(theirs, table, group=self.group)
        # the host needs the counts, and waits for the device to have them
        outgoing, incoming, counts = table.sum(1).tolist(), theirs.sum(1).tolist(), theirs.sum(0).tolist()
        token = order // self.routing.top_k
        received = _AllToAll.apply(flat[token], "dispatch", self.layer, outgoing, incoming, self.group)
        # from (rank, expert) to (expert, rank), so that each expert has one piece
        expert_of = torch.arange(local, device=x.device).repeat(self.size).repeat_interleave(theirs.flatten())
        by_expert = expert_of.argsort(stable=True)
        computed = torch.cat(self._compute(received[by_expert].split(counts)))
        back = computed[by_expert.argsort()]
        returned = _AllToAll.apply(back, "combine", self.layer, incoming, outgoing, self.group)
        weighted = returned * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(flat, dtype=weighted.dtype).index_add(0, token, weighted).to(x.dtype).view_as(x)

    def _within_capacity(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Assignments that are sent, numbered through (T, k) and sorted by expert, and how many each expert has."""
        many = self.routing.experts
        of = chosen.flatten()
        order = of.argsort(stable=True)
        wanted = functional.one_hot(of, many).sum(0)
        self.dropped = [0] * many
        if self.routing.capacity is None:
            return order, wanted
        limit = math.ceil(self.routing.capacity * len(of) / many)
        place = torch.arange(len(of), device=of.device) - (wanted.cumsum(0) - wanted)[of[order]]
        self.dropped = (wanted - wanted.clamp(max=limit)).tolist()
        return order[place < limit], wanted.clamp(max=limit)

    def _compute(self, pieces: tuple[Tensor, ...]) -> list[Tensor]:
        found = []
        for (number, expert), piece in zip(self.experts.items(), pieces, strict=True):
            with dtprof.annotate("expert", layer=self.layer, expert=int(number)):
                found.append(expert(piece))
            self.tokens[int(number)] = len(piece)
        return found

    def record(self) -> None:
        """The numbers of the last forward pass as metrics of the step."""
        for number, count in self.tokens.items():
            dtprof.metric("moe_tokens", count, unit="tokens", layer=self.layer, expert=number)
        if self.routing.capacity is not None:
            for number, count in enumerate(self.dropped):
                dtprof.metric("moe_dropped", count, unit="tokens", layer=self.layer, expert=number)
        dtprof.metric("moe_aux_loss", self.aux.item(), layer=self.layer)


class RoutedBlock(Block):
    """A transformer block whose feed-forward layer is a mixture of experts, each as large as the layer was."""

    def __init__(self, dim: int, heads: int, attention: str, routing: Routing, layer: str) -> None:
        super().__init__(dim, heads, attention)
        del self.up, self.down
        self.moe = MixtureOfExperts(dim, 4 * dim, routing, layer)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The experts that each token chooses."""
        out: Tensor = self.moe(x)
        return out


class RoutedLayer(nn.Module):
    """An emulated layer and, behind it, a mixture of experts of one hidden unit each, on x of shape (batch, width)."""

    def __init__(self, layer: EmulatedLayer, width: int, routing: Routing, name: str) -> None:
        super().__init__()
        self.layer, self.moe = layer, MixtureOfExperts(width, 1, routing, name)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's time, then that of the experts; every sequence of the batch is one token to them."""
        x = self.layer(x)
        out: Tensor = x + self.moe(x)
        return out
