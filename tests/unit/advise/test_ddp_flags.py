"""DDP's other arguments, Join, DataParallel, barriers and gloo beside GPUs: named where they are so, and only there."""

import pytest

from dtprof.advise import findings
from dtprof.advise.rules.ddp_flags import BucketView
from dtprof.analyse import study_of
from tests.unit.kineto_maker import Trace, found
from tests.unit.model.test_ddp import MS, line, measured, work
from tests.unit.shapes.build import T0, PartBuilder, matched, shape


def job(*, static=False, unused=False, parameters=lambda step: 9, steps=4, shadow=0, barrier=0, gloo=0):
    """Two ranks that compute 5 ms and reduce 1 ms per step; rank 1 has ``shadow`` steps fewer and joins."""
    builders = []
    for r in range(2):
        p = PartBuilder(r, r, world_size=2, backend="gloo")
        model = {"static_graph": static, "find_unused_parameters": unused, "n_parameters": 10, "ranks": [0, 1]}
        p.part.extra["collectors"] = [{"name": "ddp", "facts": {"models": [model]}}]
        training, other = p.thread(), p.thread("gloo", 2, "pt_gloo_runloop")
        device = (training, p.stream(7)) if gloo else None
        p.group("0", (0, 1), backend="gloo", axis="dp")
        own = steps - (shadow if r else 0)
        for step in range(steps):
            at = 10_000 * step
            alone = step >= own
            if not alone:
                p.span(training, "cpu_op", "work", at, at + 5000, step=step)
                if device:
                    p.launched(device, "kernel", "gemm", at + 10, at + 5000, at, step=step)
                for n in range(parameters(step)):
                    p.add("grads", step=step, parameter=f"p{n + (step if parameters(step) == 8 else 0)}", bytes=4, ready=T0)
            event = p.span(other, "comm", "gloo:all_reduce", at + 5000, at + 6000 + gloo, step=min(step, own))
            p.comm(event, "all_reduce", 0, 2 * step, 1 << 20)
            if barrier:
                late = 200 if r == 0 else 0
                event = p.span(other, "comm", "gloo:barrier", at + 7000 - late, at + 7000 + barrier, step=step)
                p.comm(event, "barrier", 0, 2 * step + 1, None)
            if not alone:
                p.step(step, at, at + 9990)
        builders.append(p)
    return matched(shape(builders, {}, kind="dtprof", world_size=2, mesh={"dp": 2}))


def rules(run):
    return {f.rule: f for f in findings(study_of(run))}


class TestStaticGraph:
    def test_the_same_unused_parameters_in_every_step(self):
        finding = rules(job(unused=True))["ddp.static_graph"]
        assert finding.edit == {"ddp.static_graph": True}
        assert finding.severity == "low" and "1 parameter of 10" in finding.title.replace("\xa0", " ")

    def test_a_graph_that_changes_although_it_was_called_static(self):
        finding = rules(job(static=True, parameters=lambda step: 8))["ddp.static_graph"]
        assert finding.severity == "medium" and finding.edit == {"ddp.static_graph": False}

    @pytest.mark.parametrize(
        "change",
        [{}, {"static": True}, {"unused": True, "parameters": lambda step: 10}, {"unused": True, "steps": 2}],
        ids=["no flag", "static and so it is", "all used", "too few steps"],
    )
    def test_it_is_silent_otherwise(self, change):
        assert "ddp.static_graph" not in rules(job(**change))


class TestJoin:
    def test_a_rank_that_joins_early_has_lost_steps_and_is_not_fast(self):
        found_ = rules(job(steps=6, shadow=3))
        finding = found_["ddp.join"]
        assert finding.ranks == (1,)
        assert "3 of 12 rank-steps" in finding.title
        assert finding.share == pytest.approx(0.25)
        assert finding.seconds_per_step == pytest.approx(0.25 * 9.99e-3)
        assert finding.evidence[0].count == 3
        assert not any(rule.startswith("straggler.") for rule in found_)

    def test_equal_steps_are_healthy(self):
        assert "ddp.join" not in rules(job())


class TestBarrier:
    def test_one_in_every_step_is_found_at_its_own_price(self):
        finding = rules(job(barrier=600))["comm.barrier"]
        assert finding.seconds_per_step == pytest.approx(600e-6)
        assert finding.bound and finding.severity == "medium"
        assert finding.evidence[0].count == 2 * 4

    def test_none_is_healthy(self):
        assert "comm.barrier" not in rules(job())


class TestGloo:
    def test_gloo_that_gpus_wait_for_is_found(self):
        finding = rules(job(gloo=1))["comm.gloo_on_cuda"]
        assert finding.seconds_per_step == pytest.approx(1e-3, rel=0.05)
        assert "cuda:nccl" in finding.apply

    def test_a_job_on_hosts_may_use_it(self):
        assert "comm.gloo_on_cuda" not in rules(job())


class TestDataParallel:
    def trace(self, path, name, devices):
        t = Trace(0, 1)
        for k in range(3):
            t.step(k, 10_000 * k, 10_000 * k + 10_000)
            t.range(name, 10_000 * k, 10_000 * k + 5000)
            for device in range(devices):
                t.run("gemm", 10_000 * k + device, 10_000 * k + 20, 10_000 * k + 4000)
                t.events[-1]["args"]["device"] = device
                t.events[-1]["pid"] = device
        return found(t.write(path / "rank0.json"))

    def test_it_is_told_by_torchs_own_range(self, tmp_path):
        (finding,) = self.trace(tmp_path, "DataParallel.forward", 2)["ddp.data_parallel"]
        assert finding.severity == "medium" and "2 GPUs" in finding.title.replace("\xa0", " ")
        assert finding.evidence[0].count == 3

    def test_its_successor_is_none(self, tmp_path):
        assert "ddp.data_parallel" not in self.trace(tmp_path, "DistributedDataParallel.forward", 1)


class TestBucketView:
    def rule(self, copy):
        works = [work(*(20 + 5 * n for n in range(1, 17)), copy=copy, per_op=0.3 * MS, tail=8 * MS)] * 2
        return list(BucketView().find(study_of(measured(works, cost=line(alpha=1 * MS, per_mib=0.5 * MS))[0])))

    def test_copies_that_cost_are_predicted_away(self):
        (finding,) = self.rule(1.5)
        assert finding.edit == {"ddp.gradient_as_bucket_view": True}
        assert finding.prediction.low <= 25.2e-3 <= finding.prediction.high  # the same job without copies takes 116.9 ms

    def test_free_copies_are_left_alone(self):
        assert self.rule(0.02) == []
