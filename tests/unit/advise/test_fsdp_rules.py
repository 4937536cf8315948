"""Gathers of sharded parameters that nothing hides, and why: each cause by construction, and a control."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.kineto_maker import Trace, study
from tests.unit.model.test_fsdp import measured
from tests.unit.shapes.build import PartBuilder, matched, shape

WORLD = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}
NAMED = {
    "gather": {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 20, **WORLD},
    "scatter": {"Collective name": "_reduce_scatter_base", "In msg nelems": 20, "Out msg nelems": 10, **WORLD},
}


def trace(path, cause, layers=4, op="gather"):
    """Two ranks; layers of 4 ms, each with a gather of 2 ms; a host sync of 3 ms, a late request, or a queue exposes it."""
    for rank in range(2):
        t = Trace(rank, 2)
        for k in range(4):
            base = 40_000 * k
            t.step(k, base, base + 40_000)
            at = base + 4_100
            t.run("gemm", base + 50, base + 100, at)
            for layer in range(layers):
                late = cause != "control" and layer > 0
                asked = at - 10 if late and cause != "order" else at - 3000
                start = at if late else at - 2100
                if late and cause == "sync":
                    t.op("aten::item", at - 3100, at - 15)
                    t.span("cuda_runtime", "cudaStreamSynchronize", at - 3050, at - 20, correlation=10_000 + 10 * k + layer)
                if late and cause == "order":
                    t.run("ncclDevKernel_ReduceScatter", at - 3100, at - 1500, at, stream=20, **NAMED["scatter"])
                t.run("ncclDevKernel", asked, start, start + 2000, stream=20, **NAMED[op])
                begin = start + 2000 if late else at
                t.run("gemm", at - 5, begin, begin + 4000)
                at = begin + 4000
        t.write(path / f"rank{rank}.json")
    return study(path)


def rules(lens):
    return [f for f in findings(lens) if f.rule == "overlap.fsdp_exposed"]


def test_a_host_sync_before_every_gather_is_named(tmp_path):
    (finding,) = rules(trace(tmp_path, "sync"))
    assert finding.seconds_per_step == pytest.approx(3 * 2e-3, rel=0.01)
    assert "cudaStreamSynchronize in aten::item" in finding.title
    assert "prefetch" in finding.next and "bandwidth" not in finding.title
    assert finding.evidence[0].count == 3 * 3 * 2


def test_a_late_request_is_told_from_a_sync(tmp_path):
    (finding,) = rules(trace(tmp_path, "launch"))
    assert "asks for them only when they are needed" in finding.title
    assert finding.seconds_per_step == pytest.approx(3 * 2e-3, rel=0.01)


def test_reductions_cannot_be_asked_for_earlier(tmp_path):
    (finding,) = rules(trace(tmp_path, "launch", op="scatter"))
    assert "reductions of gradients that nothing hides" in finding.title
    assert "prefetch" not in finding.next and "set_requires_gradient_sync" in finding.next


def test_what_stands_behind_another_operation_is_bounded_by_it(tmp_path):
    found = [f for f in rules(trace(tmp_path, "order")) if "gathers" in f.title]
    assert "stand behind reduce_scatter" in found[0].title
    assert found[0].seconds_per_step == pytest.approx(3 * 1.5e-3, rel=0.01)


def test_prefetched_gathers_are_healthy(tmp_path):
    assert rules(trace(tmp_path, "control")) == []


def test_a_replica_reduction_behind_the_shards_is_bounded_by_the_shorter():
    """HSDP: an all-reduce of 23 ms right after a reduce-scatter of 20 ms on one stream; groups by members, not names."""
    builders = []
    for r in range(4):
        p = PartBuilder(r, r, world_size=4)
        thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
        shard = p.group(f"s{r}", (0, 1) if r < 2 else (2, 3), axis="shard")
        replicate = p.group(f"r{r}", (r % 2, r % 2 + 2), axis="replicate")
        for step in range(3):
            at = 100_000 * step + 20
            p.launched((thread, main), "kernel", "gemm", at, at + 10_000, at - 10, step=step)
            for n, (op, group, start, end) in enumerate(
                (("reduce_scatter", shard, 10_000, 30_000), ("all_reduce", replicate, 30_000, 53_000))
            ):
                event = p.launched((thread, side), "comm", op, at + start, at + end, at - 9 + n, step=step)
                p.comm(event, op, group, step, 1 << 20)
            p.launched((thread, main), "kernel", "adam", at + 53_000, at + 54_000, at - 7, step=step)
            p.step(step, at - 20, at + 99_980)
        builders.append(p)
    groups = study_of(matched(shape(builders, {}, world_size=4))).result("parallel").groups
    assert {(g.axis, g.ranks): round(g.transfer_ns / 1e6) for g in groups} == {
        ("shard", (0, 1)): 20, ("shard", (2, 3)): 20, ("replicate", (0, 2)): 23, ("replicate", (1, 3)): 23,
    }  # fmt: skip


def test_units_of_a_gloo_job_are_named():
    run, _ = measured()
    result = study_of(run).result("fsdp")
    assert result.exposed
    assert any("blocks" in unit or unit for e in result.exposed.values() for unit in e.units)


def test_without_sharding_nothing_is_said(tmp_path):
    t = Trace(0, 1)
    for k in range(3):
        t.step(k, 1000 * k, 1000 * k + 1000)
        t.run("gemm", 1000 * k, 1000 * k + 10, 1000 * k + 900)
    assert study(t.write(tmp_path / "rank0.json")).result("fsdp").exposed == {}
