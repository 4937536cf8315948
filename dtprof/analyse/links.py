"""What each link between two hosts carried, by the kernel's counters of TCP connections (collector ``sockets``).

Both ends of a connection are in the run, each with its own address and its peer's, and so belong to two ranks. The rate of a
link is what its largest connection sent over the time in which that had something to send and its peer took it. Where every
message is waited for, that time holds the round trips too, and acknowledgements that come back over a slow link make the way
there look slow: only links of one job are compared, which carry alike messages, and one that is not much slower than the
others needs a second witness. At some readings bytes had not left the sender yet: that is so at more readings of a slow link
than of the others (Fisher's exact test), for what waits there is data, and not acknowledgements. At some the network was the
limit, not the sender: a link is slow whose rates then are lower than the others' are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np

from dtprof.protocols import Lens
from dtprof.run import Part, Run

# a link that carried less than this share of the others' is used in another way
_ALIKE = 0.5
# bytes below which a link's rate is that of its round trips
_LEAST_BYTES = 8 << 20
# a link below this share of the median of the others is slow; below the second, if a witness says so
_SLOW, _SLOWER = 0.65, 0.8
# rates at which the network was the limit from which on their median is taken, and its share of the others' that is slow
_LEAST_LIMITED, _SLOW_LIMITED = 3, 0.6
_LEAST_QUEUED = 3
# percentile of such rates, of so many or more, that a link reaches: late acknowledgements lower most, and bursts raise a few
_REACHED, _LEAST_REACHED = 95, 8
# bytes wait to leave more often than elsewhere: one-sided levels for a witness, and for what needs none as long as the rate is
# below this share of the others'
_WITNESS, _ALONE, _LOWER = 0.1, 0.005, 0.95


@dataclass(frozen=True)
class Link:
    """What ``source`` sent to ``target``: bytes per step, bytes per second of its largest connection, the rates of it at the
    readings when the network was the limit, and at how many of the ``readings`` bytes were ``queued``."""

    source: int
    target: int
    bytes_per_step: float
    bytes_per_s: float
    limited: tuple[float, ...] = ()
    readings: int = 0
    queued: int = 0
    host: str = field(default="", compare=False)


@dataclass(frozen=True)
class LinksResult:
    """``links`` between hosts, the ``slow`` ones, the median rate of the others, and the rate that these reach: the 95th
    percentile of those at the readings when the network was the limit (None: there are too few, or it is lower than the usual
    rate); ``abstained`` says why none was looked for."""

    links: tuple[Link, ...]
    slow: tuple[Link, ...]
    usual_bytes_per_s: float
    reached_bytes_per_s: float | None
    abstained: str


def analyse(study: Lens) -> LinksResult:
    """Compare the links that carried alike amounts of data."""
    links = tuple(_links(study.run))
    alike = [x for x in links if x.bytes_per_step >= _ALIKE * float(np.median([y.bytes_per_step for y in links]))]
    if len(alike) < 2:
        return LinksResult(links, (), 0.0, None, "fewer than two links between hosts have counters")
    slow = _slow(alike)
    others = [x for x in alike if x not in slow]
    rates = [x.bytes_per_s for x in others or alike]
    usual, limited = float(np.median(rates)), [rate for x in others for rate in x.limited]
    most = float(np.percentile(limited, _REACHED)) if len(limited) >= _LEAST_REACHED else None
    if most is not None and most < usual:
        # they reach more all the time: these readings are of beginnings and ends of messages
        most = None
    found = sorted(slow, key=lambda x: x.bytes_per_s) if others else []
    return LinksResult(links, tuple(found), usual, most, "")


def _slow(alike: list[Link]) -> list[Link]:
    found = []
    for one in alike:
        others = [x for x in alike if x.host != one.host] or [x for x in alike if x is not one]
        share = one.bytes_per_s / float(np.median([x.bytes_per_s for x in alike if x is not one]))
        if share < _SLOW or (share < _SLOWER and (_lower(one, others) or _more_often([one], others, _WITNESS))):
            found.append(one)
    return found or [x for host in {x.host for x in alike} for x in _held_up(host, alike)]


def _lower(one: Link, others: list[Link]) -> bool:
    """Where the network is the limit of them all: is the rate of this one far below the others'?"""
    if any(len(x.limited) < _LEAST_LIMITED for x in (one, *others)):
        return False
    return float(np.median(one.limited)) < _SLOW_LIMITED * float(np.median([np.median(x.limited) for x in others]))


def _more_often(mine: list[Link], others: list[Link], level: float) -> bool:
    """Do bytes wait to leave over these more often than over the others?"""
    (hits, of), (usual, all_of) = ((sum(x.queued for x in some), sum(x.readings for x in some)) for some in (mine, others))
    return hits >= _LEAST_QUEUED and _fisher(hits, of, usual, all_of) < level


def _held_up(host: str, alike: list[Link]) -> list[Link]:
    """All links of a sending host, if bytes wait there more often than elsewhere and they are slower."""
    mine, others = [x for x in alike if x.host == host], [x for x in alike if x.host != host]
    if not others or not _more_often(mine, others, _ALONE):
        return []
    slower = np.mean([x.bytes_per_s for x in mine]) < _LOWER * np.mean([x.bytes_per_s for x in others])
    return mine if slower else []


def _fisher(hits: int, of: int, others: int, of_others: int) -> float:
    """One-sided p that ``hits`` of ``of`` are no more than ``others`` of ``of_others`` (Fisher 1934, exact)."""
    all_hits, whole = hits + others, comb(of + of_others, of)
    return sum(comb(all_hits, k) * comb(of + of_others - all_hits, of - k) for k in range(hits, min(all_hits, of) + 1)) / whole


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
                rates = tuple(map(float, largest.get("limited", ())))
                # what was recorded without ``queued`` has only been read between operations
                of, queued, host = largest.get("readings", 0), largest.get("queued", len(rates)), _address(largest["local"])
                rate = 1e6 * largest["sent"] / sending_us
                found.append(Link(part.rank, target, sent / steps, rate, rates, of, queued, host))
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
