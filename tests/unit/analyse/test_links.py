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


def job(
    rates,
    *,
    ranks=3,
    sent=10 * MB,
    address=lambda rank: f"10.0.0.{rank}",
    unread=0,
    nodes=None,
    hosts=None,
    late=0,
    limited=None,
    queued=None,
):
    """Ranks that all send to each other at ``rates.get((source, target))``, and reduce for 20 ms of every 50.

    ``limited``: (source, target) -> bytes per microsecond of those of 20 readings at which the network was the limit;
    ``queued``: (source, target) -> at how many of them bytes had not left.

    In every step another rank comes ``late`` us after the others.
    """
    builders = []
    for rank in range(ranks):
        told = [
            {
                "local": f"{address(rank)}:{100 * rank + to}", "peer": f"{address(to)}:{100 * to + rank}", "sent": sent,
                "busy_us": round(sent / rates.get((rank, to), USUAL)) + unread, "unread_us": unread,
                "readings": 20, "queued": (queued or {}).get((rank, to), 0),
                "limited": [1e6 * x for x in (limited or {}).get((rank, to), ())],
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
    others = {(0, 1): [USUAL / 9] * 10 + [USUAL] * 20 + [40 * USUAL]}  # single rates tell nothing
    (found,) = told(job({(1, 0): SLOW, (1, 2): SLOW}, limited=others))
    assert found.ranks == (1,) and not found.bound
    # of the 20 ms that are exposed a fifth is left at 125 instead of 25 bytes per us
    assert found.seconds_per_step == pytest.approx(0.016, rel=0.01)
    (most,) = told(job({(1, 0): SLOW / 2, (1, 2): SLOW / 2}, limited=others))
    assert most.seconds_per_step == pytest.approx(0.018, rel=0.01)
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


@pytest.mark.parametrize("limited", [None, {(0, 1): [USUAL] * 7}, {(0, 1): [USUAL / 2] * 9}], ids=["never", "rare", "lower"])
def test_where_the_network_was_hardly_ever_the_others_limit_the_price_is_a_bound(limited):
    (found,) = told(job({(1, 0): SLOW, (1, 2): SLOW}, limited=limited))
    assert found.bound and found.seconds_per_step == pytest.approx(0.020, rel=0.01)
    # 0.5 MB take 10 ms at 50 bytes per us, which is less than is exposed
    (less,) = told(job({(1, 0): 50, (1, 2): 50}))
    assert less.seconds_per_step == pytest.approx(0.010, rel=0.01)


ACKNOWLEDGED_LATE = {(1, 0): 0.7 * USUAL}


@pytest.mark.parametrize(
    ("limited", "queued", "slow"),
    [
        ({}, {}, False),
        ({(0, 1): [USUAL] * 4, (1, 0): [SLOW] * 4}, {}, True),
        ({(0, 1): [USUAL] * 4, (1, 0): [USUAL] * 4}, {}, False),
        ({}, {(1, 0): 6}, True),
        ({}, {(0, 1): 6, (1, 0): 8}, False),
        ({}, {(0, 1): 6}, False),
    ],
    ids=["no witness", "lower rate", "both have one rate", "bytes wait there", "bytes wait on both", "bytes wait elsewhere"],
)
def test_a_link_that_is_not_much_slower_needs_a_witness(limited, queued, slow):
    found = told(job(ACKNOWLEDGED_LATE, limited=limited, queued=queued, ranks=2))
    assert [f.ranks for f in found] == ([(1,)] if slow else [])


@pytest.mark.parametrize(("often", "slow"), [(5, True), (1, False)])
def test_a_host_where_bytes_wait_and_all_links_look_slow(often, slow):
    apart = {(source, to): SLOW for source in range(4) for to in range(4)}
    late = {key: 0.9 * SLOW if key[0] > 1 else SLOW for key in apart}
    queued = {key: often for key in apart if key[0] > 1 and key[1] < 2}
    found = told(job(late, ranks=4, queued=queued, address=lambda rank: f"10.0.0.{rank // 2}"))
    assert [f.ranks for f in found] == ([(2, 3)] if slow else [])


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
