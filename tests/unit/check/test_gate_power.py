"""The gate's promises by simulation: false failures, what is caught, and that what it prints is what it can see."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate import NOISE, Machine, outcomes, row
from dtprof.check.gate import gate_result
from dtprof.launch.trial import Plan, differences_of, run_trial
from dtprof.stats import detectable

TRIALS = 1000
PLAN = Plan(pairs=20, margin=0.02, alpha=0.01)
QUIET = NOISE["quiet 1%"]


def shares(noise, *, plan=PLAN, trials=TRIALS, slower=0.0):
    """Shares of fail, pass and inconclusive."""
    rng = np.random.default_rng(20)
    return outcomes(lambda: Machine(rng, **noise, slower=slower), plan, trials)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISE)
def test_the_promises_hold_in_a_thousand_trials(kind):
    found = row(NOISE[kind], np.random.default_rng(4), PLAN, TRIALS)
    assert found["false_fail"] <= 0.01 and found["fail_at_margin"] <= 0.01
    # what is printed as detectable is caught four times in five
    assert found["power"] == pytest.approx(0.8, abs=0.05)
    if NOISE[kind] is QUIET:
        assert found["caught_5"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [7, 10])
@pytest.mark.parametrize("kind", NOISE)
def test_at_most_one_in_a_hundred_fails_with_fewer_pairs(kind, pairs):
    assert shares(NOISE[kind], plan=replace(PLAN, pairs=pairs))["fail"] <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISE)
def test_without_repetition_the_level_holds_as_well(kind):
    limit = 0.01 + 3 * math.sqrt(0.0099 / TRIALS)
    assert shares(NOISE[kind], plan=replace(PLAN, confirm=False), slower=0.02)["fail"] <= limit


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISE)
def test_a_pass_is_as_rare_for_a_change_beyond_the_margin(kind):
    assert shares(NOISE[kind], slower=0.021)["pass"] <= 0.01 + 3 * math.sqrt(0.0099 / TRIALS)


def test_quickly_no_failure_without_a_change_and_a_large_one_caught():
    assert shares(NOISE["spikes"], trials=60)["fail"] == 0
    assert shares(QUIET, trials=40, slower=0.05)["fail"] == 1.0


def test_quickly_what_is_printed_is_about_what_is_seen():
    found = row(NOISE["usual 3%"], np.random.default_rng(3), PLAN, 60)
    assert 0.04 < found["detectable"] < 0.09
    assert found["power"] == pytest.approx(0.8, abs=0.2)


def test_recorded_steps_are_resampled_in_stretches_as_they_came():
    steps = np.concatenate([np.full(30, 1.0), np.full(30, 2.0)])
    rng = np.random.default_rng(0)
    runs = {Machine(rng, recorded=steps).run() for _ in range(300)}
    assert runs == {1.0, 1.5, 2.0}
    assert shares({"recorded": np.full(40, 7.0)}, trials=5)["pass"] == 1.0


def test_a_loaded_machine_is_inconclusive_and_says_its_noise():
    machine = Machine(np.random.default_rng(1), cv=0.3)
    trial = run_trial(machine.measure, PLAN)
    assert trial.outcome == "inconclusive"
    assert "noise of a pair" in gate_result(trial, (), title="t").headline


def test_a_gate_that_cannot_be_kept_is_refused_early():
    machine = Machine(np.random.default_rng(1), cv=0.05)
    trial = run_trial(machine.measure, replace(PLAN, detect=0.03))
    assert trial.refused and trial.outcome == "inconclusive" and len(trial.first) == 9
    assert "cannot detect +3.0%" in trial.reason and "is possible" in trial.reason


def test_a_refusal_says_how_many_pairs_would_do():
    machine = Machine(np.random.default_rng(2), cv=0.02)
    plan = replace(PLAN, detect=0.04)
    trial = run_trial(machine.measure, plan)
    assert trial.refused
    assert f"{trial.needed} pairs would" in trial.reason
    found = differences_of(trial.first)
    assert detectable(found, trial.needed, margin=0.02, alpha=0.01) <= 0.04


def test_a_failure_that_does_not_repeat_is_inconclusive():
    def measure(number):
        return 1.0, (1.2 if number < 9 else 1.0) * (1 + 0.001 * (number % 3))

    trial = run_trial(measure, PLAN)
    assert trial.outcome == "inconclusive" and "did not repeat" in trial.reason
    assert run_trial(measure, replace(PLAN, confirm=False)).outcome == "fail"


def test_a_saving_is_told_as_the_change_it_is():
    def measure(number):
        return 1.0, 0.75 + 0.0001 * number

    trial = run_trial(measure, Plan(pairs=10, margin=0.01, direction=-1, confirm=False))
    assert trial.outcome == "fail" and trial.reason.startswith("−25%")


def test_minutes_become_pairs(monkeypatch):
    import dtprof.launch.trial as module

    now = [0.0]
    monkeypatch.setattr(module.clock, "monotonic", lambda: now[0])

    def measure(number):
        now[0] += 6.0
        return 1.0, 1.0 + 0.001 * (number % 2)

    trial = run_trial(measure, Plan(minutes=3, margin=0.02))
    assert trial.allowed == 20
    with pytest.raises(module.InputError, match=r"give --minutes 1\.1 or more"):
        run_trial(measure, Plan(minutes=0.5))


@pytest.mark.parametrize("plan", [Plan(pairs=6), Plan(pairs=20, margin=0.05, detect=0.05), Plan(pairs=20, alpha=1e-9)])
def test_plans_that_can_decide_nothing_are_refused(plan):
    with pytest.raises(Exception, match=r"cannot decide|is within the margin"):
        run_trial(lambda number: (1.0, 1.0), plan)
