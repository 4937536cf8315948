"""The step graph of a job without device work: threads that compute and hand over, gloo that moves, threads that wait.

Nodes are the calls that hand over an operation, the operators that go on after waiting for one, the borders of the steps, and
one meeting per matched operation. A thread's time between two of them stays as it was measured, but for its waiting: a pause in
which it waits is as short as the least, over the steps, of what is left of it after the operation that is waited for.
A process group of gloo runs its collectives on worker threads, one after the other on each. A
message meets where it has been sent and asked for: gloo's send waits for the receiver to have a buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dtprof import intervals
from dtprof.intervals import Ints
from dtprof.model.graph.graph import Builder, EdgeKind, NodeKind
from dtprof.model.graph.nodes import PartNodes
from dtprof.model.graph.threads import Threads, Wait, waits_of
from dtprof.run import Run
from dtprof.schema import MISSING, MISSING32
from dtprof.table import Table

# of the messages, from both there to the end of the first: most ends are only seen when somebody looks
_MESSAGE_QUANTILE = 0.25


# part -> row of an operation -> the node of its meeting, and when that ended, ns
Meetings = dict[int, dict[int, tuple[int, int]]]


@dataclass
class Placed:
    """Nodes of one part: of a call or operator by its row; by an operation's row its ``arrival``, what ends when it is
    ``done``, and when that ``ended``, ns.
    """

    host: dict[int, int] = field(default_factory=dict)
    arrival: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


def build_cpu(run: Run, builder: Builder, parts: list[PartNodes]) -> None:
    """Add the parts that have no device work; ``notes`` holds by part ordinal the waits seen and the operations without one."""
    threads = [Threads(nodes) for nodes in parts]
    found = waits_of(threads)
    meets = _meetings(run, builder, threads, _gone_on(threads, found))
    for mine, waits in zip(threads, found, strict=True):
        placed = Placed()
        _operations(mine, builder, placed, meets.get(mine.nodes.part, {}))
        _threads(mine, builder, placed, waits)
        builder.notes[str(mine.nodes.part)] = {
            "waits_inferred": len(waits), "waits_unplaced": len(mine.operations) - len(waits),
        }  # fmt: skip


def _gone_on(threads: list[Threads], found: list[list[Wait]]) -> dict[tuple[int, int], int]:
    """Part and row of an operation -> when the thread that waited for it went on: gloo notes the end later where it is busy."""
    every = [(mine.nodes, wait) for mine, waits in zip(threads, found, strict=True) for wait in waits]
    return {(nodes.part, wait.operation): int(nodes.ts[wait.site]) for nodes, wait in every}


def _meetings(run: Run, builder: Builder, threads: list[Threads], gone_on: dict[tuple[int, int], int]) -> Meetings:
    """Nodes of the operations in which all ranks of a group are present: part -> event row -> (node, its end)."""
    out: Meetings = defaultdict(dict)
    cpu = {t.nodes.part for t in threads}
    table, shares = run.table("collectives"), run.table("participations")
    rows: dict[int, list[int]] = defaultdict(list)
    for i, number in enumerate(shares["collective"].tolist()):
        rows[number].append(i)
    starts, ends = shares["start"], shares["start"] + shares["dur"]
    for at, number in enumerate(table["id"].tolist()):
        mine = [i for i in rows[number] if int(shares["part"][i]) in cpu]
        if len(mine) < 2 or table["one_sided"][at] or len(mine) < table["n"][at]:
            continue
        begin = int(starts[mine].max())
        over = [gone_on.get((int(shares["part"][i]), int(shares["event"][i])), int(ends[i])) for i in mine]
        took = max(min(int(ends[mine].min()), *over) - begin, 0)
        node = builder.node(NodeKind.MEET, -1, -1, -1, begin, took)
        for i in mine:
            out[int(shares["part"][i])][int(shares["event"][i])] = node, begin + took
    _messages(run, builder, threads, out)
    return out


def _messages(run: Run, builder: Builder, threads: list[Threads], out: Meetings) -> None:
    """The meetings of a send with its receive, in order between two ranks; none between two whose numbers of them differ.

    Both are there from their calls on: gloo's own spans begin when the message may already have left.
    """
    sent: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    asked: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    there = {(t.nodes.part, op.row): int(t.nodes.ts[op.call]) for t in threads for op in t.operations}
    over = {t.nodes.part: t.nodes.end for t in threads}
    for t in threads:
        comm, rank = run.table("comm", t.nodes.part), t.nodes.rank
        if rank is None:
            continue
        number = _ranks_of_peers(run, rank, run.table("groups", t.nodes.part))
        columns = (comm["event"].tolist(), comm["peer"].tolist(), comm["group"].tolist())
        for op, event, peer, group in zip(comm.text("op"), *columns, strict=True):
            other = number(peer, group)
            if op == "send" and other is not None:
                sent[rank, other].append((t.nodes.part, event))
            elif op == "recv" and other is not None:
                asked[other, rank].append((t.nodes.part, event))
    matched = [(found, asked[ends]) for ends, found in sent.items() if len(found) == len(asked[ends])]
    pairs = [pair for both in matched for pair in zip(*both, strict=True)]
    pairs = [pair for pair in pairs if all(end in there for end in pair)]
    begins = [max(there[end] for end in pair) for pair in pairs]
    takes = [min(int(over[part][row]) for part, row in pair) - begin for pair, begin in zip(pairs, begins, strict=True)]
    usual = max(int(np.quantile(takes, _MESSAGE_QUANTILE)), 0) if takes else 0
    for pair, begin, took in zip(pairs, begins, takes, strict=True):
        lasts = min(usual, max(took, 0))
        node = builder.node(NodeKind.MEET, -1, -1, -1, begin, lasts)
        for part, row in pair:
            out[part][row] = node, begin + lasts


def _ranks_of_peers(run: Run, rank: int, groups: Table) -> Callable[[int, int], int | None]:
    """(peer in its group, group or missing) -> rank; None where it cannot be told.

    gloo does not say to which group a message belongs. Where the job has a group along the pipeline's axis it is that one, and
    where it has none but that of all ranks it is this.
    """
    rows = [groups.row(i) for i in range(len(groups))]
    members = {row["id"]: list(row["ranks"]) for row in rows if row["ranks"]}
    told = [group for group in run.manifest.groups if rank in (group.get("ranks") or ())]
    staged = [list(group["ranks"]) for group in told if group.get("axis") == "pp"]
    every = [*members.values(), *(group["ranks"] for group in told)]
    alone = not any(len(ranks) < (run.world_size or len(run.parts)) for ranks in every)

    def number(peer: int, group: int) -> int | None:
        of = members.get(group) or (staged[0] if len(staged) == 1 else None)
        if peer == MISSING32:
            return None
        if of is None:
            return peer if alone else None
        return of[peer] if peer < len(of) else None

    return number


def _operations(threads: Threads, builder: Builder, placed: Placed, meets: dict[int, tuple[int, int]]) -> None:
    """Nodes of the handed-over operations, and what they wait for: their call, and the worker thread."""
    nodes = threads.nodes
    lag: list[int] = []
    free: dict[int, int] = {}
    behind: list[tuple[int, int]] = []
    on_threads = set(threads.leaves)
    for op in threads.operations:
        lane, start, end = int(nodes.lane[op.row]), int(nodes.ts[op.row]), int(nodes.end[op.row])
        if op.row in meets:
            placed.arrival[op.row] = builder.node(NodeKind.ARRIVAL, nodes.part, lane, op.row, start, 0)
            placed.done[op.row], placed.ended[op.row] = meets[op.row]
            builder.edge(placed.arrival[op.row], placed.done[op.row], 0, EdgeKind.MEET)
        else:
            placed.arrival[op.row] = placed.done[op.row] = builder.node(
                NodeKind.OP, nodes.part, lane, op.row, start, end - start
            )
            placed.ended[op.row] = end
        if lane not in on_threads:
            if lane in free:
                behind.append((free[lane], op.row))
            if lane not in free or nodes.end[free[lane]] <= nodes.ts[op.call]:
                lag.append(start - int(nodes.ts[op.call]))
            free[lane] = op.row
        else:
            lag.append(start - int(nodes.ts[op.call]))
    for before, after in behind:
        builder.edge(placed.done[before], placed.arrival[after], 0, EdgeKind.STREAM)
    usual = int(np.mean(lag)) if lag else 0
    for op in threads.operations:
        placed.host[op.call] = _host_node(threads, builder, placed, op.call)
        builder.edge(placed.host[op.call], placed.arrival[op.row], usual, EdgeKind.LAUNCH, from_start=True)


def _host_node(threads: Threads, builder: Builder, placed: Placed, row: int) -> int:
    if row in placed.host:
        return placed.host[row]
    nodes = threads.nodes
    start, end, name = int(nodes.ts[row]), int(nodes.end[row]), int(nodes.view.events["name"][row])
    return builder.node(NodeKind.CALL, nodes.part, int(nodes.lane[row]), row, start, end - start, name)


def _threads(threads: Threads, builder: Builder, placed: Placed, waits: list[Wait]) -> None:
    """Thread order with the thinking between two nodes, and the returns of what is waited for."""
    nodes = threads.nodes
    messages = [w for w in waits if threads.is_message(w.operation)]
    for some in (messages, [w for w in waits if not threads.is_message(w.operation)]):
        back = _return_ns(threads, placed, some)
        for wait in some:
            placed.host[wait.site] = _host_node(threads, builder, placed, wait.site)
            builder.edge(placed.done[wait.operation], placed.host[wait.site], back, EdgeKind.BLOCK, certain=False)
    idle = _idle(threads, waits)
    borders = _borders(threads, builder)
    for lane in threads.leaves:
        rows = [row for row in placed.host if nodes.lane[row] == lane]
        points = [(int(nodes.ts[r]), int(nodes.end[r]), placed.host[r], idle.get(r, 0)) for r in rows]
        points = sorted(points + [(at, at, node, 0) for at, node in borders.get(lane, [])])
        if len(points) < 2:
            continue
        lo, hi = np.array([p[1] for p in points[:-1]]), np.array([p[0] for p in points[1:]])
        covered = intervals.measure(nodes.operators(lane), lo, np.maximum(hi, lo)).tolist()
        for before, after, under in zip(points[:-1], points[1:], covered, strict=True):
            lag = after[0] - before[1] - after[3]
            builder.edge(before[2], after[2], lag, EdgeKind.THREAD, covered=min(under, max(lag, 0)))


def _return_ns(threads: Threads, placed: Placed, waits: list[Wait]) -> int:
    """Mean time from the end of an operation to the next operator of a thread that did wait for it.

    Waking up is mostly quick and sometimes very late, and a step holds many of both. A message may have gone long before its
    thread asks, which is when gloo notes the end.
    """
    ended = [(w, placed.ended[w.operation]) for w in waits if w.bound]
    bound = [(w, end) for w, end in ended if not threads.is_message(w.operation) or threads.pause_before(w.lane, w.site) <= end]
    lags = [int(threads.nodes.ts[w.site]) - end for w, end in bound]
    return int(np.mean(lags)) if lags else 0


def _idle(threads: Threads, waits: list[Wait]) -> dict[int, int]:
    """Row of an operator that goes on after waiting -> ns of the pause before it that are waiting.

    Not waiting is, at one place in the program, the least of what was left of the pause after the operations' ends.
    """
    nodes = threads.nodes
    ends: dict[tuple[int, int], int] = defaultdict(int)
    for wait in waits:
        ends[wait.lane, wait.site] = max(ends[wait.lane, wait.site], int(nodes.end[wait.operation]))
    pauses: dict[tuple[int, tuple[str, int]], list[tuple[int, int, int]]] = defaultdict(list)
    for (lane, site), end in ends.items():
        began, goes_on = threads.pause_before(lane, site), int(nodes.ts[site])
        left = max(goes_on - max(min(end, goes_on), began), 0)
        pauses[lane, threads.sites[lane][site]].append((site, max(goes_on - began, 0), left))
    least = {place: min(left for _, _, left in found) for place, found in pauses.items()}
    return {site: pause - least[place] for place, found in pauses.items() for site, pause, _ in found}


def _borders(threads: Threads, builder: Builder) -> dict[int, list[tuple[int, int]]]:
    """Lane of the training thread -> (instant, node) where a captured step begins, or ends and none follows."""
    nodes = threads.nodes
    steps = nodes.run.table("steps", nodes.part)
    lane = max(threads.leaves, key=lambda at: len(threads.leaves[at]), default=None)
    if lane is None:
        return {}
    traced = set(np.unique(threads.step[threads.leaves[lane]]).tolist())
    rows = [i for i, step in enumerate(steps["step"].tolist()) if step in traced and steps["host_dur"][i] != MISSING]
    starts: Ints = steps["host_ts"][rows] + nodes.offset
    ends: Ints = starts + steps["host_dur"][rows]
    out = []
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        out.append((start, builder.node(NodeKind.STEP, nodes.part, lane, -1, start, 0)))
        if at + 1 == len(rows) or starts[at + 1] > end:
            out.append((end, builder.node(NodeKind.STEP, nodes.part, lane, -1, end, 0)))
    return {lane: out}
