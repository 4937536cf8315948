"""What a search holds fixed and what it may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtprof.plan.spec import (
    AttentionKind,
    Cluster,
    Model,
    Offload,
    Optimizer,
    Precision,
    Recompute,
    ScheduleName,
    Software,
)

Numbers = tuple[int, ...]
GradientType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Wanted:
    """A model to train on a cluster, and the values that may be chosen; an empty tuple stands for all that make sense.

    ``global_batch``: sequences of a step, held; 0: free up to ``critical_batch``, in sequences. ``gpus``: sizes of the cluster
    that are tried (its own). ``offload``: what may lie in the host's memory, where nothing fits otherwise. ``price``: of a GPU
    hour, 0 where it is not known. ``keep``: how many layouts are told.
    """

    model: Model
    cluster: Cluster
    software: Software
    seq: int
    global_batch: int
    critical_batch: int = 0
    gpus: Numbers = ()
    dp: Numbers = ()
    tp: Numbers = ()
    pp: Numbers = ()
    vpp: Numbers = ()
    cp: Numbers = ()
    ep: Numbers = ()
    etp: int = 1
    micro_batch: Numbers = ()
    zero: Numbers = ()
    shard: Numbers = ()
    recompute: tuple[Recompute, ...] = ()
    schedule: tuple[ScheduleName, ...] = ()
    precision: tuple[Precision, ...] = ("bf16",)
    offload: tuple[Offload, ...] = ()
    optimizer: Optimizer = "adam"
    gradient_dtype: GradientType = "fp32"
    attention: AttentionKind = "flash"
    price: float = 0.0
    keep: int = 10
    sequence_parallel: bool | None = None

    @property
    def batches(self) -> Numbers:
        """Global batches that are tried: the one that is held, or halves of the critical one."""
        if self.global_batch:
            return (self.global_batch,)
        return tuple(sorted({max(self.critical_batch >> halved, 1) for halved in range(6)}, reverse=True))

    def slower(self, global_batch: int) -> float:
        """How much more data a step of this batch needs for the same progress, over what a small one needs.

        McCandlish et al. 2018, An Empirical Model of Large-Batch Training, equation 2.7: tokens grow as 1 + B / B_critical,
        steps as 1 + B_critical / B. 1 where the batch is held.
        """
        return 1.0 if self.global_batch else 1 + self.critical_batch / global_batch
