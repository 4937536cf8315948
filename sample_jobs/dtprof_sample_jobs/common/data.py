"""Batches of tokens, synthetic or the bytes of a small text: each rank has its own, the same in every run of the same seed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from dtprof.errors import InputError
from dtprof_sample_jobs.common.faults import Faults

CORPUS = Path(__file__).parent / "corpus.txt"


class Batches(Protocol):
    """``batch(number)`` gives int64 tokens of shape (batch, sequence + 1), on the host."""

    def batch(self, step: int) -> Tensor:
        """The batch of a number: of a step, or of a micro-batch counted through all steps."""


class SyntheticTokens:
    """Uniformly random tokens."""

    def __init__(self, vocabulary: int, batch: int, sequence: int, *, seed: int, rank: int) -> None:
        self.vocabulary, self.shape, self.seed, self.rank = vocabulary, (batch, sequence + 1), seed, rank

    def batch(self, step: int) -> Tensor:
        """The batch of a step, on the host."""
        generator = torch.Generator().manual_seed(hash((self.seed, self.rank, step)) % 2**31)
        return torch.randint(self.vocabulary, self.shape, generator=generator)


class Windows(Dataset[Tensor]):
    """A text as bytes, cut into windows of ``sequence`` + 1, each beginning with the last byte of the one before."""

    def __init__(self, text: bytes, sequence: int) -> None:
        self.tokens, self.sequence = torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), sequence

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, number: int) -> Tensor:
        return self.tokens[number * self.sequence :][: self.sequence + 1]


def windows_per_rank(sequence: int, ranks: int) -> int:
    """Sequences of so many tokens that each rank has of the corpus in an epoch."""
    return max(CORPUS.stat().st_size - 1, 0) // sequence // ranks


class CorpusTokens:
    """The text that is shipped (dtprof's own documentation), shuffled anew in every epoch by a DistributedSampler."""

    def __init__(self, batch: int, sequence: int, *, seed: int, rank: int, ranks: int, reshuffle: bool = True) -> None:
        self.reshuffle = reshuffle
        self.windows = Windows(CORPUS.read_bytes(), sequence)
        self.sampler: DistributedSampler[Tensor] = DistributedSampler(
            self.windows, ranks, rank, shuffle=True, seed=seed, drop_last=True
        )
        self.size, self.per_epoch = batch, len(self.sampler) // batch
        if self.per_epoch == 0:
            raise InputError(
                f"{ranks} ranks with {batch} sequences of {sequence} tokens are more than the corpus has", "give less"
            )
        self._epoch, self._order = -1, list[int]()

    def batch(self, step: int) -> Tensor:
        """The batch of a number, on the host; ``number // per_epoch`` is the epoch."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            # without set_epoch every epoch has the same order
            if self.reshuffle:
                self.sampler.set_epoch(epoch)
            self._epoch, self._order = epoch, [int(n) for n in self.sampler]
        return torch.stack([self.windows[n] for n in self._order[place * self.size :][: self.size]])


class _Slow:
    """Batches, later."""

    def __init__(self, data: Batches, faults: Faults) -> None:
        self.data, self.faults = data, faults

    def batch(self, step: int) -> Tensor:
        self.faults.in_data()
        return self.data.batch(step)


def make_data(args: argparse.Namespace, rank: int, ranks: int, faults: Faults | None = None) -> Batches:
    """The data that the common options ask for; ``rank`` of ``ranks`` among those with different data. Plants slow_data."""
    data: Batches
    if args.data == "corpus":
        reshuffle = faults is None or not faults.has("epoch_not_set")
        data = CorpusTokens(args.batch, args.seq, seed=args.seed, rank=rank, ranks=ranks, reshuffle=reshuffle)
    else:
        data = SyntheticTokens(args.vocabulary, args.batch, args.seq, seed=args.seed, rank=rank)
    return data if faults is None else _Slow(data, faults)
