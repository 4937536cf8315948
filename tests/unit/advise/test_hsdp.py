"""HSDP: a sum over copies that waits behind the scattering of shards although their links differ (pytorch/pytorch#106080)."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.catalogue.hardware import gpu_of
from dtprof.plan.presets import preset
from dtprof.plan.search import Wanted
from dtprof.plan.search.space import Space
from dtprof.plan.software import software
from dtprof.plan.spec import Cluster
from tests.unit.shapes.build import PartBuilder, matched, shape

SHARD, COPIES = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def hsdp(scatter=20_000, reduce=23_000, gap=10, own_stream=False, computes=0, hosts="aabb"):
    """2 x 2 ranks: compute, a reduce-scatter over shards, an all-reduce over copies; group names differ on every rank."""
    builders = []
    for rank in range(4):
        p = PartBuilder(rank, rank, world_size=4, host=hosts[rank], device="NVIDIA H100 80GB HBM3")
        thread, stream, other = p.thread(), p.stream(7), p.stream(20, "communication")
        last = p.stream(24, "communication") if own_stream else other
        shard = next(ranks for ranks in SHARD if rank in ranks)
        copies = next(ranks for ranks in COPIES if rank in ranks)
        groups = p.group(f"hash{rank}a", shard), p.group(f"hash{rank}b", copies)
        for step in range(3):
            at = step * 100_000
            p.launched((thread, stream), "kernel", "gemm", at + 100, at + 40_000, at, step=step)
            done = at + 40_000 + scatter
            first = p.launched((thread, other), "comm", "ncclDevKernel_ReduceScatter", at + 40_000, done, at + 50, step=step)
            p.comm(first, "reduce_scatter", groups[0], step, 1 << 28)
            begins = at + 40_000 if own_stream else done + gap
            second = p.launched((thread, last), "comm", "ncclDevKernel_AllReduce", begins, begins + reduce, at + 60, step=step)
            p.comm(second, "all_reduce", groups[1], step, 1 << 28)
            if computes:
                p.launched((thread, stream), "kernel", "gemm", at + 40_000, at + 40_000 + computes, at + 70, step=step)
            p.step(step, at, at + 100_000)
        builders.append(p)
    return matched(shape(builders, {}, world_size=4, mesh={"replicate": 2, "shard": 2}))


def serial(run):
    return [f for f in findings(study_of(run)) if f.rule == "layout.hsdp_serial"]


def test_the_two_groups_are_told_by_their_ranks_and_the_gain_is_the_shorter_of_them():
    run = hsdp()
    groups = {tuple(o.wait_ns) for o in study_of(run).result("comm").operations if o.op == "all_reduce"}
    assert groups == set(COPIES)
    (finding,) = serial(run)
    assert finding.seconds_per_step == pytest.approx(20e-3)
    assert finding.bound
    assert finding.ranks == (0, 1, 2, 3)
    told = " ".join(e.text for e in finding.evidence).replace("\u00a0", " ")
    assert "scattering over shards 20.0 ms, summing over copies 23.0 ms" in told
    assert "Shards lie inside a host and copies across" in told
    assert "ranks 0, 1 and ranks 2, 3" in finding.title.replace("\u00a0", " ")


def test_the_gain_is_bounded_by_the_sum_where_that_is_shorter():
    (finding,) = serial(hsdp(reduce=9_000))
    assert finding.seconds_per_step == pytest.approx(9e-3)


def test_shards_over_hosts_are_told_to_be_the_wrong_way_round():
    (finding,) = serial(hsdp(hosts="abab"))
    assert "belong inside one, and copies across" in finding.evidence[1].text


def test_side_by_side_or_apart_or_hidden_is_none():
    assert serial(hsdp(own_stream=True)) == []
    assert serial(hsdp(gap=5_000)) == []
    assert serial(hsdp(computes=43_000)) == []


def test_a_plan_keeps_shards_inside_a_node():
    gpu = gpu_of("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    wanted = Wanted(preset("Llama 3 8B"), Cluster(gpu, 4, 2, 80 * 10**9, 450, 50), software("fsdp2"), 4096, 64, zero=(3,))
    space = Space(wanted, 4, 64, lambda *_: None)
    shards = {layout.shard for grid in space.grids() if grid[3] == 4 for layout in space.layouts(grid)}
    assert shards == {0, 2}
