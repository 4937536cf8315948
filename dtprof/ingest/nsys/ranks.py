"""Which rank each process of one or several reports is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dtprof.run import Part

Quality = list[tuple[str, str, int, str]]


class Claims(msgspec.Struct, kw_only=True):
    """What one process says about its rank; kept with the part.

    ``ours`` is the rank that our collector ``nsys`` said in a range; ``world`` the world size by the environment, else by the
    command line; ``device`` the lowest CUDA ordinal it used; ``alone`` whether the report holds no other process.
    """

    key: int
    device: int | None = None
    alone: bool = True
    ours: int | None = None
    mpi: int | None = None
    environment: int | None = None
    variable: str = ""
    world: int | None = None
    communicators: list[tuple[int, int | None, int | None]] = []


@dataclass
class Claimant:
    """A part with its claims, the place of its report among the reports, and the rank that the report's name states."""

    part: Part
    claims: Claims
    report: int = 0
    named: int | None = None
    quality: Quality = field(default_factory=list)


def settle(found: Sequence[Claimant]) -> None:
    """Set rank, ``rank_from`` and world size of every part; what is odd or inferred goes into ``quality``.

    In order: our own word, MPI's, NCCL's communicator of all ranks, the environment of the recorded command, the report's name.
    A source counts where it gives every process a rank of its own; environment and names also where processes share one
    (restarts). Without any, processes are numbered by report and device.
    """
    sources = _sources(found)
    chosen = next((s for s in sources if _covers(sources[s]) and _distinct(sources[s])), None)
    if chosen is None:
        chosen = next((s for s in ("environment", "name") if _covers(sources[s])), None)
    if chosen is not None:
        for claimant, rank in zip(found, sources[chosen], strict=True):
            claimant.part.rank = rank
            claimant.part.rank_from = {"environment": claimant.claims.variable, "name": "file name"}.get(chosen, chosen)
        _contradictions(found, sources, chosen)
    else:
        _number(found)
    _worlds(found)


def _sources(found: Sequence[Claimant]) -> dict[str, list[int | None]]:
    least = len(found)
    return {
        "dtprof": [c.claims.ours for c in found],
        "MPI": [c.claims.mpi for c in found],
        "NCCL": [_by_nccl(c.claims, least) for c in found],
        "environment": [c.claims.environment if c.claims.alone else None for c in found],
        "name": [c.named if c.claims.alone else None for c in found],
    }


def _by_nccl(claims: Claims, least: int) -> int | None:
    """Rank in the largest communicator, where that holds all processes that were found and the world that is stated."""
    opened = [(size, rank) for _, size, rank in claims.communicators if size is not None and rank is not None]
    size, rank = max(opened, default=(0, None))
    return rank if size >= max(2, least) and claims.world in (None, size) else None


def _covers(ranks: list[int | None]) -> bool:
    return None not in ranks


def _distinct(ranks: list[int | None]) -> bool:
    return len(set(ranks)) == len(ranks)


def _number(found: Sequence[Claimant]) -> None:
    """By report, device and process; a single process without any claim keeps no rank."""
    if len(found) == 1:
        return
    order = sorted(range(len(found)), key=lambda i: (found[i].report, found[i].claims.device or 0, found[i].claims.key))
    by_device = len({c.report for c in found}) == 1
    for rank, i in enumerate(order):
        part = found[i].part
        part.rank, part.rank_from = rank, "order of devices" if by_device else "order of reports"
        what = f"no rank is recorded: taken for rank {rank} by the {part.rank_from}"
        found[i].quality.append((part.source, what, 1, "name reports by rank (-o report_rank%q{RANK}) to be sure"))


def _contradictions(found: Sequence[Claimant], sources: dict[str, list[int | None]], chosen: str) -> None:
    for i, claimant in enumerate(found):
        others = {s: ranks[i] for s, ranks in sources.items() if s != chosen and ranks[i] not in (None, claimant.part.rank)}
        # a process's rank inside a smaller communicator is no contradiction
        others.pop("NCCL", None)
        for source, rank in others.items():
            what = f"is rank {claimant.part.rank} by {claimant.part.rank_from}, rank {rank} by its {source}"
            claimant.quality.append((claimant.part.source, what, 1, f"{claimant.part.rank_from} is taken"))


def _worlds(found: Sequence[Claimant]) -> None:
    for claimant in found:
        part, claims = claimant.part, claimant.claims
        sizes = [size for _, size, _ in claims.communicators if size is not None]
        if claims.world is not None:
            part.world_size = claims.world
        elif sizes or len(found) > 1:
            ranks = [c.part.rank for c in found if c.part.rank is not None]
            part.world_size = max([*sizes, *(r + 1 for r in ranks)])
            part.extra["world_size_from"] = "the processes recorded: a lower bound"


def members(found: Sequence[tuple[Part, Claims]]) -> dict[int, tuple[int, ...]]:
    """Communicator -> ranks of its members, where all of them are known."""
    using: dict[int, dict[str, Any]] = {}
    for part, claims in found:
        for number, size, _ in claims.communicators:
            entry = using.setdefault(number, {"size": None, "ranks": set()})
            entry["size"] = size if size is not None else entry["size"]
            if part.rank is not None:
                entry["ranks"].add(part.rank)
    worlds = {p.world_size for p, _ in found if p.world_size}
    world = worlds.pop() if len(worlds) == 1 else None
    out = {}
    for number, entry in using.items():
        size = entry["size"] if entry["size"] is not None else world if len(entry["ranks"]) == world else None
        if size is not None and len(entry["ranks"]) == size:
            out[number] = tuple(sorted(entry["ranks"]))
    return out
