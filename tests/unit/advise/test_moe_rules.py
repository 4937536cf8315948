"""Experts: tokens, whose they are, and what their imbalance costs, on runs whose truth is known by construction."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape
from tests.unit.shapes.moe import moe_all_to_all_v

LAYERS = 3


def job(tokens, *, us=10, dropped=None, steps=3, present=None, hosts=None, ranks=2):
    """Two experts per rank, ``us`` per token; in every layer a dispatch and a combine of 40 us that all leave together."""
    per = len(tokens) // ranks
    load = [sum(tokens[r * per : (r + 1) * per]) for r in range(ranks)]
    builders = []
    for r in range(ranks):
        if present is not None and r not in present:
            continue
        p = PartBuilder(len(builders), r, world_size=ranks, backend="nccl", host=(hosts or ["a"] * ranks)[r])
        thread = p.thread()
        work, talk = (thread, p.stream(7)), (thread, p.stream(20, "communication"))
        group = p.group("ep", tuple(range(ranks)), axis="ep")
        at, seq = 10, 0
        for step in range(steps):
            begin = at - 10
            for n in range(LAYERS):
                layer = f"moe.{n}"
                p.launched(work, "kernel", "router", at, at + 100, at - 8, step=step, layer=layer)
                send = p.launched(talk, "comm", "SendRecv", at + 100, at + 140, at - 7, step=step, layer=layer)
                p.comm(send, "all_to_all", group, seq, 4096, bytes_wire=2048)
                end = at + 140 + load[r] * us
                p.launched(work, "kernel", "experts", at + 140, end, at - 6, step=step, layer=layer, expert=r * per)
                last = at + 180 + max(load) * us
                back = p.launched(talk, "comm", "SendRecv", end, last, at - 5, step=step, layer=layer)
                p.comm(back, "all_to_all", group, seq + 1, 4096, bytes_wire=2048)
                at, seq = last, seq + 2
                for e in range(r * per, (r + 1) * per):
                    p.add("metrics", step=step, metric="moe_tokens", value=float(tokens[e]), layer=layer, expert=e)
                if dropped:
                    for e, n_ in enumerate(dropped):
                        p.add("metrics", step=step, metric="moe_dropped", value=n_ / ranks, layer=layer, expert=e)
            p.launched(work, "kernel", "adam", at, at + 50, at - 4, step=step)
            at += 60
            p.step(step, begin, at - 10)
        builders.append(p)
    return matched(shape(builders, {}, world_size=ranks, mesh={"ep": ranks}))


def rules(run):
    return {f.rule: f for f in findings(study_of(run)) if f.rule.startswith(("moe.", "comm.group"))}


def test_a_hot_expert_is_named_with_its_rank_and_price():
    finding = rules(job([20, 20, 20, 80]))["moe.expert_balance"]
    assert finding.ranks == (1,)
    assert "Expert 3 gets 57% of the tokens" in finding.title
    # rank 1 computes 600 us longer than rank 0 in each layer: half of that is the excess over the mean
    assert finding.seconds_per_step == pytest.approx(LAYERS * 300e-6, rel=0.05)
    assert finding.severity == "high"
    assert "3: 80" in finding.evidence[0].text
    assert finding.evidence[0].count > 0


def test_layers_have_milliseconds_and_bytes_without_the_own_share():
    result = study_of(job([20, 20, 20, 80])).result("moe")
    layer = result.layers[0]
    assert layer.lost_ns == pytest.approx(300_000, rel=0.01)
    assert layer.wire_bytes == 2 * 2048
    assert layer.rank_ratio == pytest.approx(100 / 70)
    assert result.owners == {0: (0,), 1: (0,), 2: (1,), 3: (1,)}


@pytest.mark.parametrize("tokens", [[30, 30, 30, 30], [30, 33, 28, 31]])
def test_even_experts_are_healthy(tokens):
    assert rules(job(tokens)) == {}


def test_imbalance_that_costs_nothing_is_low():
    finding = rules(job([20, 20, 20, 80], us=0))["moe.expert_balance"]
    assert finding.severity == "low"


def test_a_rank_that_is_missing_leaves_no_price():
    assert rules(job([20, 20, 20, 80], present=(1,))) == {}
    finding = rules(job([1] * 7 + [93], ranks=4, present=(2, 3)))["moe.expert_balance"]
    assert finding.seconds_per_step is None and finding.ranks == (3,)


def test_dropped_assignments_are_told_with_their_layer():
    finding = rules(job([30, 30, 30, 30], dropped=[0, 0, 0, 20]))["moe.capacity"]
    assert "14% of the assignments" in finding.title
    assert finding.severity == "low" and finding.seconds_per_step is None
    assert "moe.capacity" not in rules(job([30, 30, 30, 30], dropped=[0, 1, 0, 1]))


def test_what_every_rank_sends_is_no_owner():
    """The shape records what each rank sends to each expert: whose they are is read from the events."""
    result = study_of(matched(moe_all_to_all_v())).result("moe")
    (layer,) = result.layers
    assert list(layer.tokens.values()) == [45, 35, 45, 135]
    assert result.owners == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    assert layer.wire_bytes is None  # the combine's split was cut off


def test_expert_groups_between_hosts_are_told_where_they_fit_into_one():
    def four(hosts):
        return rules(job([30] * 8, us=1, ranks=4, hosts=hosts))

    assert "moe.groups_across_nodes" not in four(["a", "a", "b", "b"])  # no host holds four
    assert "moe.groups_across_nodes" not in four(["a"] * 4)
