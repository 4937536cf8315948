"""FSDP2: steps whose exposed time is worked out by hand, and that the model of a run says what the job would have done."""

import json
from dataclasses import replace

import numpy as np
import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.export import export_run
from dtprof.model.fsdp.as_run import simulated_run
from dtprof.model.fsdp.cost import Network, network_of, spans
from dtprof.model.fsdp.observe import FsdpStep, SeenFsdp, Taken, observe
from dtprof.model.fsdp.predict import Change, FsdpModel
from dtprof.model.fsdp.program import Item, Op, Plan, Program, Unit, expand, groups_of, joined, wrapped
from dtprof.model.fsdp.running import Moving, simulate
from dtprof.model.whatif import what_if
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

MS = 1e6
SIZE = 1 << 20


def units_of(count, root=False, sizes=None):
    inner = tuple(Unit(f"blocks.{i}", sizes[i] if sizes else SIZE, 1, True) for i in range(count))
    return (Unit("", SIZE // 2, 1, False), *inner) if root else inner


def program(
    units=3, forward=5.0, backward=8.0, copy=0.0, pack=(0.0, 0.0), first=0.0, tail=0.0, op="all_reduce", others=0, call=0.0,
    sizes=None,
):  # fmt: skip
    """A step of equal units, ms, each with a gradient as large as its parameters."""
    items = [Item("work", ns=first * MS)]
    for unit in range(units):
        items += [
            Item("enter", unit, ns=copy * MS), Item("ahead", unit), Item("work", ns=forward * MS), Item("leave", unit),
        ]  # fmt: skip
    for unit in reversed(range(units)):
        items += [
            Item("enter", unit, True, copy * MS), Item("ahead", unit, True), Item("work", ns=backward * MS),
            Item("leave", unit, True), Item("reduce", unit, True, ns=call * MS, bytes=sizes[unit] if sizes else SIZE, op=op),
        ]  # fmt: skip
    items += [Item("other", ns=call * MS, bytes=4, op="all_reduce")] * others + [Item("work", ns=tail * MS)]
    return Program(tuple(items), dict.fromkeys(range(units), (pack[0] * MS, pack[1] * MS)))


def moving(expanded, gather=10.0, reduce=20.0, slowdown=1.0, ranks=1):
    took = {"gather": gather * MS, "reduce": reduce * MS, "other": 1 * MS}
    ops = expanded.ops
    return Moving([took[o.kind] for o in ops], [slowdown] * len(ops), [[0.0] * ranks] * len(ops))


def step(plan, made=None, freed=None, **costs):
    made = made or program()
    count = 1 + max(i.unit for i in made.items)
    one = expand(made, units_of(count), frozenset(range(count)) if freed is None else freed, plan)
    return simulate([one], moving(one, **costs)), one


class TestByHand:
    """Three units: 5 ms forward, 8 ms backward, 10 ms to gather, 20 ms to reduce."""

    def test_gathers_that_are_waited_for_add_up(self):
        """Forward 3 x (10 + 5), backward 3 x (10 + 8 + 20)."""
        found, one = step(Plan(0, 0))
        assert found.length == pytest.approx((45 + 114) * MS)
        assert found.exposed([one]) == pytest.approx([(30 + 30 + 60) * MS])

    def test_prefetching_alone_hides_nothing_where_gathers_are_waited_for(self):
        assert step(Plan(2, 2))[0].length == step(Plan(0, 0))[0].length

    def test_one_unit_ahead_hides_a_gather_behind_the_unit_before(self):
        """Forward: 10, 5 + 5 exposed, 5 + 5 exposed, 5: 35. Backward: gather 35 to 45, compute to 53, reduce to 73, while the
        next is there at 55; and so on: 10 + 3 x (8 + 20).
        """
        found, one = step(Plan(1, 1, waits=False))
        assert found.length == pytest.approx((35 + 94) * MS)
        assert found.exposed([one]) == pytest.approx([(20 + 10 + 60) * MS])

    def test_without_a_forward_prefetch_only_the_backward_pass_overlaps(self):
        """torch gathers one unit ahead in the backward pass by itself."""
        assert step(Plan(0, 0, waits=False))[0].length == pytest.approx((45 + 94) * MS)

    def test_two_units_ahead_share_the_network_and_finish_the_forward_pass_no_sooner(self):
        """Gathers 2 and 3 begin at 10 and, at twice the time each, are there at 30: 10 + 5 + 15 exposed + 5 + 5."""
        found, _ = step(Plan(2, 1, waits=False), slowdown=2.0)
        forward = [t for a, t in zip(expand(program(), units_of(3), frozenset(range(3)), Plan(2, 1, waits=False)).acts,
                   found.acts[0], strict=True) if (a.doing, a.name) == ("close", "forward")]  # fmt: skip
        assert forward[0][1] == pytest.approx(40 * MS)

    def test_units_that_stay_are_not_gathered_again(self):
        found, one = step(Plan(0, 0, reshard=False))
        assert found.length == pytest.approx((45 + 84) * MS)
        assert [o.kind for o in one.ops] == ["gather"] * 3 + ["reduce"] * 3

    def test_units_that_stayed_are_gathered_again_when_freed(self):
        assert step(Plan(0, 0, reshard=True), freed=frozenset())[0].length == pytest.approx(159 * MS)

    def test_what_is_held_at_once(self):
        """Waited for and one ahead in backward: two units; all three where they stay; three with two ahead."""
        assert step(Plan(0, 0))[1].peak == 2 * SIZE
        assert step(Plan(0, 0, reshard=False))[1].peak == 3 * SIZE
        assert step(Plan(2, 2, waits=False))[1].peak == 3 * SIZE

    def test_the_slower_rank_is_waited_for(self):
        plan = Plan(0, 0)
        both = [expand(program(forward=f), units_of(3), frozenset(range(3)), plan) for f in (5, 7)]
        found = simulate(both, moving(both[0], ranks=2))
        assert found.length == pytest.approx((159 + 6) * MS)
        assert found.exposed(both)[0] - found.exposed(both)[1] == pytest.approx(6 * MS)

    def test_handing_over_and_copying_out_are_the_threads_own(self):
        found, _ = step(Plan(0, 0), program(copy=1, pack=(2, 0.5)))
        assert found.length == pytest.approx((159 + 6 * 3) * MS)

    def test_a_collective_beside_fsdp_is_waited_for(self):
        assert step(Plan(0, 0), program(others=2))[0].length == pytest.approx(161 * MS)

    def test_a_third_operation_queues(self):
        """Three gathers asked for at once: two at a time, each for twice the time; the third when both are over."""
        made = Program((Item("enter", 0), Item("ahead", 0, gathers=(1, 2, 3)), Item("enter", 3)), {})
        one = expand(made, units_of(4), frozenset(), Plan(waits=False))
        found = simulate([one], moving(one, slowdown=2.0))
        assert found.begin == pytest.approx([0, 10 * MS, 10 * MS, 30 * MS])
        assert found.length == pytest.approx(40 * MS)

    def test_a_rank_that_waits_for_ever_is_an_error(self):
        one = expand(program(), units_of(3), frozenset(), Plan(0, 0))
        other = expand(program(units=2), units_of(3), frozenset(), Plan(0, 0))
        with pytest.raises(ValueError, match="not all ranks issue"):
            simulate([one, other], moving(one, ranks=2))


class TestWrapping:
    def test_two_units_as_one_pay_once_for_what_is_latency(self):
        """Four units in pairs, 2 ms of latency in each operation: two gathers and one reduction less per pair and pass."""
        made = program(units=4)
        groups = groups_of(units_of(4), 2)
        assert groups == [[0, 1], [2, 3]]
        together = wrapped(made, units_of(4), groups)
        units = tuple(joined(units_of(4), g) for g in groups)
        one = expand(together, units, frozenset(range(2)), Plan(0, 0))
        assert [(o.kind, o.bytes) for o in one.ops] == [("gather", 2 * SIZE)] * 2 + [
            ("gather", 2 * SIZE), ("gather", 2 * SIZE), ("reduce", 2 * SIZE), ("reduce", 2 * SIZE)
        ]  # fmt: skip
        found = simulate([one], moving(one, gather=18, reduce=38))
        assert found.length == pytest.approx((2 * 18 + 4 * 5 + 2 * 18 + 4 * 8 + 2 * 38) * MS)

    def test_an_odd_one_stays_alone_and_other_kinds_stay_apart(self):
        mixed = (Unit("embedding", SIZE, 1, True), *units_of(5), Unit("head", SIZE, 1, True))
        assert groups_of(mixed, 2) == [[0], [1, 2], [3, 4], [5], [6]]

    def test_the_root_is_never_part_of_a_group(self):
        assert groups_of(units_of(2, root=True), 4) == [[0], [1, 2]]

    @pytest.mark.parametrize(
        ("units", "layers", "why"),
        [
            ((Unit("a.0, a.1", SIZE, 2, True), Unit("a.2, a.3", SIZE, 2, True)), 1, "smaller units"),
            ((Unit("a", SIZE, 1, True), Unit("b", SIZE, 1, True)), 2, "no two units of one kind"),
        ],
    )
    def test_what_cannot_be_wrapped_otherwise_says_why(self, units, layers, why):
        assert why in groups_of(units, layers)


def network(latency=2.0, per_mib=16.0, n=2, **changes):
    """A line: ms per operation and per MiB that travels."""
    every = {
        ("gather", "all_gather", SIZE): (latency + per_mib / 2) * MS, ("reduce", "all_reduce", SIZE): (latency + per_mib) * MS,
    }  # fmt: skip
    steps = dict.fromkeys(range(3), every)
    early = {key: {} for key in range(3)}
    return Network(n, steps, every, early, latency * MS, per_mib * MS / SIZE, True, "a line", 0.0, **changes)


def shell(steps=3, parts=2, world=2, **extra):
    origin = 1_700_000_000_000_000_000
    rows = [{"step": s, "host_ts": origin, "host_dur": 1} for s in range(steps)]
    made = [Part(ordinal=i, rank=i, world_size=world, **extra) for i in range(parts)]
    store = MemoryStore({("steps", i): Table.from_rows("steps", rows) for i in range(parts)})
    return Run(Manifest(run_id="m", world_size=world, parts=made), store, "", "dtprof")


def measured(plan=None, cost=None, programs=None, count=5, freed=True, sizes=None):
    """(run, model): a run whose steps are the simulation of these programs: what a perfect measurement would hold."""
    programs = programs or [
        program(count, 5 + r, 9, copy=0.4, pack=(0.3, 0.1), first=1, tail=4, call=0.1) for r in range(2)
    ]  # fmt: skip
    plan = plan or Plan(0, 0)
    ones = [expand(p, units_of(count, sizes=sizes), frozenset(range(count) if freed else ()), plan) for p in programs]
    cost = cost or network()
    times = simulate(ones, cost.moving(0, ones[0].ops))
    one = FsdpStep(tuple(programs), (0.0, 0.0), tuple(times.ends), ())
    seen = SeenFsdp(
        (0, 1), units_of(count, sizes=sizes), frozenset(range(count) if freed else ()), plan.waits,
        (plan.forward, plan.backward), dict.fromkeys(range(3), one), times.length, 0, 0.0,
    )  # fmt: skip
    model = FsdpModel(seen, cost)
    return simulated_run(shell(), model, Change(prefetch=plan.forward), ()), model


class TestClosedLoop:
    @pytest.mark.parametrize("plan", [Plan(0, 0), Plan(1, 1, waits=False), Plan(2, 2, waits=False)])
    def test_the_run_shows_what_went_in(self, plan):
        run, model = measured(plan)
        seen = observe(run)
        assert seen.units == units_of(5)
        assert (seen.freed, seen.waits) == (frozenset(range(5)), plan.waits)
        assert seen.ahead == ((plan.forward, plan.backward) if plan.forward else (0, 1))
        again = FsdpModel(seen)
        # what two in flight do to each other is then only inferred
        assert again.replay_error < (0.01 if plan.forward else 1e-6)
        for key, ns in model.network.every.items():
            assert again.network.every[key] == pytest.approx(ns, rel=0.06 if plan.forward else 1e-6)

    @pytest.mark.parametrize(
        "change",
        [
            Change(prefetch=1), Change(prefetch=2), Change(prefetch=4), Change(reshard=False), Change(wrap=2), Change(wrap=5),
            Change(prefetch=1, reshard=False), Change(prefetch=1, wrap=2), Change(bandwidth=2.0), Change(latency=0.5),
            Change(free=True),
        ],
    )  # fmt: skip
    def test_every_change_is_what_the_job_would_have_done(self, change):
        run, truth = measured()
        found = FsdpModel(observe(run)).predict(change)
        assert found.step_ns == pytest.approx(truth.step(0, change).times.length, rel=0.005)
        assert found.low_ns <= truth.step(0, change).times.length <= found.high_ns

    def test_from_a_run_that_prefetches_back_to_one_that_does_not(self):
        run, truth = measured(Plan(2, 2, waits=False))
        for change in (Change(prefetch=0), Change(prefetch=1), Change(prefetch=0, reshard=False)):
            found = FsdpModel(observe(run)).predict(change)
            assert found.step_ns == pytest.approx(truth.step(0, change).times.length, rel=0.01)

    def test_from_a_run_that_keeps_its_units_to_one_that_frees_them(self):
        run, truth = measured(freed=False)
        found = FsdpModel(observe(run)).predict(Change(reshard=True))
        assert found.step_ns == pytest.approx(truth.step(0, Change(reshard=True)).times.length, rel=0.005)
        assert found.peak == (5 * SIZE, 2 * SIZE)

    def test_two_in_flight_are_told_apart_from_one(self):
        run, _ = measured(Plan(2, 2, waits=False))
        step = observe(run).steps[0]
        assert any(beside > 1 * MS for _, beside in spans(step))
        assert network_of(observe(run)).latency == pytest.approx(2 * MS, rel=0.4)

    def test_without_the_second_worker_it_would_be_wrong(self):
        run, truth = measured()
        one = FsdpModel(replace(observe(run), workers=1)).predict(Change(prefetch=2))
        assert one.step_ns != pytest.approx(truth.step(0, Change(prefetch=2)).times.length, rel=0.005)


class TestWhatIf:
    def test_the_answer_states_time_memory_and_what_it_takes(self):
        run, truth = measured()
        found = what_if(run, parse_edits(["fsdp.prefetch=1"]))
        assert found.model == "FSDP2 on gloo"
        assert found.predicted_ns == pytest.approx(truth.step(0, Change(prefetch=1)).times.length, rel=0.005)
        told = " ".join(found.notes).replace("\xa0", " ")
        assert "asynchronous" in told and "2.00 MiB per rank at most" in told
        kept = what_if(run, parse_edits(["fsdp.reshard_after_forward=false"]))
        assert any("5.00 MiB per rank at most, instead of 2.00 MiB" in note.replace("\xa0", " ") for note in kept.notes)

    def test_the_simulated_run_gives_the_same_tables_after_export_and_reading(self, tmp_path):
        run, _ = measured()
        found = what_if(run, parse_edits(["fsdp.prefetch=1"]))
        again = found.make_run()
        steps = [s.dur_ns for p in study_of(again).result("accounting").parts for s in p.steps]
        assert np.median(steps) == pytest.approx(found.predicted_ns, rel=0.001)
        export_run(again, ["nsys"], tmp_path)
        back = dtprof.open_run(tmp_path / "nsys")
        for name in ("steps", "events", "comm"):
            for part in (0, 1):
                one, other = again.table(name, part), back.table(name, part)
                assert len(one) == len(other)
                for column in ("ts", "dur", "step", "host_ts", "host_dur", "bytes_out"):
                    if column in one.stored:
                        assert one[column].tolist() == other[column].tolist()
        assert len(back.table("collectives")) == len(again.table("collectives"))
        seen = observe(back)
        assert FsdpModel(seen).predict(Change(prefetch=2)).step_ns == pytest.approx(
            FsdpModel(observe(again)).predict(Change(prefetch=2)).step_ns, rel=1e-6
        )

    def test_a_trace_for_chrome_says_the_same(self, tmp_path):
        run, _ = measured()
        export_run(run, ["chrome"], tmp_path)
        seen = observe(dtprof.open_run(tmp_path / "chrome"))
        one, other = (FsdpModel(s).predict(Change(prefetch=1)).step_ns for s in (observe(run), seen))
        assert other == pytest.approx(one, rel=0.002)

    @pytest.mark.parametrize(
        ("edit", "reason"),
        [
            ("fsdp.wrap=2 loader.pin_memory=true", "loader.pin_memory is not part of the model of FSDP2"),
            ("fsdp.reshard_after_forward=8", "gathers over 8 of 2 ranks"),
        ],
    )
    def test_what_the_model_does_not_hold_is_withheld(self, edit, reason):
        run, _ = measured()
        found = what_if(run, parse_edits(edit.split()))
        assert found.predicted_ns is None
        assert reason in found.withheld[0]

    def test_a_group_of_all_ranks_is_true(self):
        run, _ = measured(freed=False)
        one, other = (what_if(run, parse_edits([f"fsdp.reshard_after_forward={v}"])) for v in ("true", "2"))
        assert one.predicted_ns == other.predicted_ns

    def test_edits_of_the_network_go_to_the_model_too(self):
        run, truth = measured()
        found = what_if(run, parse_edits(["net.bandwidth_scale=2"]))
        assert found.predicted_ns == pytest.approx(truth.step(0, Change(bandwidth=2.0)).times.length, rel=0.005)

    def test_a_replay_that_is_off_withholds(self, monkeypatch):
        run, _ = measured()
        monkeypatch.setattr("dtprof.model.fsdp.whatif.MOST_REPLAY_ERROR", -1.0)
        assert "replay of the measured steps" in what_if(run, parse_edits(["fsdp.prefetch=1"])).withheld[0]

    def test_a_single_unit_has_nothing_to_prefetch(self):
        run, _ = measured(count=1)
        assert "a single unit" in what_if(run, parse_edits(["fsdp.prefetch=1"])).withheld[0]

    def test_ranks_that_are_missing_withhold(self):
        run, _ = measured()
        alone = Run(
            Manifest(run_id="m", world_size=2, parts=run.manifest.parts[:1]), run.store, "", "dtprof"
        )  # fmt: skip
        assert "1 of 2 ranks are in the run" in what_if(alone, parse_edits(["fsdp.prefetch=1"])).withheld[0]

    def test_a_run_without_fsdp_says_so(self):
        assert "no range of FSDP2" in what_if(shell(), parse_edits(["fsdp.prefetch=1"])).withheld[0]

    def test_one_size_of_operations_tells_nothing_of_others(self):
        """A reduction that travels as many bytes as a gather: on NCCL, or with one kind of operation only."""
        programs = [program(5, 5, 9, tail=1, call=0.1, op="reduce_scatter")] * 2
        every = {("gather", "all_gather", SIZE): 10 * MS, ("reduce", "reduce_scatter", SIZE): 10 * MS}
        cost = Network(
            2, dict.fromkeys(range(3), every), every, {key: {} for key in range(3)}, 0.0, 20 * MS / SIZE, False, "", 0.0
        )
        run, _ = measured(cost=cost, programs=programs)
        assert "one size" in what_if(run, parse_edits(["fsdp.wrap=2"])).withheld[0]
        assert what_if(run, parse_edits(["fsdp.prefetch=1"])).predicted_ns is not None

    def test_a_calibration_tells_what_one_size_cannot(self, tmp_path):
        """3 ms of latency in 10: two units as one take 17 ms, in three places."""
        programs = [program(4, 5, 9, tail=1, call=0.1, op="reduce_scatter")] * 2
        every = {("gather", "all_gather", SIZE): 10 * MS, ("reduce", "reduce_scatter", SIZE): 10 * MS}
        early = {key: {} for key in range(3)}
        cost = Network(2, dict.fromkeys(range(3), every), every, early, 0.0, 20 * MS / SIZE, False, "", 0.0)
        run, _ = measured(cost=cost, programs=programs, count=4)
        lines = [
            {"kind": "collective", "op": op, "n": 2, "bytes": b, "in_flight": 1, "groups": 1,
             "times_ns": [3e6 + 7e6 * b / SIZE] * 3}
            for op in ("all_gather", "reduce_scatter") for b in (SIZE // 2, SIZE, 2 * SIZE, 8 * SIZE)
        ]  # fmt: skip
        (tmp_path / "calibration.jsonl").write_text("\n".join(map(json.dumps, lines)))
        found = what_if(run, parse_edits(["fsdp.wrap=2"]), tmp_path)
        assert found.saved_ns == pytest.approx(6 * 3 * MS, rel=0.02)
        assert any("calibration of 4 sizes" in note for note in found.notes)


def test_an_operation_could_begin_when_a_worker_was_free():
    """Handed over at 0, 1 and 2, the third begins when the first is over."""
    op = Op("gather", 0, SIZE, "all_gather")
    taken = tuple(Taken(op, handed, end, (0.0,)) for handed, end in ((0.0, 10.0), (1.0, 14.0), (2.0, 20.0)))
    assert spans(FsdpStep((), (), (), taken)) == [(1.0, 9.0), (0.0, 13.0), (6.0, 4.0)]
