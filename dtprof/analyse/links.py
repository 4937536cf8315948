"""What each link between two hosts carried, by the kernel's counters of TCP connections (collector ``sockets``).

Both ends of a connection are in the run, each with its own address and its peer's, and so belong to two ranks. The rate of a
link is what its largest connection sent over the time in which that had something to send and its peer took it. Where every
message is waited for, that time holds the round trips too: only links of one job are compared, which carry alike messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dtprof.protocols import Lens
from dtprof.run import Part, Run

# a link that carried less than this share of the others' is used in another way
_ALIKE = 0.5
# bytes below which a link's rate is that of its round trips
_LEAST_BYTES = 8 << 20
# a link below this share of the median of the others is slow
_SLOW = 0.7


@dataclass(frozen=True)
class Link:
    """What ``source`` sent to ``target``: bytes per step, and bytes per second of its largest connection."""

    source: int
    target: int
    bytes_per_step: float
    bytes_per_s: float


@dataclass(frozen=True)
class LinksResult:
    """``links`` between hosts, the ``slow`` ones, the median rate of the others; ``abstained`` says why none was looked for."""

    links: tuple[Link, ...]
    slow: tuple[Link, ...]
    usual_bytes_per_s: float
    abstained: str


def analyse(study: Lens) -> LinksResult:
    """Compare the links that carried alike amounts of data."""
    links = tuple(_links(study.run))
    alike = [x for x in links if x.bytes_per_step >= _ALIKE * float(np.median([y.bytes_per_step for y in links]))]
    if len(alike) < 2:
        return LinksResult(links, (), 0.0, "fewer than two links between hosts have counters")
    rates = np.array([x.bytes_per_s for x in alike])
    usual = np.array([np.median(np.delete(rates, i)) for i in range(len(rates))])
    slow = [x for x, low in zip(alike, rates < _SLOW * usual, strict=True) if low]
    others = [x.bytes_per_s for x in alike if x not in slow]
    if not slow or not others:
        return LinksResult(links, (), float(np.median(rates)), "")
    return LinksResult(links, tuple(sorted(slow, key=lambda x: x.bytes_per_s)), float(np.median(others)), "")


def connections_of(part: Part) -> list[dict[str, Any]]:
    """What the collector noted of a process's connections."""
    states = part.extra.get("collectors")
    for state in states if isinstance(states, list) else []:
        found = state.get("facts", {}).get("connections") if state.get("name") == "sockets" else None
        if isinstance(found, list):
            return found
    return []


def _links(run: Run) -> list[Link]:
    parts = [p for p in run.parts if p.rank is not None]
    owner = {(c["local"], c["peer"]): p.rank for p in parts for c in connections_of(p)}
    found = []
    for part in parts:
        steps, mine = _steps(part), dict[int, list[dict[str, Any]]]()
        for one in connections_of(part):
            target = owner.get((one["peer"], one["local"]))
            if target is not None and target != part.rank and _address(one["local"]) != _address(one["peer"]):
                mine.setdefault(target, []).append(one)
        for target, over in mine.items():
            largest = max(over, key=lambda c: c["sent"])
            sending_us = largest["busy_us"] - largest["unread_us"]
            sent = sum(c["sent"] for c in over)
            if steps and sending_us > 0 and sent >= _LEAST_BYTES and part.rank is not None:
                found.append(Link(part.rank, target, sent / steps, 1e6 * largest["sent"] / sending_us))
    return found


def _address(end: str) -> str:
    return end.rpartition(":")[0]


def _steps(part: Part) -> int:
    steps = part.extra.get("steps_done")
    return steps if isinstance(steps, int) else 0


def hosts_of_ranks(run: Run) -> dict[int, str]:
    """Rank -> host: its name, and beside it the node's number where a launcher says that ranks of one name are on several nodes
    and no two of these share an address, as with containers. Ranks of unknown host are left out.
    """
    parts = {p.rank: p for p in run.parts if p.rank is not None and p.host is not None}
    nodes = {rank: _node(part) for rank, part in parts.items()}
    places: dict[str, set[str]] = {}
    for rank, part in parts.items():
        for one in connections_of(part):
            places.setdefault(_address(one["local"]), set()).add(f"{part.host} {nodes[rank]}")
    apart = bool(places) and all(len(found) == 1 for found in places.values()) and None not in nodes.values()
    return {
        r: f"{p.host} (node {nodes[r]})" if apart and len(set(nodes.values())) > 1 else str(p.host) for r, p in parts.items()
    }


def _node(part: Part) -> str | None:
    states = part.extra.get("collectors")
    for state in states if isinstance(states, list) else []:
        node = state.get("facts", {}).get("node") if state.get("name") == "sockets" else None
        if isinstance(node, str):
            return node
    return None
