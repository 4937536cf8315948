"""How DDP fills its buckets (torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
# the first bucket is this small only where bucket_cap_mb is not given at all (torch.distributed, _DEFAULT_FIRST_BUCKET_BYTES)
FIRST_BYTES, DEFAULT_BYTES = 1 * MIB, 25 * MIB


@dataclass(frozen=True)
class Caps:
    """Sizes, in bytes, at which buckets close, first to last; the last one holds for all others."""

    sizes: tuple[float, ...]

    @classmethod
    def of(cls, cap_mb: float | None = None, cap_list: Sequence[float] | None = None, first_mb: float | None = None) -> Caps:
        """From DDP's arguments in MiB; none of them is DDP's default, which differs from ``cap_mb=25``."""
        if cap_list:
            return cls(tuple(float(c) * MIB for c in cap_list))
        rest = DEFAULT_BYTES if cap_mb is None else cap_mb * MIB
        first = first_mb * MIB if first_mb is not None else FIRST_BYTES if cap_mb is None else rest
        return cls((first, rest))


def assign(sizes: Sequence[int], order: Sequence[int], caps: Caps, kinds: Sequence[str] | None = None) -> list[list[int]]:
    """Parameters of every bucket, in the order in which buckets close.

    ``sizes``: bytes of each parameter; ``order``: parameters as their gradients become ready; ``kinds``: data type of each,
    as a bucket holds one type. A bucket closes when it has reached its cap, so it overshoots by up to one parameter.
    """
    open_buckets: dict[str, list[int]] = {}
    filled: dict[str, int] = {}
    turn: dict[str, int] = {}
    out: list[list[int]] = []
    for parameter in order:
        kind = kinds[parameter] if kinds else ""
        open_buckets.setdefault(kind, []).append(parameter)
        filled[kind] = filled.get(kind, 0) + sizes[parameter]
        if filled[kind] >= caps.sizes[min(turn.get(kind, 0), len(caps.sizes) - 1)]:
            out.append(open_buckets.pop(kind))
            turn[kind] = turn.get(kind, 0) + 1
            filled[kind] = 0
    return out + [bucket for bucket in open_buckets.values() if bucket]
