"""DDP on gloo: how buckets fill, when they travel, and that the model of a run says what the run would have done."""

import numpy as np
import pytest

from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.model.cost import CostTable, from_spans
from dtprof.model.ddp.as_run import simulated_run
from dtprof.model.ddp.buckets import MIB, Caps, assign
from dtprof.model.ddp.gloo import RankWork, ready_at, simulate
from dtprof.model.ddp.observe import RankStep, Seen, observe
from dtprof.model.ddp.predict import Change, DdpModel, in_job
from dtprof.model.whatif import what_if
from dtprof.run import Manifest, MemoryStore, Part, Run

MS = 1e6


def line(alpha=1 * MS, per_mib=10 * MS, slowdown=2.0, per_op=0.0):
    """A network of so many ns per operation and per MiB."""
    sizes = np.array([0.0, 64.0]) * MIB
    times = alpha + per_mib * sizes / MIB
    return CostTable(sizes, times, np.array([1.0]), np.array([slowdown]), 0.0, "a line", per_op)


def work(*ready, copy=0.0, per_op=0.0, tail=0.0):
    return RankWork(np.array(ready, float) * MS, copy, per_op, tail)


class TestBuckets:
    def test_absent_and_25_differ(self):
        sizes = [MIB // 2] * 200
        absent, given = (assign(sizes, range(200), Caps.of(cap)) for cap in (None, 25))
        assert [len(b) for b in absent[:2]] == [2, 50]
        assert [len(b) for b in given[:2]] == [50, 50]

    def test_a_bucket_overshoots_its_cap(self):
        assert [len(b) for b in assign([3 * MIB] * 5, range(5), Caps.of(4))] == [2, 2, 1]

    def test_a_list_of_caps_ends_with_that_of_all_others(self):
        assert [len(b) for b in assign([MIB] * 12, range(12), Caps.of(cap_list=[1, 2, 4]))] == [1, 2, 4, 4, 1]

    def test_types_do_not_mix(self):
        found = assign([MIB] * 4, range(4), Caps.of(1.5), ["float32", "bfloat16"] * 2)
        assert found == [[0, 2], [1, 3]]

    def test_order_is_that_of_the_gradients(self):
        assert assign([MIB] * 4, [3, 1, 2, 0], Caps.of(2)) == [[3, 1], [2, 0]]


class TestGloo:
    def test_one_bucket_begins_when_the_last_rank_is_there(self):
        found = simulate([work(10), work(30)], [MIB], [[0]], line())
        assert found.begin.tolist() == [30 * MS]
        assert found.end.tolist() == [41 * MS]
        assert found.length == 41 * MS

    def test_what_fits_under_the_backward_pass_is_hidden(self):
        found = simulate([work(10, 100)], [MIB, MIB], [[0], [1]], line())
        assert found.end.tolist() == [21 * MS, 111 * MS]

    def test_two_in_flight_share_the_network(self):
        found = simulate([work(0, 0)], [MIB, MIB], [[0], [1]], line(slowdown=2.0))
        assert found.end.tolist() == pytest.approx([22 * MS, 22 * MS])
        faster = simulate([work(0, 0)], [MIB, MIB], [[0], [1]], line(slowdown=1.5))
        assert faster.end.tolist() == pytest.approx([16.5 * MS, 16.5 * MS])

    def test_a_third_one_queues(self):
        found = simulate([work(0, 0, 0)], [MIB] * 3, [[0], [1], [2]], line(slowdown=2.0))
        assert found.begin.tolist() == pytest.approx([0, 0, 22 * MS])
        assert found.end[2] == pytest.approx(33 * MS)

    def test_copies_back_wait_for_the_buckets_in_order(self):
        copy = 1 * MS / MIB
        found = simulate([work(0, 5, copy=copy)], [MIB, MIB], [[0], [1]], line(alpha=0, slowdown=1.0))
        assert found.end.tolist() == pytest.approx([11 * MS, 16 * MS])
        assert found.length == pytest.approx(17 * MS)

    def test_handing_over_costs_the_computing_thread(self):
        found = simulate([work(1, 2, 3, per_op=2 * MS)], [1, 1, 1], [[0], [1], [2]], line(alpha=0, per_mib=0))
        assert found.computed.tolist() == [9 * MS]

    def test_half_the_bytes_are_half_the_bandwidth_a_division_and_two_conversions(self):
        copy = 0.1 * MS / MIB
        found = simulate([work(0, copy=copy)], [MIB], [[0]], line(alpha=0), wire=0.5)
        assert found.begin[0] == pytest.approx(0.3 * MS)
        assert found.end[0] == pytest.approx(5.4 * MS)

    def test_a_conversion_passes_over_a_whole_bucket_and_costs_less_than_copies_of_gradients_may(self):
        found = simulate([work(0, copy=1 * MS / MIB)], [MIB], [[0]], line(alpha=0), wire=0.5)
        assert found.begin[0] == pytest.approx(1 * MS + 2 * 0.25 * MIB)

    def test_what_moves_is_slower_while_a_rank_computes(self):
        found = simulate([work(0, 12)], [MIB, 1], [[0], [1]], line(alpha=0), busy=2.0)
        assert found.end[0] == pytest.approx((12 + 4) * MS)

    def test_what_a_transfer_takes_more_in_a_job_is_not_slowed_again(self):
        found = simulate([work(0, 100)], [MIB, 1], [[0], [1]], line(alpha=0), busy=2.0, extra=3 * MS)
        assert found.end[0] == pytest.approx(23 * MS)

    @pytest.mark.parametrize(("busy", "extra"), [(1.0, 0.0), (1.3, 0.0), (1.0, 0.6), (1.25, 0.5)])
    def test_both_are_found_again_in_the_run(self, busy, extra):
        ready = 20 + 12 * np.arange(1, 17)
        caps = Caps.of(cap_list=[1, 8, 1, 100])
        run, _, _ = measured([work(*ready), work(*(ready + 1))], caps=caps, busy=busy, extra=extra * MS)
        found = in_job(observe(run), COST)
        assert found[0] == pytest.approx(busy, rel=0.05)
        assert found[1] == pytest.approx(extra * MS, abs=0.2 * MS)

    def test_collectives_of_one_size_cannot_tell_them_apart_and_the_first_takes_all(self):
        ready = 20 + 12 * np.arange(1, 17)
        run, _, _ = measured([work(*ready), work(*(ready + 1))], busy=1.25, extra=0.5 * MS)
        assert in_job(observe(run), COST) == (pytest.approx(1.25 + 0.5 / 7, rel=0.01), 0.0)


class TestCost:
    def test_a_line_and_a_slowdown_come_back(self):
        truth = line(alpha=2 * MS, per_mib=8 * MS)
        sizes = np.array([1.0, 4, 16, 25, 25]) * MIB
        whole = np.array([truth.alone(s) for s in sizes])
        beside = whole * np.array([0, 0, 0.5, 0.25, 0]) * 1.6
        alone = whole - beside / 1.6
        found = from_spans(sizes, alone, beside)
        assert found.alone(10 * MIB) == pytest.approx(truth.alone(10 * MIB), rel=0.02)
        assert found.slowdown(MIB) == pytest.approx(1.6, abs=0.06)

    def test_a_slowdown_that_nothing_tells_is_kept_at_both_of_its_ends(self):
        """Where two were never in flight it could be any; the costs themselves are known."""
        sizes, none = np.array([4.0, 8, 16]) * MIB, np.zeros(3)
        found = from_spans(sizes, 2 * MS + 8 * MS * sizes / MIB, none)
        assert {v.slowdown(MIB) for v in found.variants() if len(v.shared)} == {1.4, 2.0}
        assert [v.alone(8 * MIB) for v in found.variants() if len(v.shared)] == pytest.approx([66 * MS] * 2)

    def test_slowdowns_that_explain_a_run_as_well_are_all_held(self):
        """Half of each moved beside another one, whatever its size: time and slowdown cannot be told apart."""
        sizes = np.array([4.0, 8, 16]) * MIB
        found = from_spans(sizes, sizes / MIB * 4 * MS, sizes / MIB * 4 * MS)
        assert sorted(v.slowdown(MIB) for v in found.others) == pytest.approx([1.4, 2.0])
        assert 1.4 < found.slowdown(MIB) < 2.0

    def test_one_size_is_no_line(self):
        assert from_spans(np.full(9, 1.0), np.full(9, 5.0), np.zeros(9)) is None

    def test_beyond_the_table_goes_its_last_slope(self):
        assert line().alone(128 * MIB) == pytest.approx(1281 * MS)

    def test_latency_and_bandwidth_scale_apart(self):
        found = line(alpha=4 * MS, per_mib=10 * MS).scaled(bandwidth=2, latency=0.5)
        assert found.alone(0) == 2 * MS
        assert found.alone(2 * MIB) == pytest.approx(12 * MS)


SIZES = tuple([MIB] * 16)
COST = line(alpha=1 * MS, per_mib=6 * MS, slowdown=1.6, per_op=0.3 * MS)


def drag_of(cost):
    """What computing loses beside transfers on that network: 1.6 ns per byte, but no more than a quarter of itself."""
    took = cost.alone(64 * MIB)
    return min(1.6 * 64 * MIB / took, 0.25) if took else 0.0


DRAG = drag_of(COST)


def truth(works, caps):
    """What the job does with these bucket sizes."""
    return simulate(works, SIZES, assign(SIZES, range(16), caps), COST, drag=DRAG)


def measured(works, steps=6, caps=None, cost=COST, view=False, busy=1.0, extra=0.0):
    """A run whose DDP steps are the simulation of these works: what a perfect measurement would hold."""
    order = list(range(len(SIZES)))
    buckets = tuple(tuple(b) for b in assign(SIZES, order, caps or Caps.of()))
    found = simulate(works, SIZES, buckets, cost, view=view, busy=busy, extra=extra, drag=drag_of(cost))
    ready = [ready_at(w, SIZES, buckets, found.launched[i], view) for i, w in enumerate(works)]
    ranks = tuple(
        RankStep(
            i, 0.0, ready[i], ready[i], found.launched[i], found.end,
            (10 * MS, float(found.synced[i])), float(found.ends[i]),
        )
        for i, w in enumerate(works)
    )  # fmt: skip
    config = {"backend": "gloo", "ranks": [0, 1], "gradient_as_bucket_view": view}
    names = tuple(f"layer{i}.weight" for i in range(len(SIZES)))
    seen = Seen(names, SIZES, buckets, dict.fromkeys(range(steps), ranks), found.length, 0, config, "gloo", len(works))
    model = DdpModel(seen, cost, (busy, extra))
    origin = 1_700_000_000_000_000_000
    parts = [
        Part(ordinal=i, rank=i, world_size=len(works), extra={"collectors": [{"name": "ddp", "facts": {"models": [config]}}]})
        for i in range(len(works))
    ]
    shell = Run(Manifest(run_id="m", world_size=len(works), parts=parts), _steps(origin, steps, len(works)), "", "dtprof")
    return simulated_run(shell, model, Change(), ()), model, found


def _steps(origin, steps, parts):
    from dtprof.table import Table

    rows = [{"step": s, "host_ts": origin, "host_dur": 1} for s in range(steps)]
    return MemoryStore({("steps", i): Table.from_rows("steps", rows) for i in range(parts)})


@pytest.fixture
def works():
    ready = 20 + 5 * np.arange(1, 17)
    copy = 0.25
    return [work(*ready, copy=copy, per_op=0.3 * MS, tail=8 * MS), work(*(ready + 3), copy=copy, per_op=0.3 * MS, tail=9 * MS)]


class TestClosedLoop:
    def test_the_run_shows_what_went_in(self, works):
        run, _, found = measured(works)
        seen = observe(run)
        assert seen.buckets == tuple(tuple(b) for b in assign(SIZES, range(16), Caps.of()))
        assert seen.typical_ns == pytest.approx(found.length, rel=1e-4)

    @pytest.mark.parametrize("cap", [0.5, 1, 2, 5, 10, 25, 100])
    def test_every_bucket_size_is_what_the_job_would_have_done(self, works, cap):
        run, _, _ = measured(works)
        model = DdpModel(observe(run), COST)
        assert model.replay_error < 0.003
        assert model.predict(Change(caps=Caps.of(cap))).step_ns == pytest.approx(truth(works, Caps.of(cap)).length, rel=0.005)

    def test_without_the_second_worker_it_would_be_wrong(self, works, monkeypatch):
        cost = line(alpha=1 * MS, per_mib=12 * MS, slowdown=1.6, per_op=0.3 * MS)
        run, _, _ = measured(works, cost=cost)
        model = DdpModel(observe(run), cost)
        told = model.predict(Change(caps=Caps.of(2))).step_ns
        monkeypatch.setattr("dtprof.model.ddp.gloo.WORKERS", 1)
        assert model.predict(Change(caps=Caps.of(2))).step_ns != pytest.approx(told, rel=0.01)

    def test_computing_is_slower_beside_transfers_and_that_is_taken_out_again(self, works):
        """One bucket moves nothing beside the backward pass, which then takes what it takes alone."""
        run, _, found = measured(works, caps=Caps.of(2))
        assert np.max(found.computed) > max(w.ready.max() for w in works) + 3 * MS
        assert [w.ready for w in DdpModel(observe(run), COST).works[0]] == [pytest.approx(w.ready, abs=0.7 * MS) for w in works]
        assert truth(works, Caps.of(100)).computed.max() == pytest.approx(103 * MS + 0.3 * MS + 0.25 * MIB, abs=0.1 * MS)

    def test_a_cautious_step_holds_what_every_collective_may_cost_more(self):
        """Nothing moves for long, so that the computing thread is all there is: 16 buckets of 0.45 ms each."""
        cost = line(alpha=0, per_mib=0, per_op=0.0)
        run, _, _ = measured([work(*(20 + 5 * np.arange(1, 17)))] * 2, cost=cost)
        found = DdpModel(observe(run), cost).predict(Change(caps=Caps.of(1)))
        assert found.cautious_ns - found.step_ns == pytest.approx(16 * 0.45 * MS - 2 * 0.45 * MS, rel=0.1)

    def test_a_slow_rank_repaired_is_the_step_without_it(self, works):
        late = [works[0], RankWork(works[0].ready + 20 * MS, 0.25, 0.3 * MS, 8 * MS)]
        run, _, slow = measured(late)
        found = what_if(run, parse_edits(["ideal.rank=1"]))
        healthy = truth([works[0], works[0]], Caps.of())
        assert slow.length - healthy.length == pytest.approx(20 * MS)
        assert found.saved_ns == pytest.approx(20 * MS, rel=0.1)

    def test_accumulation_saves_all_reductions_but_one(self, works):
        run, _, _ = measured(works)
        model = DdpModel(observe(run), COST)
        # copying into the buckets falls away, adding to the gradients that are there is as long
        alone = 103 * MS - 0.25 * 15 * MIB + 0.25 * 16 * MIB
        once = model.predict(Change())
        assert model.predict(Change(accumulate=4)).step_ns == pytest.approx(once.step_ns + 3 * alone, rel=0.01)

    def test_the_simulated_run_gives_the_same_tables(self, works):
        run, _, _ = measured(works)
        found = what_if(run, parse_edits(["ddp.bucket_cap_mb=2"]))
        again = found.make_run()
        steps = [s.dur_ns for p in study_of(again).result("accounting").parts for s in p.steps]
        base = found.predicted_ns - found.measured_ns
        before = [s.dur_ns for p in study_of(run).result("accounting").parts for s in p.steps]
        assert np.median(steps) - np.median(before) == pytest.approx(
            base, abs=found.replay_error * found.measured_ns + 0.1 * MS
        )
        assert len(again.table("collectives")) == len(assign(SIZES, range(16), Caps.of(2))) * 6
        assert DdpModel(observe(again), COST).predict(Change(caps=Caps.of(2))).step_ns == pytest.approx(
            np.median(steps), rel=0.005
        )

    @pytest.mark.parametrize(
        ("edit", "reason"),
        [
            ("loader.pin_memory=true", "not part of the model of DDP on gloo"),
            ("ideal.rank=9", "rank 9 is not in the run"),
        ],
    )
    def test_what_the_model_does_not_hold_is_withheld(self, works, edit, reason):
        run, _, _ = measured(works)
        found = what_if(run, parse_edits([edit]))
        assert found.predicted_ns is None
        assert reason in found.withheld[0]

    def test_a_replay_that_is_off_withholds(self, works, monkeypatch):
        run, _, _ = measured(works)
        monkeypatch.setattr("dtprof.model.whatif.MOST_REPLAY_ERROR", 1e-9)
        found = what_if(run, parse_edits(["ddp.bucket_cap_mb=2"]))
        assert "replay of the measured steps" in found.withheld[0]

    def test_a_hook_s_traffic_is_not_modelled(self, works):
        run, _, _ = measured(works)
        run.parts[0].extra["collectors"][0]["facts"]["models"][0]["comm_hook"] = "powerSGD_hook"
        assert "powerSGD_hook" in what_if(run, parse_edits(["ddp.bucket_cap_mb=2"])).withheld[0]
