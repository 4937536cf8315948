"""The gradient noise scale, from gradients of a small and of a large batch of the same step.

McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1: with the squared norms of the mean gradient
of b and of B samples, unbiased estimates are

    |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)        S = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)

and the noise scale S / |G|^2 is the batch, in samples, beyond which more samples gain little. Both vary much from step to step:
the recorded ratio is that of their exponential averages. b is a rank's batch, B that of all ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_sample_jobs.common.compression import Averaged, Bucket

DECAY = 0.95


def estimate(small: float, large: float, b: int, whole: int) -> tuple[float, float]:
    """(|G|^2, S) of one step from the squared norms of the gradients of ``b`` and of ``whole`` samples, b < whole."""
    return (whole * large - b * small) / (whole - b), (small - large) / (1 / b - 1 / whole)


class NoiseScale:
    """Takes the norms in DDP's communication hook and in the step; records them, and the noise scale, as metrics."""

    def __init__(self, ddp: DistributedDataParallel, group: dist.ProcessGroup, b: int) -> None:
        self.group, self.b, self.ranks = group, b, dist.get_world_size(group)
        self._small = torch.zeros(1)
        self._gradient = self._noise = self._weight = 0.0
        ddp.register_comm_hook(group, self._hook)

    def _hook(self, group: dist.ProcessGroup, bucket: Bucket) -> Averaged:
        own = bucket.buffer()
        self._small = self._small.to(own.device) + own.float().square().sum()
        return allreduce_hook(group, bucket)

    def record(self, gradients: list[Tensor]) -> None:
        """Called by all ranks when the gradients have been averaged, before they are clipped."""
        mean = self._small / self.ranks
        dist.all_reduce(mean, group=self.group)
        self._small.zero_()
        small, large = float(mean), float(sum(g.float().square().sum() for g in gradients))
        gradient, noise = estimate(small, large, self.b, self.b * self.ranks)
        self._gradient = DECAY * self._gradient + (1 - DECAY) * gradient
        self._noise = DECAY * self._noise + (1 - DECAY) * noise
        dtprof.metric("gradient_square_small", small)
        dtprof.metric("gradient_square_large", large)
        if self._gradient > 0:
            dtprof.metric("gradient_noise_scale", self._noise / self._gradient, unit="samples")
