"""Rules that need no trace, on runs whose truth is known by construction: found, placed, priced, or silent."""

import pytest

from dtprof.advise.rules.goodput import _ended_abruptly
from dtprof.run import Manifest, MemoryStore, Part, Run
from tests.unit.advise.recorded import by_rule, study, write

EVERY = 5


def saves(step):
    return step % EVERY == EVERY - 1


class TestGarbageCollection:
    def test_the_rank_that_collects_is_named_with_its_time(self, tmp_path):
        write(tmp_path, host=lambda rank, step: 20.0 * (rank == 1))
        found = by_rule(tmp_path)["host.gc"]
        assert found.ranks == (1,)
        assert found.seconds_per_step == pytest.approx(0.020)
        assert found.severity == "high"

    def test_collections_in_turn_cost_their_sum(self, tmp_path):
        # each rank collects 30 ms in every fourth step, never both in one: somebody waits 30 ms in every second step
        write(tmp_path, host=lambda rank, step: 30.0 * (step % 4 == 2 * rank))
        found = by_rule(tmp_path)["host.gc"]
        assert found.ranks == (0, 1)
        assert found.seconds_per_step == pytest.approx(0.015, rel=0.1)
        assert "in different steps" in found.evidence[1].text

    @pytest.mark.parametrize("ms", [0.0, 0.9, 4.0])
    def test_little_of_it_is_healthy(self, tmp_path, ms):
        write(tmp_path, host=lambda rank, step: ms)
        assert "host.gc" not in by_rule(tmp_path)

    def test_collections_between_steps_stop_nobody(self, tmp_path):
        """What dtprof itself sets off at the end of a step is no part of the job's steps."""
        write(tmp_path, host=lambda rank, step: 20.0, pauses=[(-30.0 * k, 20.0) for k in range(1, 41)])
        assert "host.gc" not in by_rule(tmp_path)
        write(tmp_path / "inside", host=lambda rank, step: 20.0, pauses=[(100.0 * k + 1, 20.0) for k in range(40)])
        assert by_rule(tmp_path / "inside")["host.gc"].seconds_per_step == pytest.approx(0.020)

    @pytest.mark.parametrize("collects", [(30,), (10, 30)], ids=str)
    def test_a_long_collection_now_and_then_tells_nothing_of_the_next_steps(self, tmp_path, collects):
        write(tmp_path, host=lambda rank, step: 600.0 * (step in collects))
        assert "host.gc" not in by_rule(tmp_path)

    def test_warm_up_does_not_count(self, tmp_path):
        write(tmp_path, host=lambda rank, step: 1000.0 * (step == 0))
        assert "host.gc" not in by_rule(tmp_path)

    def test_without_the_collector_it_abstains_with_the_reason(self, tmp_path):
        write(tmp_path)
        assert "host.gc" not in by_rule(tmp_path)
        assert "collector host" in study(tmp_path).result("host").why["gc"]


class TestCheckpointStall:
    def test_the_slow_writer_is_named_with_its_time_by_the_interval(self, tmp_path):
        def took(rank, step):
            return {"checkpoint": 60.0 if rank == 1 else 5.0} if saves(step) else {}

        write(tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None, phases=took,
              length=lambda r, s: 160.0 if saves(s) else 100.0)  # fmt: skip
        found = by_rule(tmp_path)["checkpoint.stall"]
        assert found.ranks == (1,)
        assert found.seconds_per_step == pytest.approx(0.060 / EVERY)
        assert found.steps[:3] == (4, 9, 14)
        assert "it alone writes" in found.why
        assert found.severity == "medium"

    def test_a_save_that_nothing_marks_is_what_its_step_takes_longer(self, tmp_path):
        write(tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None, length=lambda r, s: 180.0 if saves(s) else 100.0)
        found = by_rule(tmp_path)["checkpoint.stall"]
        assert found.seconds_per_step == pytest.approx(0.080 / EVERY)
        assert found.ranks == (0, 1)
        assert "Nothing marks the save" in found.evidence[1].text

    def test_short_saves_are_healthy(self, tmp_path):
        write(tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None,
              phases=lambda r, s: {"checkpoint": 10.0} if saves(s) else {})  # fmt: skip
        assert "checkpoint.stall" not in by_rule(tmp_path)

    def test_the_ranks_that_wait_afterwards_have_no_saving_thread(self, tmp_path):
        # rank 1 saves alone; in the next step rank 0 waits for it inside its forward pass, as pipeline stages do
        def took(rank, step):
            waits = 60.0 * (rank == 0 and step % EVERY == 0 and step > 0)
            return {"forward": 30.0 + waits, **({"checkpoint": 60.0} if rank == 1 and saves(step) else {})}

        write(tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None, phases=took)
        rules = by_rule(tmp_path)
        assert rules["checkpoint.stall"].ranks == (1,)
        assert "checkpoint.saving_thread" not in rules

    def test_one_save_has_no_interval(self, tmp_path):
        write(tmp_path, kind=lambda r, s: "checkpoint" if s == 20 else None,
              phases=lambda r, s: {"checkpoint": 900.0} if s == 20 else {})  # fmt: skip
        assert "checkpoint.stall" not in by_rule(tmp_path)


def restarted(folder, *, save_ms=50.0, every=EVERY, killed=32, steps=300, restart_ms=2000.0):
    """An attempt that ends in step ``killed``, and one that goes on from the last save."""

    def attempt(first, last, number, at, start_up=0.0):
        def ends(step):
            return step % every == every - 1

        return write(folder, steps=last, first=first, attempt=number, at_ms=at, start_up_ms=start_up,
                     kind=lambda r, s: "checkpoint" if ends(s) else None,
                     phases=lambda r, s: {"checkpoint": save_ms} if ends(s) else {},
                     length=lambda r, s: 100.0 + save_ms * ends(s))  # fmt: skip

    first_end = attempt(0, killed, 0, 0.0, 500.0)
    resumed = killed // every * every
    attempt(resumed, steps, 1, first_end, restart_ms)
    return resumed


class TestGoodput:
    def test_every_millisecond_has_a_name(self, tmp_path):
        resumed = restarted(tmp_path)
        result = study(tmp_path).result("goodput")
        assert result.restarts == 1
        assert result.lost_steps == 32 - resumed == 2
        for rank in result.ranks:
            assert sum(rank.ns.values()) == rank.wall_ns
            ms = {key: ns / 1e6 for key, ns in rank.ns.items()}
            assert ms["start_up"] == pytest.approx(500)
            assert ms["restart"] == pytest.approx(2000)
            assert ms["lost"] == pytest.approx(200)
            # 6 saves in the first attempt, 54 in the second
            assert ms["checkpoint"] == pytest.approx(60 * 50)
            assert ms["productive"] == pytest.approx(300 * 100)
            assert ms["between"] == ms["evaluation"] == ms["warm_up"] == 0
            assert rank.steps == 300
            assert rank.attempts == 2
        assert result.share == pytest.approx(30_000 / 35_700, rel=1e-6)

    def test_warm_up_and_evaluation_are_no_training(self, tmp_path):
        write(tmp_path, ranks=1, length=lambda r, s: 900.0 if s == 0 else 100.0, kind=lambda r, s: "eval" if s == 10 else None,
              phases=lambda r, s: {"evaluation": 30.0} if s == 20 else {})  # fmt: skip
        (rank,) = study(tmp_path).result("goodput").ranks
        ms = {key: ns / 1e6 for key, ns in rank.ns.items()}
        assert (ms["warm_up"], ms["evaluation"], ms["productive"]) == pytest.approx((800, 130, 40 * 100 - 130))

    def test_a_trace_alone_does_not_tell(self):
        from tests.unit.shapes.devices import cuda_graph

        run = cuda_graph().run
        from dtprof.analyse import study_of

        result = study_of(run).result("goodput")
        assert result.ranks == () and result.share is None and "captured steps" in result.why


class TestCheckpointInterval:
    def test_saves_that_are_far_too_frequent_are_found(self, tmp_path):
        restarted(tmp_path, every=2, save_ms=80.0, killed=200, steps=400, restart_ms=200.0)
        found = by_rule(tmp_path)["checkpoint.interval"]
        assert "too frequent" in found.title
        assert found.bound and found.seconds_per_step > 0
        assert "failed 1 time" in found.evidence[0].text.replace("\xa0", " ")

    def test_without_a_failure_nobody_knows_the_rate(self, tmp_path):
        write(tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None,
              phases=lambda r, s: {"checkpoint": 90.0} if saves(s) else {})  # fmt: skip
        assert "checkpoint.interval" not in by_rule(tmp_path)

    def test_an_interval_within_the_limits_of_one_failure_is_left_alone(self, tmp_path):
        # 50 ms every 2 s with a failure in 30 s: Young and Daly say 1.7 s
        restarted(tmp_path, every=20)
        assert "checkpoint.interval" not in by_rule(tmp_path)


class TestRestartCost:
    def test_what_dominates_is_said(self, tmp_path):
        restarted(tmp_path)
        found = by_rule(tmp_path)["training.restart"]
        assert found.seconds_per_step == pytest.approx(2.2 / 300)
        assert "starting again" in found.why
        assert found.severity == "medium"

    def test_lost_steps_ask_for_more_saves(self, tmp_path):
        restarted(tmp_path, every=40, killed=78, restart_ms=500.0)
        found = by_rule(tmp_path)["training.restart"]
        assert "no checkpoint had kept" in found.why
        assert found.seconds_per_step == pytest.approx((0.5 + 3.8) / 300)

    def test_a_short_restart_of_a_long_run_is_no_matter(self, tmp_path):
        restarted(tmp_path, steps=300, restart_ms=300.0)
        assert "training.restart" not in by_rule(tmp_path)


class TestCreep:
    @staticmethod
    def grown(folder, kib):
        """Resident memory of rank 1 that grows by ``kib`` in every step, with a little noise."""

        def resident(rank, step):
            return [(step, "memory_rss", float(2**28 + (kib * 1024 * step if rank == 1 else 0) + 4096 * (step * 7 % 3)))]

        write(folder, steps=80, metrics=resident)

    def test_the_rank_that_keeps_something_is_named(self, tmp_path):
        self.grown(tmp_path, 512)
        found = by_rule(tmp_path)["memory.creep"]
        assert (found.ranks, found.severity, found.seconds_per_step) == ((1,), "medium", None)
        assert "grows by 512.0 KiB per step" in found.title.replace("\xa0", " ")

    @pytest.mark.parametrize("kib", [0, 16])
    def test_what_every_process_does_is_healthy(self, tmp_path, kib):
        self.grown(tmp_path, kib)
        assert "memory.creep" not in by_rule(tmp_path)

    def test_few_steps_are_not_judged(self, tmp_path):
        write(tmp_path, steps=15, metrics=lambda r, s: [(s, "memory_rss", 2.0**28 + 2**20 * s)])
        assert "memory.creep" not in by_rule(tmp_path)
        assert "judged" in study(tmp_path).result("memory").parts[0].why["creep"]


class TestUneven:
    @staticmethod
    def ended(folder, fewer, **change):
        """Rank 1 has ``fewer`` steps than rank 0."""
        import json

        write(folder, **change)
        path = folder / "part00001" / "steps.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: len(lines) - fewer]))
        return json

    def test_the_rank_without_data_is_named(self, tmp_path):
        self.ended(tmp_path, 10)
        found = by_rule(tmp_path)["input.uneven"]
        assert (found.ranks, found.seconds_per_step, found.severity) == ((1,), None, "medium")
        assert "10 of 80 rank-steps" in found.title

    def test_a_rank_that_was_killed_is_no_case(self, tmp_path):
        json = self.ended(tmp_path, 10)
        path = tmp_path / "part00001" / "part.json"
        described = json.loads(path.read_text())
        described["extra"]["ended_ns"] = None
        path.write_text(json.dumps(described))
        assert "input.uneven" not in by_rule(tmp_path)


def readings(clock=1700.0, count=20, **more):
    """NVML's readings of a busy device."""
    base = {"sm_clock": clock, "gpu_utilization": 95.0, "temperature": 70.0, "clock_event_reasons": 0}
    return [{**base, **{k: v(i) if callable(v) else v for k, v in more.items()}} for i in range(count)]


class TestGpu:
    def test_a_hot_device_is_named_with_its_clock(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(1190.0, clock_event_reasons=0x40) if r == 1 else readings())
        found = by_rule(tmp_path)["gpu.throttling"]
        assert found.ranks == (1,)
        assert "hw thermal slowdown" in found.title
        assert "1,190 MHz" in found.title
        assert found.seconds_per_step is None  # nothing was traced: what computing takes is not known

    def test_a_power_cap_that_all_feel_is_normal(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(1500.0, clock_event_reasons=0x4))
        assert "gpu.throttling" not in by_rule(tmp_path)

    def test_a_power_cap_that_one_feels_is_not(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(1300.0 if r == 0 else 1700.0, clock_event_reasons=0x4 if r == 0 else 0))
        assert by_rule(tmp_path)["gpu.throttling"].ranks == (0,)

    def test_few_readings_say_nothing(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(900.0, count=3, clock_event_reasons=0x40))
        assert "gpu.throttling" not in by_rule(tmp_path)

    def test_memory_errors_count_only_as_they_come(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(ecc_uncorrected=lambda i: 7 + (i >= 10) * (r == 1), ecc_corrected=40))
        found = by_rule(tmp_path)["gpu.ecc"]
        assert (found.ranks, found.severity, found.seconds_per_step) == ((1,), "high", None)

    def test_old_errors_are_no_finding(self, tmp_path):
        write(tmp_path, nvml=lambda r: readings(ecc_uncorrected=7, ecc_corrected=400, nvlink_replay=90, nvlink_recovery=3))
        assert not {"gpu.ecc", "gpu.nvlink"} & set(by_rule(tmp_path))

    def test_a_link_that_recovers_is_graver_than_one_that_replays(self, tmp_path):
        write(tmp_path / "a", nvml=lambda r: readings(nvlink_recovery=lambda i: i // 10 if r == 0 else 0, nvlink_replay=0))
        write(tmp_path / "b", nvml=lambda r: readings(nvlink_recovery=0, nvlink_replay=lambda i: 2 * i if r == 0 else 0))
        found = [by_rule(tmp_path / name)["gpu.nvlink"] for name in "ab"]
        assert [(f.severity, f.ranks) for f in found] == [("medium", (0,)), ("low", (0,))]

    def test_a_job_without_a_device_has_none(self, tmp_path):
        write(tmp_path)
        assert study(tmp_path).result("gpu").parts == ()


class TestTraining:
    def test_epochs_that_stay_are_found_and_have_no_price(self, tmp_path):
        samplers = [{"shuffle": True, "epochs": [0, 0, 0]}]
        write(tmp_path, facts=lambda r: {"training": {"samplers": samplers}})
        found = by_rule(tmp_path)["training.sampler_epoch"]
        assert (found.ranks, found.seconds_per_step) == ((0, 1), None)
        assert "set_epoch" in found.next

    @pytest.mark.parametrize(
        "samplers",
        [
            [{"shuffle": True, "epochs": [0, 1, 2]}],
            [{"shuffle": True, "epochs": [0]}],
            [{"shuffle": True, "epochs": [0, 0, 1]}],
            [{"shuffle": False, "epochs": [0, 0, 0]}],
            [],
        ],
        ids=["set", "one epoch", "iterated twice", "not shuffled", "none"],
    )
    def test_samplers_that_say_nothing_bad(self, tmp_path, samplers):
        write(tmp_path, facts=lambda r: {"training": {"samplers": samplers}})
        assert "training.sampler_epoch" not in by_rule(tmp_path)

    def test_clipping_of_scaled_gradients(self, tmp_path):
        write(tmp_path, facts=lambda r: {"training": {"clips": {"scaled": 40, "unscaled": 0}}},
              metrics=lambda r, s: [(s, "loss_scale", 65536.0), (s, "skipped", 0.0)])  # fmt: skip
        found = by_rule(tmp_path)["training.clip_order"]
        assert found.severity == "high"
        assert "65,536 times" in found.why

    @pytest.mark.parametrize("facts", [{"clips": {"scaled": 0, "unscaled": 40}}, {}])
    def test_clipping_in_order_is_healthy(self, tmp_path, facts):
        write(tmp_path, facts=lambda r: {"training": facts})
        assert "training.clip_order" not in by_rule(tmp_path)

    def test_skips_after_the_start_are_priced_by_the_steps_they_waste(self, tmp_path):
        write(tmp_path, metrics=lambda r, s: [(s, "skipped", float(s < 3 or s % 5 == 0)), (s, "loss_scale", 4.0)])
        found = by_rule(tmp_path)["training.scaler_skips"]
        assert found.steps == tuple(range(5, 40, 5))
        assert found.seconds_per_step == pytest.approx(0.1 * 7 / 30)
        assert "The scale is 4" in found.evidence[0].text

    @pytest.mark.parametrize("skipped", [lambda s: s < 6, lambda s: s == 20, lambda s: False])
    def test_a_scaler_that_finds_its_scale_is_healthy(self, tmp_path, skipped):
        write(tmp_path, metrics=lambda r, s: [(s, "skipped", float(skipped(s)))])
        assert "training.scaler_skips" not in by_rule(tmp_path)

    @pytest.mark.parametrize(("noise", "word"), [(2.0, "for nothing"), (400.0, "larger batch")])
    def test_a_batch_far_from_the_noise_scale(self, tmp_path, noise, word):
        write(tmp_path, metrics=lambda r, s: [(s, "gradient_noise_scale", noise)])
        found = by_rule(tmp_path)["training.noise_scale"]
        assert word in found.title
        assert found.severity == "low"
        assert found.seconds_per_step is None

    def test_a_batch_near_the_noise_scale_is_healthy(self, tmp_path):
        write(tmp_path, metrics=lambda r, s: [(s, "gradient_noise_scale", 20.0)])
        assert "training.noise_scale" not in by_rule(tmp_path)

    @pytest.mark.parametrize(("mesh", "batch"), [({"tp": 2}, 8), ({"dp": 2}, 16), ({}, 16), ({"ring": 2}, None)])
    def test_the_batch_counts_ranks_with_data_of_their_own(self, tmp_path, mesh, batch):
        write(tmp_path, mesh=mesh, metrics=lambda r, s: [(s, "gradient_noise_scale", 0.5)])
        assert study(tmp_path).result("training").batch == batch
        assert ("training.noise_scale" in by_rule(tmp_path)) == (batch is not None)

    def test_a_rate_for_another_batch(self, tmp_path):
        write(tmp_path, knobs={"base_batch": 4, "lr": 0.1, "lr_scaling": "none"})
        found = by_rule(tmp_path)["training.lr_scaling"]
        # 8 samples on each of two ranks are four times the batch
        assert "0.4 by the linear rule" in found.next
        assert "0.2 by the root" in found.next

    @pytest.mark.parametrize(
        "knobs", [{"base_batch": 16, "lr": 0.1}, {"base_batch": 4, "lr_scaling": "linear"}, {"lr": 0.1}, {"base_batch": "4"}]
    )
    def test_a_rate_that_fits_or_is_scaled(self, tmp_path, knobs):
        write(tmp_path, knobs=knobs)
        assert "training.lr_scaling" not in by_rule(tmp_path)


def test_a_healthy_run_has_no_finding(tmp_path):
    write(
        tmp_path, kind=lambda r, s: "checkpoint" if saves(s) else None, host=lambda r, s: 0.5, nvml=lambda r: readings(),
        phases=lambda r, s: {"checkpoint": 4.0} if saves(s) else {"forward": 30.0},
        facts=lambda r: {"training": {"samplers": [{"shuffle": True, "epochs": [0, 1]}], "clips": {"scaled": 0}}},
        metrics=lambda r, s: [(s, "skipped", float(s == 0)), (s, "gradient_noise_scale", 16.0)],
    )  # fmt: skip
    assert by_rule(tmp_path) == {}


@pytest.mark.parametrize(
    ("ended", "named"),
    [((True, False), (1,)), ((False, False), ()), ((True, True), ())],
    ids=["one was killed", "all were", "none was"],
)
def test_a_restart_names_the_rank_that_left_no_end(ended, named):
    first = [Part(ordinal=r, rank=r, extra={"ended_ns": 5} if done else {}) for r, done in enumerate(ended)]
    second = [Part(ordinal=2 + r, rank=r, attempt=1, extra={"ended_ns": 9}) for r in range(2)]
    assert _ended_abruptly(Run(Manifest(parts=[*first, *second]), MemoryStore({}), "by hand", "dtprof")) == named
