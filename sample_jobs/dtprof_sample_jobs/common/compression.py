"""Gradient compression as DDP communication hooks, with error feedback: top-k and one bit per element.

Each hook compresses a bucket's gradient plus what earlier steps left out, sends that alone (one all-gather per bucket), and
keeps the difference for the next step. Both work on any backend, because they use nothing but an all-gather of bytes.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import dtprof

# DDP compares a hook's annotations with its own: they must be objects, not texts
if TYPE_CHECKING:
    Bucket = Any
else:
    Bucket = dist.GradBucket
Averaged = torch.futures.Future[Tensor]


class Residual:
    """What was not sent yet, per bucket. DDP makes its buckets anew after the first step: the residual then begins at zero."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self._kept: dict[int, tuple[list[int], Tensor]] = {}

    def add_to(self, bucket: Bucket) -> Tensor:
        """A copy of the bucket's gradient, flat, plus its residual."""
        members = [id(p) for p in bucket.parameters()]
        before, left = self._kept.get(bucket.index(), ([], None))
        gradient: Tensor = bucket.buffer()
        return gradient + left if left is not None and before == members else gradient.clone()

    def leave(self, bucket: Bucket, left: Tensor) -> None:
        """Keep ``left`` for the next step, unless error feedback is off."""
        if self.keep:
            self._kept[bucket.index()] = ([id(p) for p in bucket.parameters()], left)


class TopK:
    """The ``ratio`` largest elements of every bucket, as values and places: 8 bytes each.

    Stich et al. 2018, "Sparsified SGD with memory": without the memory (``feedback``) small gradients are never applied.
    """

    def __init__(self, ratio: float, *, feedback: bool) -> None:
        self.ratio, self.residual = ratio, Residual(feedback)

    def top_k_hook(self, group: dist.ProcessGroup, bucket: Bucket) -> Averaged:
        """The communication hook."""
        with dtprof.annotate("bucket", bucket=bucket.index()):
            wanted = self.residual.add_to(bucket)
            places = wanted.abs().topk(max(1, round(self.ratio * wanted.numel()))).indices
            values = wanted[places].float()
            wanted[places] = 0
            self.residual.leave(bucket, wanted)
            sent = torch.cat([values.view(torch.int32), places.to(torch.int32)])
            received, work = gather(group, sent)
        like: Tensor = bucket.buffer()

        def average(_done: object) -> Tensor:
            total = torch.zeros_like(like, dtype=torch.float32)
            for message in received:
                theirs, where = message.chunk(2)
                total.index_add_(0, where, theirs.view(torch.float32))
            return total.div_(len(received)).to(like.dtype)

        return work.then(average)


class OneBit:
    """The sign of every element and one scale per bucket: a bit each.

    The scale is the mean magnitude, as in Karimireddy et al. 2019, "Error feedback fixes SignSGD"; the idea with its residual
    is Seide et al. 2014, "1-bit stochastic gradient descent".
    """

    def __init__(self, *, feedback: bool) -> None:
        self.residual = Residual(feedback)

    def one_bit_hook(self, group: dist.ProcessGroup, bucket: Bucket) -> Averaged:
        """The communication hook."""
        with dtprof.annotate("bucket", bucket=bucket.index()):
            wanted = self.residual.add_to(bucket).float()
            sent = torch.cat([wanted.abs().mean().reshape(1).view(torch.uint8), pack_signs(wanted)])
            self.residual.leave(bucket, wanted - decode_signs(sent, wanted.numel()))
            received, work = gather(group, sent)
        like: Tensor = bucket.buffer()

        def average(_done: object) -> Tensor:
            total = sum(decode_signs(message, like.numel()) for message in received)
            return torch.as_tensor(total / len(received)).to(like.dtype)

        return work.then(average)


def gather(group: dist.ProcessGroup, sent: Tensor) -> tuple[list[Tensor], torch.futures.Future[object]]:
    """All ranks' messages, which are complete when the future is."""
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(received, sent, group=group, async_op=True)
    assert work is not None
    return received, work.get_future()


def pack_signs(x: Tensor) -> Tensor:
    """Eight signs (is it >= 0?) per byte; x of shape (n,) to uint8 of shape (ceil(n / 8),)."""
    bits = torch.nn.functional.pad((x >= 0).to(torch.uint8), (0, -x.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=x.device)).sum(1, dtype=torch.uint8)


def decode_signs(message: Tensor, count: int) -> Tensor:
    """A scale (four bytes) and packed signs, to float32 of shape (count,)."""
    scale, packed = message[:4].clone().view(torch.float32), message[4:]
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return (bits.flatten()[:count].float() * 2 - 1) * scale
