"""Which layers lie on which rank of a pipeline.

Stage c of pp x vpp lies on rank c modulo pp (Narayanan et al. 2021, section 2.2). Layers that cannot be shared out evenly go to
the stages in the middle first: the first has the embedding besides, the last the output matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dtprof.plan.spec import Layout, Model


@dataclass(frozen=True)
class Stage:
    """What one rank of a pipeline has: ``chunks`` of layers, counted from 0; ``first`` has the embedding, ``last`` the head."""

    rank: int
    chunks: tuple[range, ...]
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        """Layers of all its chunks together."""
        return sum(map(len, self.chunks))


def stages(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """One for each rank of the pipeline."""
    return _stages(model.layers, layout.pp, layout.vpp)


@lru_cache(maxsize=4096)
def _stages(layers: int, ranks: int, per_rank: int) -> tuple[Stage, ...]:
    parts = parted(layers, ranks * per_rank)
    return tuple(Stage(rank, parts[rank::ranks], rank == 0, rank == ranks - 1) for rank in range(ranks))


@lru_cache(maxsize=4096)
def parted(layers: int, count: int) -> tuple[range, ...]:
    """``layers`` in ``count`` pieces that differ by one layer at most, the longer ones in the middle."""
    short, longer = divmod(layers, count)
    first = (count - longer + 1) // 2
    lengths = [short + (first <= place < first + longer) for place in range(count)]
    starts = [sum(lengths[:place]) for place in range(count)]
    return tuple(range(start, start + length) for start, length in zip(starts, lengths, strict=True))
