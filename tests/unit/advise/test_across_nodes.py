"""Groups that span hosts: named where they would fit into one, and silent where the others belong inside rather."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape

MIB = 1 << 20
PAIRS = {"tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)]}


def job(sizes, hosts, axes=("tp", "dp"), steps=3):
    """Four ranks; one exposed all-reduce per axis and step of so many bytes, 1 us per 1000 of them, after 5 ms of computing."""
    builders = []
    for r in range(4):
        p = PartBuilder(r, r, world_size=4, host=hosts[r])
        thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
        at = 20
        for step in range(steps):
            begin = at - 20
            p.launched((thread, main), "kernel", "gemm", at, at + 5000, at - 10, step=step)
            at += 5000
            for n, axis in enumerate(axes):
                mine = next(g for g in PAIRS[("tp", "dp")[n]] if r in g)
                if step == 0:
                    p.group(f"{n}", mine, axis=axis)
                event = p.launched((thread, side), "comm", "AllReduce", at, at + sizes[n] // 1000, at - 9, step=step)
                p.comm(event, "all_reduce", n, step, sizes[n])
                at += sizes[n] // 1000
            p.step(step, begin, at)
            at += 30
        builders.append(p)
    return matched(shape(builders, {}, world_size=4, mesh={"dp": 2, "tp": 2}))


def rules(run):
    return {f.rule: f for f in findings(study_of(run)) if "across" in f.rule}


APART = ["a", "b", "a", "b"]


def test_tensor_parallelism_between_hosts_is_named_with_its_price():
    finding = rules(job((2 * MIB, MIB // 8), APART))["tp.across_nodes"]
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.seconds_per_step == pytest.approx(2 * MIB / 1000 * 1e-6, rel=0.01)
    assert finding.bound
    assert "would fit into one" in finding.title
    assert finding.evidence[0].count == 4 * 2  # the last step is not whole


@pytest.mark.parametrize(
    ("axis", "rule"), [("tp", "tp.across_nodes"), ("ep", "moe.groups_across_nodes"), ("shard", "comm.group_across_nodes")]
)
def test_each_axis_has_its_rule(axis, rule):
    assert list(rules(job((2 * MIB, MIB // 8), APART, axes=(axis, "dp")))) == [rule]


@pytest.mark.parametrize(
    ("sizes", "hosts"),
    [
        ((2 * MIB, MIB // 8), ["a", "a", "b", "b"]),  # where it belongs
        ((2 * MIB, MIB // 8), ["a"] * 4),
        ((2 * MIB, MIB // 8), [None] * 4),
        ((MIB // 8, 2 * MIB), APART),  # what is inside sends more: shards belong there
        ((8192, 1024), APART),  # costs nothing
    ],
    ids=["inside", "one host", "hosts unknown", "the other belongs inside", "cheap"],
)
def test_it_is_silent_where_nothing_is_gained(sizes, hosts):
    assert rules(job(sizes, hosts)) == {}


@pytest.mark.parametrize(("axis", "word"), [("tp", "tensor parallelism"), ("ep", "experts"), ("dp", "buckets")])
def test_exposed_communication_is_given_the_advice_of_its_axis(axis, word):
    found = {f.rule: f for f in findings(study_of(job((2 * MIB, 1024), ["a"] * 4, axes=(axis, "other"))))}
    assert word in found["comm.exposed"].next
