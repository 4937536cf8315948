"""A run against a baseline: margins by kind, noise, correction over metrics, disturbances, exact metrics."""

import numpy as np
import pytest

from dtprof.check.baseline import Baseline, Recorded
from dtprof.check.fingerprint import Conditions, Fingerprint, disturbances, hardware_differs
from dtprof.check.judge import Margins, judge
from dtprof.check.metrics import Metric
from dtprof.stats import student_quantile, student_sf

MACHINE = Fingerprint(devices=["NVIDIA H100 80GB HBM3"], world_size=8, hosts=1, backend="nccl", max_sm_clock_mhz=1980.0)
STEP = "step_time_ns"


def runs(conditions=None, machine=MACHINE, kinds=None, worse=None, **values):
    """A baseline with these values of each metric, one per run."""
    kinds = kinds or {}
    count = len(next(iter(values.values())))
    metrics = {
        name: Metric(
            kind="time" if name == STEP else kinds.get(name, "time"),
            values=list(map(float, found)),
            worse=(worse or {}).get(name, "more"),
        )
        for name, found in values.items()
    }
    recorded = [Recorded(run=f"r{i}", conditions=conditions or Conditions()) for i in range(count)]
    return Baseline(fingerprint=machine, runs=recorded, metrics=metrics)


STEPS = [100e6, 101e6, 99.5e6, 100.5e6, 99e6]


def row(result, name):
    return next(r for r in result.rows if r.name == name)


def test_times_have_a_wide_margin_and_shares_a_tight_one():
    before = runs(step_time_ns=STEPS, exposed=[0.10, 0.101, 0.099, 0.1, 0.1], kinds={"exposed": "share"})
    now = runs(step_time_ns=[105e6], exposed=[0.105], kinds={"exposed": "share"})
    assert judge(before, now).outcome == "pass"
    shifted = runs(step_time_ns=[105e6], exposed=[0.15], kinds={"exposed": "share"})
    result = judge(before, shifted)
    assert result.outcome == "fail" and result.rows[0].name == "exposed"
    slow = runs(step_time_ns=[130e6], exposed=[0.1], kinds={"exposed": "share"})
    assert judge(before, slow).headline.startswith("FAIL: step_time_ns 100\u00a0ms to 130\u00a0ms (+30%)")


def test_what_is_better_never_fails():
    before = runs(step_time_ns=STEPS, overlap=[0.5] * 5, kinds={"overlap": "share"}, worse={"overlap": "less"})
    better = runs(step_time_ns=[50e6], overlap=[0.9], kinds={"overlap": "share"}, worse={"overlap": "less"})
    assert judge(before, better).outcome == "pass"
    assert (
        row(judge(before, runs(step_time_ns=[100e6], overlap=[0.3], kinds={"overlap": "share"})), "overlap").outcome == "fail"
    )


def test_a_larger_part_of_a_shorter_step_is_no_failure():
    before = runs(step_time_ns=STEPS, wait=[0.1] * 5, kinds={"wait": "share"})
    now = runs(step_time_ns=[60e6], wait=[0.16], kinds={"wait": "share"})
    result = judge(before, now)
    assert result.outcome == "pass" and "a larger part of a shorter step" in row(result, "wait").text


def test_exact_metrics_fail_on_any_difference_unless_they_were_never_exact():
    before = runs(step_time_ns=STEPS, launches=[812] * 5, kinds={"launches": "exact"})
    result = judge(before, runs(step_time_ns=[100e6], launches=[813], kinds={"launches": "exact"}))
    assert result.outcome == "fail" and "dtprof baseline accept" in result.headline
    loose = runs(step_time_ns=STEPS, launches=[812, 812, 815, 812, 812], kinds={"launches": "exact"})
    assert judge(loose, runs(step_time_ns=[100e6], launches=[900], kinds={"launches": "exact"})).outcome == "pass"


def test_a_missing_metric_is_one_line_and_no_pass():
    before = runs(step_time_ns=STEPS, memory=[1e9] * 5, kinds={"memory": "bytes"})
    result = judge(before, runs(step_time_ns=[100e6]))
    assert result.outcome == "inconclusive"
    assert result.headline == "INCONCLUSIVE: memory missing: the baseline has it and this run does not"
    assert judge(runs(step_time_ns=STEPS), runs(other=[1.0])).outcome == "inconclusive"


def test_a_baseline_of_one_run_assumes_its_noise_and_says_so():
    before = runs(step_time_ns=[100e6])
    result = judge(before, runs(step_time_ns=[101e6]))
    assert result.outcome == "pass" and any("noise is assumed" in note for note in result.notes)
    assert judge(before, runs(step_time_ns=[150e6])).outcome == "fail"


def test_a_noisy_baseline_is_inconclusive_with_what_it_would_see():
    before = runs(step_time_ns=[100e6, 130e6, 80e6, 90e6, 120e6])
    result = judge(before, runs(step_time_ns=[120e6]))
    assert result.outcome == "inconclusive" and "would be caught" in result.headline


def test_a_failure_has_to_repeat_where_a_confirming_run_is_given():
    before = runs(step_time_ns=STEPS)
    slow, again = runs(step_time_ns=[130e6]), runs(step_time_ns=[100e6])
    result = judge(before, slow, confirm=again)
    assert result.outcome == "inconclusive" and "not so in the confirming run" in result.headline
    assert judge(before, slow, confirm=slow).outcome == "fail"


# one model of machine, once throttled and busy: the names match and the machines do not


def test_throttling_another_process_and_a_lower_clock_are_quoted():
    usual = Conditions(sm_clock_mhz=2980, max_sm_clock_mhz=3003, other_gpu_percent=0.0)
    disturbed = Conditions(
        sm_clock_mhz=2470, max_sm_clock_mhz=3003, throttled={"sw_thermal_slowdown": 0.05}, other_gpu_percent=9.0
    )
    before = runs(usual, step_time_ns=STEPS)
    result = judge(before, runs(disturbed, step_time_ns=[156e6]))
    assert result.outcome == "inconclusive"
    for words in ("SM clock 2470 of 3003 MHz", "sw thermal slowdown in 5% of the time", "other processes use 9% of the GPU"):
        assert words in result.headline
    # the same step without any of it is a failure, and with counters that nobody read as well
    assert judge(before, runs(usual, step_time_ns=[156e6])).outcome == "fail"
    assert judge(before, runs(Conditions(), step_time_ns=[156e6])).outcome == "fail"
    assert judge(runs(step_time_ns=STEPS), runs(disturbed, step_time_ns=[156e6])).outcome == "inconclusive"


def test_other_load_on_the_host_is_quoted():
    result = judge(runs(Conditions(no_core=0.02), step_time_ns=STEPS), runs(Conditions(no_core=0.4), step_time_ns=[156e6]))
    assert result.outcome == "inconclusive" and "no core for 40% of the step, 2% in the baseline" in result.headline


def test_what_is_exact_fails_on_a_disturbed_machine_as_well():
    before = runs(Conditions(no_core=0.0), step_time_ns=STEPS, launches=[8] * 5, kinds={"launches": "exact"})
    now = runs(Conditions(no_core=0.4), step_time_ns=[156e6], launches=[9], kinds={"launches": "exact"})
    assert judge(before, now).outcome == "fail"


def test_a_disturbed_run_that_is_fast_enough_passes():
    assert judge(runs(step_time_ns=STEPS), runs(Conditions(no_core=0.4), step_time_ns=[99e6])).outcome == "pass"


def test_a_baseline_that_its_own_commit_no_longer_meets():
    before, slow = runs(step_time_ns=STEPS), runs(step_time_ns=[130e6])
    result = judge(before, slow, control=runs(step_time_ns=[131e6]))
    assert result.outcome == "inconclusive" and "the baseline's own commit no longer meets it" in result.headline
    assert judge(before, slow, control=runs(step_time_ns=[100e6])).outcome == "fail"


def test_nothing_recorded_disturbs_nothing():
    assert disturbances(Conditions(), [Conditions(sm_clock_mhz=1980)]) == []
    assert disturbances(Conditions(sm_clock_mhz=1980), []) == []


def test_another_device_or_number_of_ranks_is_not_comparable():
    other = Fingerprint(devices=["NVIDIA A100"], world_size=8, hosts=1, backend="nccl")
    assert "another device" in hardware_differs(MACHINE, other)
    fewer = Fingerprint(devices=MACHINE.devices, world_size=4, hosts=1, backend="nccl")
    assert hardware_differs(MACHINE, fewer) == "another number of ranks: 8 in the baseline, 4 in the run"


# hundreds of metrics at one threshold would flag a new random subset every time


def many(rng, slower=()):
    """200 metrics with a deviation of 6% between runs, five runs; some are 8% slower."""
    values = {f"m{i:03d}": np.exp(rng.normal(0, 0.06, 5)) * 1e6 * (1.08 if i in slower else 1.0) for i in range(200)}
    return runs(step_time_ns=np.exp(rng.normal(0, 0.06, 5)) * 1e8, **values)


def test_two_hundred_metrics_without_a_change_fail_in_at_most_one_of_twenty():
    rng = np.random.default_rng(46)
    results = [judge(many(rng), many(rng), margins=Margins(0.02, 0.02)) for _ in range(20)]
    assert sum(r.outcome == "fail" for r in results) <= 1


def test_true_changes_among_two_hundred_are_caught_or_said_to_be_out_of_reach():
    rng = np.random.default_rng(47)
    slower = (3, 150, 199)
    result = judge(many(rng), many(rng, slower), margins=Margins(0.02, 0.02))
    for i in slower:
        found = row(result, f"m{i:03d}")
        assert found.outcome == "fail" or (found.outcome == "inconclusive" and "would be caught" in found.text)
    worst = [r.values["worse"] for r in result.rows if r.values.get("suspect")]
    assert worst == sorted(worst, reverse=True)


def test_a_large_change_among_two_hundred_is_caught():
    rng = np.random.default_rng(48)
    before, now = many(rng), many(rng)
    now.metrics["m150"].values = [v * 2 for v in now.metrics["m150"].values]
    result = judge(before, now, margins=Margins(0.02, 0.02))
    assert result.outcome == "fail" and [r.name for r in result.rows if r.outcome == "fail"] == ["m150"]


@pytest.mark.parametrize(
    ("degrees", "alpha", "t"), [(1, 0.01, 31.821), (4, 0.01, 3.747), (8, 0.005, 3.355), (30, 0.01, 2.457), (10, 0.001, 4.144)]
)  # published quantiles of Student's t
def test_student(degrees, alpha, t):
    assert student_quantile(alpha, degrees) == pytest.approx(t, abs=6e-4)
    assert student_sf(t, degrees) == pytest.approx(alpha, rel=1e-3)
    assert student_sf(-t, degrees) == pytest.approx(1 - alpha, rel=1e-3)
    assert student_sf(0.0, degrees) == pytest.approx(0.5)
