"""How gloo's ring all-reduce cuts what it sends (gloo/allreduce.cc), and what follows for its time.

Each rank's share of the bytes travels in at least two segments of at most 1 MiB, of which two are on their way at a time, from
rank to rank. So an operation waits for the network's latency once per pair of segments, and its time over its size climbs in
steps. All operations between two ranks share one connection (gloo/transport/tcp/pair.cc), on which segments queue: a small
operation beside a large one waits for the large one's segments, whatever share of the bytes is its own.
"""

from __future__ import annotations

from math import ceil

MAX_SEGMENT = 1 << 20
# what is sent at once: up to here the two segments of a small operation queue together. Measured: messages of 128 KiB do, of
# 256 KiB do not (2 ranks at 1 to 5 Gb/s, 4 ranks at 2 Gb/s, torch 2.13)
_TOGETHER = 192 << 10
# of the latency of two segments, where the last one travels by itself: measured .4 to .8, at RTTs of 4 and 8 ms
_LAST_ALONE = 2 / 3


def segment(size: float, ranks: int) -> float:
    """Bytes of one segment."""
    return min(MAX_SEGMENT, size / (2 * ranks))


def in_rounds(size: float, ranks: int) -> float:
    """How many times the latency of the smallest all-reduce one of ``size`` bytes waits for; 1 where two segments do."""
    sent = (ranks - 1) * max(2, ceil(size / (ranks * MAX_SEGMENT)))
    return (sent // 2 + _LAST_ALONE * (sent % 2)) / (ranks - 1)


def queued(size: float, ranks: int) -> float:
    """How many segments of another operation one of ``size`` bytes waits for beside it."""
    each = max(2.0, size / (ranks * MAX_SEGMENT)) if segment(size, ranks) > _TOGETHER else 1.0
    return 2 * (ranks - 1) * each


def steps(smallest: float, largest: float, ranks: int) -> list[float]:
    """Sizes at which an operation begins to need one segment more, each as the last before and the first after."""
    share = ranks * MAX_SEGMENT
    borders = [share * k for k in range(2, ceil(largest / share)) if share * k > smallest]
    return [size for border in borders for size in (float(border), border + 1.0)]
