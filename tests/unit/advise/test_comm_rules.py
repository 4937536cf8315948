"""comm.bandwidth and comm.small_messages on runs whose truth is known by construction, and on real ones."""

import json
from dataclasses import replace

import numpy as np
import pytest

import dtprof
from dtprof.advise import findings
from dtprof.advise.rules.comm_bandwidth import _alone, reached
from dtprof.advise.rules.comm_small import small_of
from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.model.ddp.buckets import Caps
from dtprof.model.whatif import what_if
from tests.unit.model.test_ddp import MIB, MS, line, measured, work
from tests.unit.shapes.build import US, PartBuilder, matched, shape

A100 = "NVIDIA A100-SXM4-80GB"


def job(ranks, operations, *, device=A100, hidden=False, hosts=None, steps=3, present=None, group=None, length=0, pause=5):
    """Steps of 10 ms of computing, then ``operations`` of (op, bytes, us), ``pause`` us apart, exposed or ``hidden``."""
    builders = []
    for r in range(ranks):
        if present is not None and r not in present:
            continue
        made = PartBuilder(len(builders), r, device=device, world_size=ranks, host=(hosts or ["a"] * ranks)[r])
        thread, main, side = made.thread(), made.stream(7), made.stream(20, "communication")
        mine = tuple(range(ranks)) if group is None else next(g for g in group if r in g)
        number = made.group(",".join(map(str, mine)), mine)
        seq = 0
        period = max(10_100 + sum((us(mine) if callable(us) else us) + pause for *_, us in operations), length)
        for step in range(steps):
            at = step * period
            last = at + 10_000
            begin = at + 100 if hidden else last
            todo = begin
            for op, held, us in operations:
                took = us(mine) if callable(us) else us
                event = made.launched((thread, side), "comm", f"ncclDevKernel_{op}", todo, todo + took, at + 20, step=step)
                made.comm(event, op, number, seq, held)
                todo, seq = todo + took + pause, seq + 1
            made.launched((thread, main), "kernel", "gemm", at + 10, todo if hidden else last, at, step=step)
            made.launched((thread, main), "kernel", "update", todo + 10, todo + 20, at + 40, step=step)
            made.step(step, at, at + period)
        builders.append(made)
    return matched(shape(builders, {}, world_size=ranks))


def by_rule(run):
    return {f.rule: f for f in findings(study_of(run))}


def all_reduces(gb_s, size=64 * MIB, count=4, n=8):
    """``count`` all-reduces at this bus bandwidth."""
    return [("all_reduce", size, round(2 * (n - 1) / n * size / gb_s / 1e3))] * count


class TestBandwidth:
    def test_a_group_that_reaches_a_quarter_is_found_with_its_price(self):
        run = job(8, all_reduces(50))
        finding = by_rule(run)["comm.bandwidth"]
        (found,) = reached(study_of(run)).values()
        # 64 MiB on eight A100 took 580 us where they were measured, at 202 GB/s
        assert found.gb_s == pytest.approx(50, rel=0.01)
        assert found.share == pytest.approx(50 / 202, rel=0.05)
        took, should = all_reduces(50)[0][2], 580
        assert finding.seconds_per_step == pytest.approx(4 * (took - should) / 1e6, rel=0.05)
        assert finding.bound
        assert "26% of what its links allow" in finding.title
        assert finding.evidence[0].count == 4 * 3 * 8

    @pytest.mark.parametrize("gb_s", [150, 200, 230])
    def test_what_measured_groups_reach_is_healthy(self, gb_s):
        assert "comm.bandwidth" not in by_rule(job(8, all_reduces(gb_s)))

    def test_what_computing_hides_costs_nothing(self):
        assert "comm.bandwidth" not in by_rule(job(8, all_reduces(50), hidden=True))

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"device": "NVIDIA Unheard-of"}, "the catalogue has no NVIDIA Unheard-of"),
            ({"device": None}, "which devices the group has is not recorded"),
            ({"hosts": ["a"] * 4 + ["b"] * 4}, "the group spans 2 hosts, and the ports of a are not recorded"),
            ({"hosts": [None] * 8}, "on which hosts its ranks ran is not recorded"),
            ({"present": (0, 1, 2)}, "fewer than 3 operations"),
        ],
    )
    def test_it_abstains_with_the_reason(self, change, reason):
        run = job(8, all_reduces(50), **change)
        (found,) = reached(study_of(run)).values()
        assert reason in found
        assert "comm.bandwidth" not in by_rule(run)

    @pytest.mark.parametrize(("gb_s", "slow"), [(92, False), (60, False), (12, True)])
    def test_hosts_are_held_against_their_ports(self, gb_s, slow):
        run = job(8, all_reduces(gb_s), hosts=["a"] * 4 + ["b"] * 4)
        for part in run.parts:
            part.extra = {"network": [{"name": f"mlx5_{at}:1", "kind": "infiniband", "mbit_s": 200_000} for at in range(4)]}
        (found,) = reached(study_of(run)).values()
        assert "100 GB/s that the ports between its 2 hosts have" in found.source
        assert ("comm.bandwidth" in by_rule(run)) == slow

    def test_small_operations_say_nothing_of_bandwidth(self):
        (found,) = reached(study_of(job(8, all_reduces(1, size=64 * 1024, count=20)))).values()
        assert "fewer than 3 operations" in found

    def test_a_measurement_beside_the_run_comes_first(self, tmp_path):
        run = job(8, all_reduces(50), hosts=["a"] * 4 + ["b"] * 4)
        run.path = str(tmp_path)
        rows = [
            {"kind": "collective", "op": "all_reduce", "n": 8, "bytes": size, "in_flight": 1, "groups": 1,
             "times_ns": [1.75 * size / rate] * 5}
            for size, rate in ((MIB, 100), (64 * MIB, 100), (128 * MIB, 100))
        ]  # fmt: skip
        (tmp_path / "calibration.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (found,) = reached(study_of(run)).values()
        assert found.share == pytest.approx(0.5, rel=0.01)
        assert "calibration of 3 sizes" in found.source
        assert "comm.bandwidth" in by_rule(run)

    def test_a_measurement_without_this_operation_is_no_guess(self, tmp_path):
        run = job(8, all_reduces(50))
        run.path = str(tmp_path)
        (tmp_path / "calibration.jsonl").write_text("")
        (found,) = reached(study_of(run)).values()
        assert "no all_reduce over 8 ranks" in found

    def test_groups_of_one_kind_are_compared_where_nothing_else_is_known(self):
        slow, fast = 5_000, 1_000
        pairs = [(0, 1), (2, 3)]
        operations = [("all_reduce", 8 * MIB, lambda mine: slow if 2 in mine else fast)] * 4
        run = job(4, operations, device="cpu: Xeon", group=pairs)
        finding = by_rule(run)["comm.bandwidth"]
        assert finding.ranks == (2, 3)
        assert "20% of what its links allow" in finding.title
        assert finding.seconds_per_step == pytest.approx(4 * (slow - fast) / 1e6, rel=0.02)

    def test_operations_beside_others_are_left_out(self):
        operations = study_of(job(2, all_reduces(50, n=2))).result("comm").operations
        assert all(_alone(operations))
        assert not any(_alone((*operations, *operations)))
        others = tuple(replace(o, dur_ns={2: 1, 3: 1}) for o in operations)
        assert all(_alone((*operations, *others)))


def small_job(count=64, us=20, **change):
    """``count`` all-reduces of 4 KiB, and larger ones from which latency and bandwidth show: 20 us + S / 50 GB/s."""
    larger = [("all_reduce", s * MIB, 20 + round(s * MIB / 50e3)) for s in (4, 8, 16)]
    return job(8, [("all_reduce", 4096, us)] * count + larger, **change)


class TestSmallMessages:
    def test_many_are_found_with_latency_and_price(self):
        run = small_job()
        (small,) = small_of(study_of(run))
        assert small.alpha_ns == pytest.approx(20 * US, rel=0.02)
        assert small.per_step == 64
        assert small.runs == 3
        finding = by_rule(run)["comm.small_messages"]
        assert finding.seconds_per_step == pytest.approx(63 * 20e-6, rel=0.02)
        assert finding.edit is None
        assert finding.bound
        assert finding.evidence[0].count == 64 * 3 * 8

    def test_what_waits_for_computing_between_cannot_be_fused(self):
        """Tensor parallelism: an all-reduce, a layer, an all-reduce."""
        run = small_job(pause=100)
        (small,) = small_of(study_of(run))
        assert small.fused_ns == 0
        assert "comm.small_messages" not in by_rule(run)

    def test_a_few_or_hidden_ones_are_no_finding(self):
        assert "comm.small_messages" not in by_rule(small_job(count=6))
        assert "comm.small_messages" not in by_rule(small_job(hidden=True))
        assert "comm.small_messages" not in by_rule(small_job(length=500_000))

    def test_large_ones_are_not_called_small(self):
        assert small_of(study_of(job(8, all_reduces(200, count=40)))) == []

    def test_without_latency_or_all_ranks_it_abstains(self):
        assert small_of(study_of(job(8, [("all_reduce", 4096, 20)] * 64, device=None))) == []
        assert small_of(study_of(small_job(present=(0, 1)))) == []

    def test_one_size_takes_its_latency_from_the_catalogue(self):
        (small,) = small_of(study_of(job(8, [("all_reduce", 4096, 20)] * 64)))
        low, high = small.alpha_range
        assert 10 * US < low < high < 100 * US
        assert "NCCL" in small.source or "measured" in small.source

    def test_small_buckets_are_priced_by_the_model_of_the_run(self):
        cost = line(alpha=20 * MS, per_mib=0.5 * MS, slowdown=1.0, per_op=0.0)
        caps = Caps.of(cap_list=[0.5] * 12 + [4])
        works = [work(*(20 + np.arange(1, 17)), copy=0.05, tail=8 * MS)] * 2
        run = measured(works, caps=caps, cost=cost)[0]
        finding = by_rule(run)["comm.small_messages"]
        cap = finding.edit["ddp.bucket_cap_mb"]
        assert cap > 2
        assert finding.prediction == what_if(run, parse_edits([f"ddp.bucket_cap_mb={cap}"])).saving()

    def test_a_single_bucket_is_no_small_message(self):
        works = [work(*(20 + np.arange(1, 17)), copy=0.05, tail=8 * MS)] * 2
        run = measured(works, caps=Caps.of(100), cost=line(alpha=20 * MS, per_mib=0.5 * MS))[0]
        assert "comm.small_messages" not in by_rule(run)


@pytest.mark.parametrize("name", ["a100_rank3of8_allreduce_alltoall", "mi300x_rank0of8_ddp_resnet", "h100_qwen_0.5b"])
def test_lone_ranks_of_real_jobs_give_no_verdict(truth, name):
    """Without its peers nobody knows how long a rank's operations moved, and how long they waited."""
    study = study_of(dtprof.open_run(truth / "traces" / "kineto" / f"{name}.json.gz"))
    assert all(isinstance(found, str) for found in reached(study).values())
    assert small_of(study) == []
    assert not {"comm.bandwidth", "comm.small_messages"} & {f.rule for f in findings(study)}


def test_eight_real_ranks_have_few_and_small_operations_and_no_finding(truth):
    """DLRM: eight operations in a step of 11 to 19 ms, which move 217 us in all: nothing to gain by fusing them."""
    study = study_of(dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100"))
    assert all("fewer than 3 operations" in found for found in reached(study).values())
    assert not {"comm.bandwidth", "comm.small_messages"} & {f.rule for f in findings(study)}


@pytest.mark.parametrize(("text", "reason"), [("", "no all_reduce over 2 ranks"), ("{", "line 1"), ("[1]", "line 1")])
def test_a_bad_measurement_beside_a_run_withholds_and_breaks_no_report(tmp_path, text, reason):
    works = [work(*(20 + 5 * np.arange(1, 17)), copy=0.25, tail=8 * MS)] * 2
    run = measured(works)[0]
    run.path = str(tmp_path)
    (tmp_path / "calibration.jsonl").write_text(text)
    found = what_if(run, parse_edits(["ddp.bucket_cap_mb=2"]))
    assert reason in found.withheld[0]
    assert "calibration.jsonl" in found.withheld[0]
    assert "ddp.bucket_size" not in by_rule(run)


def test_a_measurement_beside_a_run_gives_its_model_the_costs(tmp_path):
    works = [work(*(20 + 5 * np.arange(1, 17)), copy=0.25, tail=8 * MS)] * 2
    run = measured(works)[0]
    run.path = str(tmp_path)
    rows = [
        {"kind": "collective", "op": "all_reduce", "n": 2, "bytes": size * MIB, "in_flight": 1, "groups": 1,
         "times_ns": [1e6 + 6e6 * size] * 3}
        for size in (0, 1, 64)
    ]  # fmt: skip
    (tmp_path / "calibration.jsonl").write_text("\n".join(map(json.dumps, rows)))
    notes = what_if(run, parse_edits(["ddp.bucket_cap_mb=2"])).notes
    assert "calibration of 3 sizes" in notes[0]
