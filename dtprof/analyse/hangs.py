"""Hangs: which rank never entered which operation, from how far each rank had got when it was recorded.

Needs the state of operations, as torch's flight recorder has it. Ranks wait in an operation that has not completed; a member
that is recorded and has not got to it is absent. An absent rank that waits in an operation of another group waits for that
one's absent ranks in turn, and so on to the ranks that wait in nothing, or were not recorded: they are what all others wait
for. Where the chain closes, ranks enter operations of several groups in different orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dtprof.protocols import Lens
from dtprof.run import Part, Run
from dtprof.schema import MISSING, POINT_TO_POINT

_OPEN = ("scheduled", "started")


@dataclass(frozen=True)
class Stuck:
    """One operation that ``waiting`` have entered and ``absent`` have not; ``unrecorded`` members are in no dump. ``last``: the
    absent ranks' last operation in that group; ``since_ns``: its first entry; ``events``: part -> rows.
    """

    group: str
    name: str
    op: str
    seq: int | None
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    unrecorded: tuple[int, ...]
    last: dict[int, str]
    since_ns: int
    events: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Mismatch:
    """Ranks that issued different operations, or sizes, as the same number of one group: ``issued`` in words by rank."""

    name: str
    seq: int
    issued: dict[int, str]
    events: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class HangResult:
    """``roots``: operations whose absent ranks wait in nothing; ``stuck``: all; ``circle``: ranks that wait for each other;
    ``culprits``: whom everybody waits for; ``in_nothing``: of these, those that are recorded; ``stacks``: rank -> last frames.
    ``abstained`` says why nothing could be looked for.
    """

    stuck: tuple[Stuck, ...] = ()
    roots: tuple[Stuck, ...] = ()
    circle: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    in_nothing: tuple[int, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    stacks: dict[int, str] = field(default_factory=dict)
    abstained: str = ""


@dataclass(frozen=True)
class _Entry:
    part: int
    rank: int
    row: int
    op: str
    seq: int | None
    size: int | None
    peer: int | None
    open: bool
    ts: int


_Groups = dict[str, dict[int, list[_Entry]]]


def analyse(study: Lens) -> HangResult:
    """What the ranks were in when they were recorded."""
    run = study.run
    latest: dict[int, Part] = {}
    for part in run.parts:
        if part.rank is not None and (part.rank not in latest or part.attempt > latest[part.rank].attempt):
            latest[part.rank] = part
    if not any(run.table("comm", p.ordinal).known("state").any() for p in latest.values()):
        return HangResult(abstained="the source does not say how far operations had got: torch's flight recorder does")
    groups: _Groups = defaultdict(lambda: defaultdict(list))
    members: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    for part in latest.values():
        _read(run, part, groups, members, names)
    stuck = [s for key, by_rank in groups.items() for s in _stuck(key, names[key], by_rank, members[key], latest.keys())]
    mismatches = [m for key, by_rank in groups.items() for m in _mismatches(names[key], by_rank)]
    wait_for = _edges(stuck)
    ends = {r for s in stuck for r in (*s.absent, *s.unrecorded)} - wait_for.keys()
    circle = () if ends else tuple(sorted(_circle(wait_for)))
    roots = tuple(s for s in stuck if ends & {*s.absent, *s.unrecorded})
    culprits = tuple(sorted(ends)) or circle
    return HangResult(
        tuple(sorted(stuck, key=lambda s: (s not in roots, s.since_ns))), roots, circle, culprits,
        tuple(r for r in culprits if r in latest), tuple(mismatches), _stacks(latest.values()),
    )  # fmt: skip


def _read(run: Run, part: Part, groups: _Groups, members: dict[str, tuple[int, ...]], names: dict[str, str]) -> None:
    comm, events, told = (run.table(name, part.ordinal) for name in ("comm", "events", "groups"))
    keys: dict[int, str] = {}
    ranks_of: dict[int, tuple[int, ...] | None] = {}
    for number, ranks, name, about in zip(
        told["id"].tolist(), told["ranks"].tolist(), told.text("name"), told.text("description"), strict=True
    ):
        ranks_of[number] = tuple(ranks) if ranks else None
        keys[number] = ",".join(map(str, ranks)) if ranks else str(name)
        known = members.get(keys[number], ())
        members[keys[number]] = tuple(sorted({*known, *(ranks or (part.rank,))}))
        names.setdefault(keys[number], str(about or name or keys[number]))
    columns = (comm[c].tolist() for c in ("event", "group", "seq", "bytes_in", "peer"))
    for op, state, event, group, seq, size, peer in zip(comm.text("op"), comm.text("state"), *columns, strict=True):
        if group in keys and part.rank is not None:
            ranks = ranks_of[group]
            other = ranks[peer] if ranks and 0 <= peer < len(ranks) else None
            groups[keys[group]][part.rank].append(
                _Entry(part.ordinal, part.rank, event, str(op), None if seq == MISSING else seq,
                       None if size == MISSING else size, other, state in _OPEN, int(events["ts"][event]))
            )  # fmt: skip


def _stuck(
    key: str, name: str, by_rank: dict[int, list[_Entry]], members: tuple[int, ...], recorded: Iterable[int]
) -> list[Stuck]:
    """The first operation of a group that somebody waits in for an absent rank, and messages whose other side is absent."""
    there = set(recorded)
    reached = {r: max((e.seq for e in mine if e.seq is not None and e.op not in POINT_TO_POINT), default=-1) for r, mine in
               by_rank.items()}  # fmt: skip
    out: list[Stuck] = []
    pending = [e for mine in by_rank.values() for e in mine if e.open and e.op not in POINT_TO_POINT and e.seq is not None]
    if pending:
        first = min(e.seq for e in pending if e.seq is not None)
        inside = [e for e in pending if e.seq == first]
        absent = tuple(r for r in members if r in there and reached.get(r, -1) < first)
        unrecorded = tuple(r for r in members if r not in there)
        if absent or unrecorded:
            out.append(_made(key, name, inside, absent, unrecorded, by_rank))
    for rank, mine in by_rank.items():
        e = next((e for e in mine if e.open and e.op in POINT_TO_POINT), None)
        if e is None or e.peer is None:
            continue
        theirs = [x for x in by_rank.get(e.peer, ()) if x.open and x.peer == rank and x.op != e.op]
        if not theirs:
            gone = e.peer not in there
            out.append(_made(key, name, [e], () if gone else (e.peer,), (e.peer,) if gone else (), by_rank))
    return out


def _made(
    key: str,
    name: str,
    inside: list[_Entry],
    absent: tuple[int, ...],
    unrecorded: tuple[int, ...],
    by_rank: dict[int, list[_Entry]],
) -> Stuck:
    last = {r: _words(by_rank[r][-1]) if by_rank.get(r) else "" for r in absent}
    rows: dict[int, list[int]] = defaultdict(list)
    for e in [*inside, *(by_rank[r][-1] for r in absent if by_rank.get(r))]:
        rows[e.part].append(e.row)
    waiting = tuple(sorted(e.rank for e in inside))
    return Stuck(
        key, name, inside[0].op, inside[0].seq, waiting, absent, unrecorded, last, min(e.ts for e in inside),
        {p: tuple(found) for p, found in rows.items()},
    )  # fmt: skip


def _words(entry: _Entry) -> str:
    return f"{entry.op.replace('_', '-')} {entry.seq if entry.seq is not None else ''}".strip()


def _mismatches(name: str, by_rank: dict[int, list[_Entry]]) -> list[Mismatch]:
    """The first number of a group under which ranks issued different operations, or all-reduces of different sizes."""
    numbered: dict[int, list[_Entry]] = defaultdict(list)
    for mine in by_rank.values():
        for e in mine:
            if e.seq is not None and e.op not in POINT_TO_POINT:
                numbered[e.seq].append(e)
    for seq in sorted(numbered):
        found = {e.rank: e for e in numbered[seq]}
        sizes = {e.size for e in found.values() if e.op in ("all_reduce", "broadcast")}
        if len({e.op for e in found.values()}) > 1 or len(sizes - {None}) > 1:
            issued = {r: f"{e.op.replace('_', '-')} of {e.size if e.size is not None else 'unknown'} bytes" for r, e in
                      sorted(found.items())}  # fmt: skip
            return [Mismatch(name, seq, issued, {e.part: (e.row,) for e in found.values()})]
    return []


def _edges(stuck: list[Stuck]) -> dict[int, set[int]]:
    """Waiting rank -> the ranks that it waits for."""
    out: dict[int, set[int]] = defaultdict(set)
    for s in stuck:
        for rank in s.waiting:
            out[rank].update(s.absent, s.unrecorded)
    return dict(out)


def _circle(wait_for: dict[int, set[int]]) -> set[int]:
    """Ranks that can be reached from themselves."""
    found = set()
    for rank in wait_for:
        seen, ahead = set[int](), set(wait_for[rank])
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                ahead |= wait_for.get(here, set())
        if rank in seen:
            found.add(rank)
    return found


def _stacks(parts: Iterable[Part]) -> dict[int, str]:
    """Rank -> where its last recorded operation was issued, where the dump has frames."""
    return {p.rank: text for p in parts if p.rank is not None and isinstance(text := p.extra.get("last_frames"), str) and text}
