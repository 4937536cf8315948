"""When a step is called slow, and what is then asked for."""

import pytest

import dtprof
from dtprof.errors import InputError
from dtprof.jsonl import read_lines
from dtprof.session.anomaly import LEAST_HISTORY, AnomalyOptions, Detector, Watcher, options_of
from dtprof.session.windows import FILE
from tests.unit.session_fakes import Remembers

MS = 1_000_000


def test_the_limit_is_as_stated():
    steps = Detector(AnomalyOptions(k=2, floor=0.01))
    assert [steps.slow((100 + n % 3) * MS) for n in range(LEAST_HISTORY)] == [None] * LEAST_HISTORY
    # 100, 101, 102, ...: median 101, deviations 1, 0, 1: MAD 1
    assert steps.limit_ns == int(101 * MS + 2 * 1.4826 * MS)
    assert steps.slow(103 * MS) is None
    assert steps.slow(104 * MS) == int(101 * MS + 2 * 1.4826 * MS)


def test_the_floor_counts_where_steps_are_all_alike():
    steps = Detector(AnomalyOptions(floor=0.5))
    for _ in range(LEAST_HISTORY):
        assert steps.slow(100 * MS) is None
    assert steps.limit_ns == 150 * MS
    assert steps.slow(150 * MS) is None
    assert steps.slow(150 * MS + 1) == 150 * MS


def test_a_job_that_becomes_slower_for_good_is_slow_for_a_while_only():
    steps = Detector(AnomalyOptions(history=40))
    said = [steps.slow(100 * MS) for _ in range(40)] + [steps.slow(200 * MS) for _ in range(60)]
    assert 0 < sum(limit is not None for limit in said) < 40
    assert said[-1] is None


@pytest.mark.parametrize("anomaly", [{"depth": 1}, {"k": "x"}, {"k": -1}, {"steps": True}, {"floor": float("nan")}])
def test_what_is_no_option_is_refused_before_training(tmp_path, anomaly):
    with pytest.raises(InputError, match="anomaly"):
        dtprof.profile(tmp_path, anomaly=anomaly)


def test_options():
    assert options_of(False) is None
    assert options_of(True) == options_of({}) == AnomalyOptions()
    assert options_of({"steps": 2.0, "k": 3}) == AnomalyOptions(steps=2, k=3.0)


def watcher(tmp_path, **options):
    made = Watcher(AnomalyOptions(**options), tmp_path, "k", 0, 3)
    for step in range(LEAST_HISTORY):
        assert not made.see(step, 10 * MS, 0, [])
    return made


def test_one_request_in_a_while_and_no_more_than_asked_for(tmp_path):
    made = watcher(tmp_path, gap_s=1.0, most=2, steps=2)
    seen = [made.see(step, 99 * MS, step * 10**9 // 2, []) for step in range(100, 110)]
    assert seen == [True, False, True, *[False] * 7]
    rows, _ = read_lines(tmp_path / FILE)
    assert [(r["rank"], r["step"], r["dur_ns"], r["limit_ns"], r["why"]) for r in rows] == [
        (3, 100, 99 * MS, 15 * MS, "anomaly"),
        (3, 102, 99 * MS, 15 * MS, "anomaly"),
    ]
    # a second ahead, at 10 ms a step
    assert [(r["first"], r["end"]) for r in rows] == [(201, 203), (203, 205)]


def test_what_another_rank_has_asked_for_is_enough(tmp_path):
    made = watcher(tmp_path, gap_s=10.0)
    told = [{"why": "anomaly", "asked_ns": 0}]
    assert not made.see(100, 99 * MS, 9 * 10**9, told)
    assert made.see(101, 99 * MS, 11 * 10**9, told)
    assert made.slow_steps == 2


def test_a_slow_step_of_a_session_is_captured_later(tmp_path, monkeypatch):
    now = [0]
    monkeypatch.setattr("dtprof.session.core.time.perf_counter_ns", lambda: now[0])
    fake = Remembers()
    windows = []
    with dtprof.profile(tmp_path, capture=None, collectors=[fake], anomaly=True) as prof:
        for step in range(400):
            now[0] += 500 * MS if step in (20, 40, 300) else 10 * MS
            prof.step(kind="eval" if step == 20 else None)
            windows.append((fake.context.window.first, fake.context.window.end))
    assert windows[40] == (141, 144) and windows[39] == (-1, -1)
    assert {w for w in windows if w[0] >= 0} == {(141, 144)}
    (request,) = read_lines(tmp_path / FILE)[0]
    assert request["step"] == 40


def test_a_folder_that_goes_while_the_job_runs_costs_one_warning(tmp_path, caplog):
    import shutil

    run = tmp_path / "run"
    fake = Remembers()
    with dtprof.profile(run, capture="2:3", collectors=[fake], anomaly={"floor": 0, "k": 0}) as prof:
        for step in range(60):
            if step == 5:
                shutil.rmtree(run)
            prof.step()
    assert fake.calls == ["start", *range(60), "stop"]
    assert len({r.message for r in caplog.records if "switched off" in r.message}) == len(
        [r for r in caplog.records if "switched off" in r.message]
    )
