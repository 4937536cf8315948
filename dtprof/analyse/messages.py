"""Messages between two ranks: who sends or receives first waits for the other side, and only the end of its span moves data.

A rendezvous moves data when both ends are there (NCCL; gloo's receiver asks the sender for them), so that the shortest
participation of either end among all messages of one size on one link bounds what moving them takes, without any clock; with
one, so does the time from the later of the two beginnings. A
``gloo:send`` lasts until somebody waits for it, which says nothing: it has ended when its receive has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from dtprof.run import Part, Run
from dtprof.schema import MISSING, MISSING32, POINT_TO_POINT

# messages of one size on a link that must be seen before their shortest participation is taken for moving
_LEAST_SEEN = 4

Link = tuple[int, int, int]  # source, destination, bytes
_kept: WeakKeyDictionary[Run, dict[int, dict[int, Message]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Message:
    """One send, receive, or batch of them: row of its event, when it starts, when its data begin to move (None: not known), and
    when they have arrived, ns on its part's own clock; ``links``: what it carries.
    """

    event: int
    start: int
    moves: int | None
    end: int
    links: tuple[Link, ...]

    @property
    def wait_ns(self) -> int | None:
        """Until the other side is there; None where not known."""
        return None if self.moves is None else self.moves - self.start

    @property
    def moving_ns(self) -> int | None:
        """At most what moving the data takes; None where not known."""
        return None if self.moves is None else self.end - self.moves


def messages_of(run: Run) -> dict[int, dict[int, Message]]:
    """Part ordinal -> event row -> message, for all sends and receives whose peer and bytes are known."""
    if run not in _kept:
        _kept[run] = _found(run)
    return _kept[run]


def _found(run: Run) -> dict[int, dict[int, Message]]:
    raw = {p.ordinal: _raw(run, p) for p in run.parts if p.rank is not None}
    sends = {p: _host_sends(run, p) for p in raw}
    seen: Counter[Link] = Counter()
    shortest: dict[Link, int] = {}
    ends: dict[tuple[int, int], int] = {}

    def took(links: tuple[Link, ...], ns: int) -> None:
        for link in links:
            seen[link] += 1
            shortest[link] = min(shortest.get(link, ns), ns)

    for part, mine in raw.items():
        for message in mine.values():
            if message.event not in sends[part]:
                took(message.links, message.end - message.start)
    for part, sent, other, ahead, got in _pairs(run, raw):
        if sent.event in sends[part]:
            ends[part, sent.event] = got.end + ahead
        if _one_clock(run, part, other):
            took(got.links, max(got.end + ahead - max(sent.start, got.start + ahead), 0))
    out: dict[int, dict[int, Message]] = defaultdict(dict)
    for part, mine in raw.items():
        for event, m in mine.items():
            end = max(m.start, min(m.end, ends.get((part, event), m.end)))
            known = all(seen[link] >= _LEAST_SEEN for link in m.links)
            moving = max((shortest[link] for link in m.links), default=0) if known else None
            moves = None if moving is None else max(m.start, end - moving)
            out[part][event] = Message(event, m.start, moves, end, m.links)
    return out


def _raw(run: Run, part: Part) -> dict[int, Message]:
    """Messages as recorded: nothing known of their moving."""
    comm, events = run.table("comm", part.ordinal), run.table("events", part.ordinal)
    held: dict[int, list[Link]] = defaultdict(list)
    columns = (comm[c].tolist() for c in ("event", "peer", "bytes_in", "bytes_out"))
    unknown = set[int]()
    assert part.rank is not None
    for op, event, peer, given, got in zip(comm.text("op"), *columns, strict=True):
        if op not in POINT_TO_POINT:
            continue
        size = given if op == "send" else got
        if peer == MISSING32 or size == MISSING or op == "send_recv":
            unknown.add(event)
        else:
            held[event].append((part.rank, peer, size) if op == "send" else (peer, part.rank, size))
    ts, dur = events["ts"], events["dur"]
    return {e: Message(e, int(ts[e]), None, int(ts[e] + dur[e]), tuple(links)) for e, links in held.items() if e not in unknown}


def _host_sends(run: Run, part: int) -> set[int]:
    """Events of a CPU backend that send and do nothing else."""
    comm, events, lanes = (run.table(name, part) for name in ("comm", "events", "lanes"))
    host = set(lanes["id"][lanes["device"] < 0].tolist())
    rows = comm["event"][comm.is_("op", "send") & (comm["batch"] == MISSING32)]
    return {event for event in rows.tolist() if int(events["lane"][event]) in host}


def _one_clock(run: Run, one: int, other: int) -> bool:
    """Are the instants of two parts comparable: on one host, or aligned by operations that end together?"""
    a, b = (next(p for p in run.parts if p.ordinal == n) for n in (one, other))
    return (a.host is not None and a.host == b.host) or None not in (a.clock_residual_ns, b.clock_residual_ns)


def _pairs(run: Run, raw: dict[int, dict[int, Message]]) -> Iterator[tuple[int, Message, int, int, Message]]:
    """(part, send, part, ns from its clock to the sender's, receive) of all messages that are no batch.

    Sends and receives of one link pair in their order, step by step; where their numbers or sizes differ, none does.
    """
    rank = {p.ordinal: p.rank for p in run.parts}
    offset = {p.ordinal: p.clock_offset_ns for p in run.parts}
    queues: dict[tuple[int, int, int, bool], list[tuple[int, Message]]] = defaultdict(list)
    for part, mine in raw.items():
        step = run.table("events", part)["step"]
        for message in sorted(mine.values(), key=lambda m: m.start):
            if len(message.links) == 1:
                source, target, _ = message.links[0]
                queues[source, target, int(step[message.event]), source == rank[part]].append((part, message))
    for (source, target, step_, sending), sent in queues.items():
        got = queues.get((source, target, step_, False), []) if sending else []
        if len(got) == len(sent) and all(a.links == b.links for (_, a), (_, b) in zip(sent, got, strict=True)):
            for (part, message), (other, received) in zip(sent, got, strict=True):
                yield part, message, other, offset[other] - offset[part], received
