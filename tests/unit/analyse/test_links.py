"""Links between hosts, compared by the counters of their connections: the slow one named by who sends over it."""

from __future__ import annotations

import pytest

from dtprof.advise.rules.comm import Waiting
from dtprof.advise.rules.comm_link import SlowLink
from dtprof.analyse import study_of
from dtprof.analyse.links import hosts_of_ranks
from tests.unit.shapes.build import PartBuilder, matched, shape

MB, STEPS = 1_000_000, 20
USUAL, SLOW = 125.0, 25.0  # bytes per microsecond: 1 Gbit/s, 200 Mbit/s


def job(rates, *, ranks=3, sent=10 * MB, address=lambda rank: f"10.0.0.{rank}", unread=0, nodes=None, hosts=None, late=0):
    """Ranks that all send to each other at ``rates.get((source, target))``, and reduce for 20 ms of every 50.

    In every step another rank comes ``late`` us after the others.
    """
    builders = []
    for rank in range(ranks):
        told = [
            {
                "local": f"{address(rank)}:{100 * rank + to}", "peer": f"{address(to)}:{100 * to + rank}", "sent": sent,
                "busy_us": round(sent / rates.get((rank, to), USUAL)) + unread, "unread_us": unread,
            }
            for to in range(ranks) if to != rank
        ]  # fmt: skip
        facts = {"connections": told, **({} if nodes is None else {"node": nodes[rank]})}
        extra = {"steps_done": STEPS, "collectors": [{"name": "sockets", "state": "on", "facts": facts}]}
        made = PartBuilder(rank, rank, world_size=ranks, extra=extra, host="a" if hosts is None else hosts[rank])
        thread, worker = made.thread(), made.thread("gloo", 2, "pt_gloo_runner")
        group = made.group("0", tuple(range(ranks)), backend="gloo")
        for step in range(3):
            at = step * 50_000
            begin = at + 30_000 + (late if rank == step % ranks else 0)
            made.span(thread, "cpu_op", "aten::mm", at, at + 30_000, step=step)
            event = made.span(worker, "comm", "gloo:all_reduce", begin, at + 50_000, step=step)
            made.comm(event, "all_reduce", group, step, 1 << 20)
            made.step(step, at, at + 50_000)
        builders.append(made)
    return matched(shape(builders, {}, "dtprof", world_size=ranks))


def told(run):
    return list(SlowLink().find(study_of(run)))


def test_who_sends_slowly_is_named_with_what_it_costs():
    (found,) = told(job({(1, 0): SLOW, (1, 2): SLOW}))
    assert found.ranks == (1,)
    # 0.5 MB per step at 25 instead of 125 bytes per us; more than is exposed it cannot cost
    assert found.seconds_per_step == pytest.approx(0.016, rel=0.01)
    (most,) = told(job({(1, 0): SLOW / 2, (1, 2): SLOW / 2}, sent=10 * MB))
    assert most.seconds_per_step == pytest.approx(0.020, rel=0.01)
    assert found.title == "What rank 1 sends goes at 20% of the rate of the other links"
    assert "rank 1 to rank 0 200 Mbit/s" in found.evidence[0].text


def test_what_reaches_one_rank_slowly_is_its_host_too():
    (found,) = told(job({(0, 2): SLOW, (1, 2): SLOW}))
    assert found.ranks == (2,)
    assert "receives" in found.title


def test_one_link_of_two_is_slow():
    (found,) = told(job({(1, 0): SLOW}, ranks=2))
    assert found.ranks == (1,)


@pytest.mark.parametrize(
    "run",
    [
        job({}),
        job({(1, 0): 0.8 * USUAL, (1, 2): 0.8 * USUAL}),
        job(dict.fromkeys(((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)), SLOW)),
        job({(1, 0): SLOW}, address=lambda _rank: "127.0.0.1"),
        job({(1, 0): SLOW, (1, 2): SLOW}, sent=MB),
    ],
    ids=["alike", "within the noise", "all alike slow", "on one host", "few bytes"],
)
def test_nothing_is_said_where_no_link_differs_or_none_can_be_compared(run):
    assert told(run) == []


def test_who_comes_late_because_of_a_slow_link_is_not_blamed():
    assert len(list(Waiting().find(study_of(job({}, late=15_000))))) == 1
    assert not list(Waiting().find(study_of(job({(1, 0): SLOW, (1, 2): SLOW}, late=15_000))))


def test_a_peer_that_does_not_read_is_no_slow_link():
    assert told(job({}, unread=5_000_000)) == []


def test_ranks_of_one_name_are_on_several_hosts_where_launcher_and_addresses_say_so():
    names = hosts_of_ranks(job({}, nodes=["0", "1", "2"]))
    assert len(set(names.values())) == 3
    assert set(hosts_of_ranks(job({})).values()) == {"a"}
    assert set(hosts_of_ranks(job({}, nodes=["0", "1", "1"], address=lambda _rank: "127.0.0.1")).values()) == {"a"}
    assert hosts_of_ranks(job({}, hosts=["x", "y", "y"])) == {0: "x", 1: "y", 2: "y"}
