"""ddp.no_sync: steps of several passes by construction, the price of a needless reduction, and what it must not blame."""

import pytest

import dtprof
from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.model.ddp.passes import by_step, passes_of
from dtprof.model.whatif import what_if
from dtprof.table import Table
from tests.unit.shapes.build import T0, US, PartBuilder, matched, shape

MIB = 1 << 20
FORWARD, BACKWARD, REDUCE, EMPTY, UPDATE = 10_000, 20_000, 15_000, 1_000, 2_000
ALL = "DistributedDataParallel.forward"


def job(passes=3, reduces=None, *, ranks=2, late=(0, 0), steps=4, sizes=(8 * MIB,) * 3, extra=None, updates=None, facts=None):
    """Steps of ``passes`` passes on a CPU: forward, backward, then, where it ``reduces``, an exposed all-reduce.

    ``late``: us that each rank's passes compute longer; ``sizes``: bytes reduced by each pass; ``extra(builder, …)`` adds to a
    pass; ``updates``: passes after which an optimizer is called (the last).
    """
    reduces = reduces or (True,) * passes
    builders = []
    for r in range(ranks):
        made = PartBuilder(
            r, r, world_size=2, device="cpu: Xeon", extra={"collectors": [{"name": "ddp", "facts": facts or {}}]}
        )
        thread, worker = made.thread(), made.thread("gloo", 2, "pt_gloo_runner")
        group = made.group("0", (0, 1), backend="gloo")
        seq, at = 0, 0
        for step in range(steps):
            begin = at
            for m in range(passes):
                made.span(thread, "range", ALL, at, at + FORWARD, step=step)
                made.span(thread, "cpu_op", "aten::mm", at, at + FORWARD + BACKWARD + late[r], step=step)
                end = at + FORWARD + BACKWARD + late[r]
                if extra:
                    extra(made, worker, group, at, step)
                meet = at + FORWARD + BACKWARD + max(late)
                done = meet + REDUCE + EMPTY if reduces[m] else end
                if reduces[m]:
                    event = made.span(worker, "comm", "gloo:all_reduce", end, meet + REDUCE, step=step)
                    made.comm(event, "all_reduce", group, seq, sizes[m])
                    made.span(
                        thread, "cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", meet + REDUCE, done, step=step
                    )
                    seq += 1
                made.span(thread, "range", "backward", at + FORWARD, done, step=step, phase="backward")
                if m in (updates if updates is not None else (passes - 1,)):
                    made.span(thread, "range", "Optimizer.step#SGD.step", done, done + UPDATE, step=step)
                    done += UPDATE
                at = done
            made.step(step, begin, at)
        builders.append(made)
    return matched(shape(builders, {}, "dtprof", world_size=2))


def rule(run):
    return next((f for f in findings(study_of(run)) if f.rule == "ddp.no_sync"), None)


class TestForgotten:
    def test_every_pass_reduces(self):
        finding = rule(job())
        assert "3 of 3 micro-batches per step reduce" in finding.title
        assert finding.seconds_per_step == pytest.approx(2 * REDUCE / 1e6)
        assert finding.severity == "high"
        assert finding.edit == {"ddp.accumulation": 3}
        assert finding.evidence[0].count == 2 * 4 * 2
        assert not finding.bound

    def test_the_prediction_is_the_step_that_reduces_once(self):
        finding = rule(job())
        truth = 2 * (REDUCE + EMPTY) / 1e6
        assert finding.prediction.low <= truth <= finding.prediction.high
        assert finding.prediction.seconds_per_step == pytest.approx(truth, rel=0.1)

    def test_waiting_for_a_slow_rank_is_not_saved(self):
        """Rank 1 computes 6 ms longer in each pass: rank 0 then waits 18 ms in the last reduction instead of 6 in each."""
        run = job(late=(0, 6_000))
        assert rule(run).seconds_per_step == pytest.approx(2 * REDUCE / 1e6)
        found = what_if(run, parse_edits(["ddp.accumulation=3"]))
        assert found.saved_ns == pytest.approx(2 * (REDUCE + EMPTY) * US, rel=0.1)

    def test_two_of_three_are_too_many(self):
        assert "2 of 3 micro-batches" in rule(job(reduces=(False, True, True))).title

    def test_one_rank_of_two_gives_a_bound_and_no_prediction(self):
        finding = rule(job(ranks=1))
        assert finding.bound
        assert finding.prediction is None


class TestHealthy:
    def test_no_sync_used_well(self):
        assert rule(job(reduces=(False, False, True))) is None

    def test_one_pass_per_step(self):
        assert rule(job(passes=1)) is None

    def test_an_optimizer_after_each_pass_is_no_accumulation(self):
        assert rule(job(updates=(0, 1, 2))) is None

    def test_without_an_optimizer_nobody_knows(self):
        assert rule(job(updates=())) is None

    def test_models_of_different_sizes_are_different_models(self):
        assert rule(job(sizes=(8 * MIB, 6 * MIB, 8 * MIB))) is None

    def test_several_wrappers_are_left_alone(self):
        assert rule(job(facts={"models": [{"ranks": [0, 1]}, {"ranks": [0, 1]}]})) is None

    def test_small_all_reduces_of_every_pass_are_no_gradients(self):
        def metric(made, worker, group, at, step):
            event = made.span(worker, "comm", "gloo:all_reduce", at + FORWARD + 5, at + FORWARD + 50, step=step)
            made.comm(event, "all_reduce", group, None, 1024)

        assert rule(job(reduces=(False, False, True), extra=metric)) is None

    def test_tensor_parallel_sums_are_no_gradients(self):
        def partial_sums(made, worker, group, at, step):
            for begin in (at + 50, at + FORWARD + 50):
                event = made.span(worker, "comm", "gloo:all_reduce", begin, begin + 100, step=step)
                made.comm(event, "all_reduce", group, None, 64 * MIB)

        assert rule(job(reduces=(False, False, False), extra=partial_sums)) is None


TWO_RANKS = {"models": [{"ranks": [0, 1], "comm_hook": None}]}


class TestNever:
    def with_gradients(self, run):
        rows = [{"step": s, "parameter": "w", "bytes": 4, "ready": T0} for s in range(4)]
        load = run.store.load
        run.store.load = lambda name, part: Table.from_rows("grads", rows) if name == "grads" else load(name, part)
        return run

    def test_an_optimizer_on_gradients_that_nobody_reduced(self):
        finding = rule(self.with_gradients(job(reduces=(False,) * 3, facts=TWO_RANKS)))
        assert "never reduced" in finding.title
        assert finding.seconds_per_step is None
        assert finding.severity == "high"

    @pytest.mark.parametrize("model", [{"ranks": [0, 1], "comm_hook": "post_localSGD_hook"}, {"ranks": [0]}, {}])
    def test_a_hook_one_rank_or_no_record_is_no_reproach(self, model):
        assert rule(self.with_gradients(job(reduces=(False,) * 3, facts={"models": [model]}))) is None

    def test_without_gradients_nothing_is_said(self):
        assert rule(job(reduces=(False,) * 3, facts=TWO_RANKS)) is None


class TestPredictions:
    def test_more_passes_last_as_long_as_those_that_were_measured(self):
        run = job(reduces=(False, False, True))
        found = what_if(run, parse_edits(["ddp.accumulation=5"]))
        assert found.predicted_ns - found.measured_ns == pytest.approx(2 * (FORWARD + BACKWARD) * US)

    @pytest.mark.parametrize(
        ("edits", "reason"),
        [
            (["ddp.accumulation=4"], "ddp.accumulation=3"),
            (["ddp.accumulation=3", "comm.dtype=bf16"], "alone"),
            (["ddp.bucket_cap_mb=5"], "several passes of a step reduce"),
        ],
    )
    def test_what_cannot_be_told_is_withheld(self, edits, reason):
        assert reason in what_if(job(), parse_edits(edits)).withheld[0]

    def test_steps_with_other_numbers_of_passes_are_not_mixed(self):
        assert set(by_step(passes_of(job()))) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "name",
    ["a100_rank3of8_allreduce_alltoall", "a100_rank0of2_collective_args_ns", "mi300x_rank0of8_ddp_resnet", "no_rank"],
)
def test_real_jobs_have_one_pass_per_step_and_no_finding(truth, name):
    run = dtprof.open_run(truth / "traces" / "kineto" / f"{name}.json.gz")
    found = passes_of(run)
    assert found
    assert all(len(step.passes) == 1 and step.one_update for step in found)
    assert rule(run) is None
