"""Who talks to whom: messages between two ranks, bytes that ranks put into each group, and what counters of links read.

A message names its pair of ranks. A collective names its group alone: which bytes pass between which two members is the
algorithm's choice, and is in no trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.links import LinksResult, hosts_of_ranks
from dtprof.analyse.results import Operation
from dtprof.numbers import bandwidth, counted, size
from dtprof.report.charts.matrix import Cell, log_level
from dtprof.report.operations import group_words, op_words
from dtprof.run import Part, Run
from dtprof.schema import POINT_TO_POINT

_COUNTERS = ("nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx")
PIPELINE_AXIS = "pp"


@dataclass(frozen=True)
class Pair:
    """Messages from rank ``src`` to rank ``dst`` in all steps looked at: how many, their bytes, and the best bytes per ns of a
    receive. It waits for its message as well, so a link is at least that fast; None where none was recorded.
    """

    src: int
    dst: int
    messages: int
    bytes: int
    gb_s: float | None


def pairs(run: Run, steps: Collection[int] | None) -> tuple[list[Pair], int]:
    """The pairs that exchange messages in these steps (None: in all), and how many messages name no peer that can be told."""
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    got: dict[tuple[int, int], tuple[int, int]] = {}
    best: dict[tuple[int, int], float] = {}
    lost = 0
    for part in run.parts:
        events, table = run.table("events", part.ordinal), run.table("comm", part.ordinal)
        chosen = table.is_("op", *POINT_TO_POINT)
        if steps is not None:
            chosen &= np.isin(events["step"][table["event"]], list(steps))
        rows = table.take(chosen)
        held, dur = np.maximum(np.maximum(rows["bytes_in"], rows["bytes_out"]), 0), events["dur"][rows["event"]]
        for peer, group in sorted(set(zip(rows["peer"].tolist(), rows["group"].tolist(), strict=True))):
            other = _global(run, part, peer, group)
            mine = (rows["peer"] == peer) & (rows["group"] == group)
            told = mine & rows.is_("op", "send", "recv")
            if other is None or part.rank is None:
                lost += int(mine.sum())
                continue
            lost += int(mine.sum() - told.sum())
            for op, into, key in (("send", sent, (part.rank, other)), ("recv", got, (other, part.rank))):
                at = np.flatnonzero(told & rows.is_("op", op))
                if len(at):
                    count, total = into.get(key, (0, 0))
                    into[key] = count + len(at), total + int(held[at].sum())
                    if op == "recv":
                        best[key] = max(best.get(key, 0.0), float(np.max(held[at] / np.maximum(dur[at], 1))))
    keys = sorted({*sent, *got})
    return [Pair(*key, *max(sent.get(key, (0, 0)), got.get(key, (0, 0))), best.get(key) or None) for key in keys], lost


def _global(run: Run, part: Part, peer: int, group: int) -> int | None:
    """The rank of a peer, which is numbered inside its group; None where the group is not known and there are several."""
    if peer < 0 or part.rank is None:
        return None
    table = run.table("groups", part.ordinal)
    known = [table.row(i) for i in range(len(table))]
    mine = [row["ranks"] for row in known if row["id"] == group and row["ranks"]]
    if group < 0:
        told = run.manifest.groups
        mine = [g["ranks"] for g in told if g.get("axis") == PIPELINE_AXIS and part.rank in (g.get("ranks") or ())]
    if mine:
        return int(mine[0][peer]) if peer < len(mine[0]) else None
    return peer if all(len(row["ranks"] or ()) in (0, run.world_size) for row in known) else None


def pair_rows(found: list[Pair], steps: int, drawn: list[int]) -> list[tuple[str, list[Cell]]]:
    """A row for each sender, a cell for each receiver: bytes per step."""
    held = {(p.src, p.dst): p for p in found}
    top = max((p.bytes for p in found), default=0) / steps
    return [(f"from rank {src}", [_pair_cell(held.get((src, dst)), src, dst, steps, top) for dst in drawn]) for src in drawn]


def _pair_cell(pair: Pair | None, src: int, dst: int, steps: int, top: float) -> Cell:
    who = f"rank {src} to rank {dst}"
    if pair is None:
        return Cell(None, "", f"{who} · no message")
    rate = "bandwidth not known" if pair.gb_s is None else f"at least {bandwidth(pair.gb_s)}"
    told = f"{who} · {size(round(pair.bytes / steps))} and {counted(round(pair.messages / steps), 'message')} per step · {rate}"
    return Cell(log_level(pair.bytes / steps, top), size(round(pair.bytes / steps)), told)


def group_rows(run: Run, operations: list[Operation], steps: int, drawn: list[int]) -> list[tuple[str, list[Cell]]]:
    """A row for each group of collectives, a cell for each member: bytes of its operations per step, most bytes first."""
    by_group: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.op not in POINT_TO_POINT and operation.bytes:
            by_group[operation.group].append(operation)
    sums = {group: {r: sum(o.bytes or 0 for o in mine if r in o.dur_ns) for r in drawn} for group, mine in by_group.items()}
    top = max((v for row in sums.values() for v in row.values()), default=0) / steps
    hosts = hosts_of_ranks(run)
    axes = {tuple(g["ranks"]): g["axis"] for g in run.manifest.groups if g.get("ranks") and g.get("axis")}
    rows = []
    for group in sorted(by_group, key=lambda g: -sum(sums[g].values())):
        mine = by_group[group]
        ranks = tuple(sorted({rank for o in mine for rank in o.dur_ns}))
        places = {hosts.get(rank) for rank in ranks}
        where = "" if None in places else "one host" if len(places) == 1 else counted(len(places), "host")
        name = ", ".join(filter(None, (group_words(group) if group else "group not known", axes.get(ranks, ""), where)))
        ops = ", ".join(sorted({op_words(o.op) for o in mine}))
        rates = [o.busbw_gb_s for o in mine if o.busbw_gb_s is not None]
        rate = f"bus bandwidth up to {bandwidth(max(rates))}" if rates else "bandwidth not known"
        cells = [
            Cell(log_level(sums[group][rank] / steps, top), size(round(sums[group][rank] / steps)),
                 f"rank {rank} · {name} · {ops}: {size(round(sums[group][rank] / steps))} per step · {rate}")
            if rank in ranks else Cell(None, "", f"rank {rank} · not in {name}")
            for rank in drawn
        ]  # fmt: skip
        rows.append((name, cells))
    return rows


def link_rows(found: LinksResult, drawn: list[int]) -> list[tuple[str, list[Cell]]]:
    """A row for each sending rank, a cell for each receiver on another host: GB/s, the slow ones bold."""
    held = {(link.source, link.target): link for link in found.links}
    top = max((link.bytes_per_s for link in found.links), default=0.0)
    slow = {(link.source, link.target) for link in found.slow}

    def cell(src: int, dst: int) -> Cell:
        link = held.get((src, dst))
        who = f"rank {src} to rank {dst}"
        if link is None:
            return Cell(None, "", f"{who} · no connection between hosts was measured")
        told = f"{who} · {bandwidth(link.bytes_per_s / 1e9)}, {size(round(link.bytes_per_step))} per step"
        told += f" · slow: the others {bandwidth(found.usual_bytes_per_s / 1e9)}" if (src, dst) in slow else ""
        return Cell(link.bytes_per_s / top if top else 0.01, bandwidth(link.bytes_per_s / 1e9), told, (src, dst) in slow)

    return [(f"from rank {src}", [cell(src, dst) for dst in drawn]) for src in drawn]


def counters(run: Run) -> list[list[str]]:
    """What links of devices carried while they were read: rank, counter, mean and most, GB/s."""
    rows = []
    for part in run.parts:
        table = run.table("samples", part.ordinal)
        for metric in _COUNTERS:
            values = table["value"][table.is_("metric", metric)]
            values = values[np.isfinite(values)]
            if len(values):
                who = f"rank {part.rank}" if part.rank is not None else f"process {part.ordinal}"
                rows.append([who, metric, bandwidth(float(values.mean()) / 1e9), bandwidth(float(values.max()) / 1e9)])
    return rows
