"""Pipelines: bubbles of schedules in closed form, and that a run's model says what the job would have done."""

from dataclasses import replace

import numpy as np
import pytest

from dtprof.edits import parse_edits
from dtprof.model.pipeline.observe import SeenPipeline, observe
from dtprof.model.pipeline.predict import Plan, changed_plan, measured_plan, simulate
from dtprof.model.pipeline.schedules import Action, order
from dtprof.model.pipeline.whatif import _as_run
from dtprof.model.whatif import what_if
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

MS = 1e6


def seen(ranks=2, micro=8, forward=20, backward=40, message=0.0, between=0.0, schedule="1f1b", per_rank=1):
    stages = ranks * per_rank
    takes = {("F", s): forward * MS / per_rank for s in range(stages)} | {
        ("B", s): backward * MS / per_rank for s in range(stages)
    }
    orders = order(schedule, ranks, micro, per_rank)
    made = SeenPipeline(
        tuple(range(ranks)), stages, micro, takes, between * MS, message * MS, 5 * MS, 3 * MS, orders, {}, 0.0, 0
    )  # fmt: skip
    return made


class TestBubbles:
    @pytest.mark.parametrize("name", ["gpipe", "1f1b"])
    @pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (2, 8), (4, 8), (4, 16)])
    def test_gpipe_and_1f1b_have_the_same(self, name, ranks, micro):
        """(p - 1) / (m + p - 1) of the whole (Narayanan et al. 2021)."""
        it = seen(ranks, micro, schedule=name)
        assert simulate(it, measured_plan(it)).bubble == pytest.approx((ranks - 1) / (micro + ranks - 1))

    @pytest.mark.parametrize(("ranks", "micro"), [(2, 8), (4, 8)])
    def test_interleaving_divides_it_by_the_stages_per_rank(self, ranks, micro):
        """(p - 1) / v of the ideal time's m."""
        it = seen(ranks, micro)
        ideal = (ranks - 1) / 2 / micro
        assert simulate(it, changed_plan(it, "interleaved", None, 2)).bubble == pytest.approx(ideal / (1 + ideal))

    def test_zero_bubble_has_less(self):
        it = seen(4, 8)
        bubbles = [simulate(it, changed_plan(it, name, None, None)).bubble for name in ("1f1b", "interleaved", "zero-bubble")]
        assert bubbles[0] > bubbles[1] > bubbles[2]

    def test_messages_lengthen_the_step_where_somebody_waits(self):
        """GPipe waits for one message on the way in and for one on the way out; the others travel behind passes."""
        both = (seen(message=0, schedule="gpipe"), seen(message=2, schedule="gpipe"))
        quick, slow = (simulate(it, measured_plan(it)).step_ns for it in both)
        assert slow - quick == pytest.approx(4 * MS)

    def test_late_passes_hold_up_those_that_wait_for_them(self):
        """As many are early as late: that evens out where nobody waits, and not between ranks."""
        calm = seen(4, 32)
        late, plan = replace(calm, late=(-4 * MS, 0.0, 4 * MS)), measured_plan(calm)
        alone = Plan({0: [Action(kind, 0, m) for m in range(32) for kind in "FB"]}, 1, calm.takes)
        longer = [simulate(late, p).step_ns - simulate(calm, p).step_ns for p in (alone, plan)]
        assert abs(longer[0]) < 20 * MS < 40 * MS < longer[1]
        assert simulate(late, plan).step_ns == simulate(late, plan).step_ns

    def test_more_micro_batches_of_the_same_batch_shrink_the_bubble(self):
        it = seen(4, 8)
        base, more = simulate(it, measured_plan(it)), simulate(it, changed_plan(it, None, 16, None))
        assert more.bubble == pytest.approx(3 / 19)
        assert base.step_ns - more.step_ns == pytest.approx(3 * 60 * MS / 2)

    def test_an_uneven_stage_balanced(self):
        it = seen(2, 8)
        it.takes["F", 1] += 10 * MS
        even = simulate(it, changed_plan(it, None, None, None, even=True))
        assert simulate(it, measured_plan(it)).step_ns - even.step_ns == pytest.approx(8 * 5 * MS - 5 * MS, abs=6 * MS)


def run_of(it, copies=6):
    """A run of so many steps, each as the model says."""
    result = simulate(it, measured_plan(it))
    base = 1_700_000_000_000_000_000
    parts = [Part(ordinal=r, rank=r, world_size=len(it.ranks)) for r in it.ranks]
    rows = Table.from_rows("steps", [{"step": 0, "host_ts": base, "host_dur": 1}])
    shell = Run(Manifest(run_id="p", parts=parts), MemoryStore({("steps", p.ordinal): rows for p in parts}), "", "dtprof")
    one = _as_run(shell, it, measured_plan(it), result, ())
    tables = {}
    for part in one.parts:
        for name in ("events", "steps", "lanes"):
            table = one.table(name, part.ordinal)
            if name == "lanes":
                tables[name, part.ordinal] = table
                continue
            column = "ts" if name == "events" else "host_ts"
            shifted = [
                table.with_columns(
                    **{column: table[column] + round(result.step_ns) * k, "step": np.full(len(table), k, np.int32)}
                )
                for k in range(copies)
            ]
            tables[name, part.ordinal] = Table.concat(shifted)
    return Run(one.manifest, MemoryStore(tables), "", "dtprof"), result


class TestClosedLoop:
    @pytest.fixture
    def it(self):
        return seen(2, 8, message=1.5, between=0.5)

    def test_the_run_shows_what_went_in(self, it):
        run, result = run_of(it)
        found = observe(run)
        assert (found.stages, found.microbatches) == (2, 8)
        assert found.orders == it.orders
        assert found.message == pytest.approx(1.5 * MS, abs=10)
        assert found.between == pytest.approx(0.5 * MS, abs=10)
        assert simulate(found, measured_plan(found)).step_ns == pytest.approx(result.step_ns, rel=1e-4)

    @pytest.mark.parametrize("name", ["gpipe", "interleaved", "zero-bubble"])
    def test_another_schedule_is_what_the_job_would_have_done(self, it, name):
        run, result = run_of(it)
        found = what_if(run, parse_edits([f"pipeline.schedule={name}"]))
        truth = simulate(it, changed_plan(it, name, None, None))
        assert found.predicted_ns == pytest.approx(truth.step_ns, rel=0.001)
        assert found.saved_ns == pytest.approx(result.step_ns - truth.step_ns, abs=0.1 * MS)

    def test_the_simulated_run_is_a_pipeline_again(self, it):
        run, _ = run_of(it)
        found = what_if(run, parse_edits(["pipeline.schedule=zero-bubble"]))
        again = observe(found.make_run())
        assert again.orders == order("zero-bubble", 2, 8, 2)
        assert simulate(again, measured_plan(again)).step_ns == pytest.approx(found.predicted_ns, rel=0.01)

    @pytest.mark.parametrize(
        ("edits", "reason"),
        [
            (["pipeline.schedule=interleaved", "pipeline.microbatches=7"], "rounds"),
            (["pipeline.schedule=1f1b", "pipeline.virtual_stages=2"], "one stage per rank"),
            (["pipeline.microbatches=1"], "needs a micro-batch"),
            (["pipeline.schedule=gpipe", "net.bandwidth_scale=2"], "not part of the model of a pipeline"),
        ],
    )
    def test_what_cannot_be_is_withheld(self, it, edits, reason):
        run, _ = run_of(it)
        found = what_if(run, parse_edits(edits))
        assert found.predicted_ns is None
        assert reason in found.withheld[0]

    def test_a_replay_that_is_off_withholds(self, it):
        """In the middle of every step all ranks stand still, for a reason that no pass shows."""
        run, result = run_of(it)
        held = {}
        for part in (0, 1):
            events, steps = run.table("events", part), run.table("steps", part)
            inside = events["ts"] - steps["host_ts"][events["step"]]
            stop = np.where(inside > result.step_ns / 2, int(0.2 * result.step_ns), 0) + events["step"] * int(
                0.2 * result.step_ns
            )
            longer = steps["host_ts"] + steps["step"] * int(0.2 * result.step_ns)
            held["events", part] = events.with_columns(ts=events["ts"] + stop)
            held["steps", part] = steps.with_columns(host_ts=longer, host_dur=steps["host_dur"] + int(0.2 * result.step_ns))
            held["lanes", part] = run.table("lanes", part)
        found = what_if(Run(run.manifest, MemoryStore(held), "", "dtprof"), parse_edits(["pipeline.schedule=gpipe"]))
        assert found.predicted_ns is None
        assert "replay of the measured steps" in found.withheld[0]


def test_a_run_without_passes_says_so():
    empty = Run(Manifest(run_id="x", parts=[Part(ordinal=0, rank=0)]), MemoryStore({}), "", "dtprof")
    assert "no pass is tagged with stage and micro-batch: mark them" in observe(empty)
