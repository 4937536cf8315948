"""Who talks to whom: messages by pair with ranks of the whole job, groups by member, counters of links."""

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof.analyse.links import Link, LinksResult
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table
from dtprof_dashboards.links import Pair, counters, link_rows, pairs

US = 1000


def job(messages, groups=(), ranks=4, known=(), counted=()):
    """A run of ranks with messages (rank, op, peer, group, bytes, microseconds, step)."""
    tables = {}
    for rank in range(ranks):
        mine = [m for m in messages if m[0] == rank]
        at = np.arange(len(mine), dtype=np.int64) * 10**6
        tables["events", rank] = Table.of(
            "events", ts=at, dur=[m[5] * US for m in mine], kind=["comm"] * len(mine), name=[m[1] for m in mine],
            lane=[0] * len(mine), step=[m[6] for m in mine],
        )  # fmt: skip
        tables["comm", rank] = Table.of(
            "comm", event=list(range(len(mine))), op=[m[1] for m in mine], group=[m[3] for m in mine],
            peer=[m[2] for m in mine], bytes_in=[m[4] for m in mine], bytes_out=[m[4] for m in mine],
        )  # fmt: skip
        tables["groups", rank] = Table.of(
            "groups", id=[g for g, _ in known], ranks=[r for _, r in known], size=[len(r) for _, r in known]
        )
        read = [c for c in counted if c[0] == rank]
        tables["samples", rank] = Table.of(
            "samples",
            ts=list(range(len(read))),
            metric=[c[1] for c in read],
            value=[c[2] for c in read],
            unit=["B/s"] * len(read),
        )
    told = [{"name": axis, "axis": axis, "ranks": list(members)} for axis, members in groups]
    parts = [Part(ordinal=r, rank=r) for r in range(ranks)]
    return Run(Manifest(world_size=ranks, groups=told, parts=parts), MemoryStore(tables), "made", "dtprof")


def test_a_message_is_counted_once_and_its_receive_bounds_the_link():
    sent = [(0, "send", 1, -1, 1000, 50, s) for s in (1, 2)]
    got = [(1, "recv", 0, -1, 1000, us, s) for us, s in ((10, 1), (4, 2))]
    found, lost = pairs(job([*sent, *got]), None)
    assert found == [Pair(0, 1, 2, 2000, 1000 / 4000)] and lost == 0
    assert pairs(job([*sent, *got]), [1])[0] == [Pair(0, 1, 1, 1000, 1000 / 10000)]


def test_a_pair_of_which_one_rank_is_missing_is_known_by_the_other():
    assert pairs(job([(0, "send", 3, -1, 500, 1, 1)]), None)[0] == [Pair(0, 3, 1, 500, None)]
    assert pairs(job([(3, "recv", 0, -1, 500, 1, 1)]), None)[0] == [Pair(0, 3, 1, 500, 0.5)]


def test_a_peer_is_a_number_inside_its_group():
    messages = [(0, "send", 1, 7, 500, 1, 1)]
    assert pairs(job(messages, known=[(7, (0, 2))]), None)[0] == [Pair(0, 2, 1, 500, None)]
    stages = [("pp", (0, 3)), ("pp", (1, 2)), ("dp", (0, 1))]
    unnamed = [(1, "send", 1, -2147483648, 500, 1, 1)]
    assert pairs(job(unnamed, groups=stages), None)[0] == [Pair(1, 2, 1, 500, None)]


def test_a_peer_that_several_groups_could_mean_is_not_guessed():
    messages = [(0, "send", 1, -2147483648, 500, 1, 1), (0, "send", 5, 7, 500, 1, 1), (0, "send_recv", 1, 7, 1, 1, 1)]
    assert pairs(job(messages, known=[(7, (0, 2)), (8, (1, 3))]), None) == ([], 3)


def test_counters_of_links():
    read = [(1, "nvlink_tx", 1e9), (1, "nvlink_tx", 3e9), (1, "sm_clock", 5.0), (2, "pcie_rx", float("nan"))]
    assert [[c.replace("\u00a0", " ") for c in row] for row in counters(job([], counted=read))] == [
        ["rank 1", "nvlink_tx", "2.00 GB/s", "3.00 GB/s"]
    ]


def test_a_slow_link_is_bold_and_says_what_the_others_reach():
    slow, usual = Link(2, 0, 1e6, 1e7), Link(0, 2, 1e6, 1e8)
    rows = link_rows(LinksResult((slow, usual), (slow,), 1e8, None, ""), [0, 2])
    assert [name for name, _ in rows] == ["from rank 0", "from rank 2"]
    (none, fast), (low, _) = (cells for _, cells in rows)
    assert none.level is None and (fast.level, fast.bold) == (1.0, False) and low.level == 0.1 and low.bold
    assert low.title.replace("\u00a0", " ").endswith("slow: the others 0.10 GB/s")
