"""Files of one folder that are not of one recording: other jobs, other days. They are kept, and kept apart."""

from __future__ import annotations

from collections.abc import Sequence

from dtprof.numbers import time
from dtprof.run import Part

Rows = dict[int, list[tuple[str, str, int, str]]]

# clocks of hosts differ by seconds, captures of one job begin within minutes
APART_NS = 10 * 60 * 10**9
# times before this (2001) are no Unix times: the file has no base
_LEAST_UNIX_NS = 10**18
_EFFECT = "kept apart as another attempt; nothing is compared across them"


def keep_apart(parts: Sequence[Part], quality: Rows) -> None:
    """Raise the attempt of parts that state another world size, or were recorded over ten minutes later; say so."""
    _by_world_size(parts, quality)
    for session in sorted({(p.attempt, p.window) for p in parts}):
        _by_time([i for i, p in enumerate(parts) if (p.attempt, p.window) == session], parts, quality)


def _by_world_size(parts: Sequence[Part], quality: Rows) -> None:
    stated = {i: p.world_size for i, p in enumerate(parts) if p.world_size and "world_size_from" not in p.extra}
    sizes = sorted(set(stated.values()), reverse=True)
    if len(sizes) < 2:
        return
    stride = 1 + max(p.attempt for p in parts)
    for i, size in stated.items():
        others = ", ".join(str(s) for s in sizes if s != size)
        what = f"states a world of {size} ranks, other files one of {others}: not one job"
        quality[i].append((parts[i].source, what, 1, _EFFECT))
        parts[i].attempt += stride * sizes.index(size)


def _by_time(same: list[int], parts: Sequence[Part], quality: Rows) -> None:
    timed = sorted((i for i in same if _begin(parts[i]) >= _LEAST_UNIX_NS), key=lambda i: _begin(parts[i]))
    later, reach, stride = 0, 0, 1 + max(p.attempt for p in parts)
    for i in timed:
        gap = _begin(parts[i]) - reach
        if reach and gap > APART_NS and len({parts[j].rank for j in timed}) > 1:
            later += 1
        reach = max(reach, int(parts[i].extra.get("last_ns") or 0))
        if later:
            what = f"was recorded {time(_begin(parts[i]) - _begin(parts[timed[0]]))} after {parts[timed[0]].source}"
            quality[i].append((parts[i].source, what, 1, _EFFECT))
            parts[i].attempt += stride * later


def _begin(part: Part) -> int:
    return int(part.extra.get("first_ns") or 0)
