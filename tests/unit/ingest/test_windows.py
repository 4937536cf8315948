"""Several traces in one part folder become one part; a trace of the job's own profiler stands in for ours."""

from __future__ import annotations

import json

import msgspec
import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.run import Part, write_json
from tests.unit.kineto_maker import Trace, quality

STEP_US = 1000
BASE = 1_700_000_000_000_000_000


def trace(path, steps, *, marks=None, kernels=True):
    """Steps of 1 ms each, at step x 1 ms, with two kernels; ``marks`` are the numbers that the tracer counted."""
    t = Trace(0, 1)
    for step, mark in zip(steps, marks or steps, strict=True):
        at = STEP_US * step
        t.step(mark, at, at + STEP_US)
        if kernels:
            t.run("gemm", at + 10, at + 20, at + 500)
            t.run("relu", at + 520, at + 530, at + 600, 20)
    t.write(path)


@pytest.fixture
def run(tmp_path):
    part = tmp_path / "run" / "part00000"
    part.mkdir(parents=True)
    me = Part(ordinal=0, rank=0, world_size=1, host="n", pid=9, extra={"ended_ns": 1, "started_ns": 0})
    write_json(part / "part.json", msgspec.to_builtins(me))

    def lines(captured):
        rows = [
            {"step": k, "host_ts": BASE + 1_000_000 * k, "host_dur": 1_000_000, "captured": k in captured, "kind": "train",
             "input_ns": 5 * k, "phases": {"forward": 7, "strange": 1}, "own_ns": 3}
            for k in range(60)
        ]  # fmt: skip
        (part / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return part, lines


def test_windows_become_one_part_and_the_time_between_them_is_nobodys(run):
    part, lines = run
    lines({5, 6, 20, 21, 22, 40})
    trace(part / "trace.json", [5, 6])
    trace(part / "trace-0001.json", [20, 21, 22])
    trace(part / "trace-0002.json", [40])
    opened = dtprof.open_run(part.parent)
    events, steps = opened.table("events", 0), opened.table("steps", 0)
    assert steps["step"][steps["captured"]].tolist() == [5, 6, 20, 21, 22, 40]
    kernels = events.take(events.is_("kind", "kernel"))
    assert len(kernels) == 12 and len(opened.table("lanes", 0)) == len(set(events["lane"].tolist()))
    for row in range(len(events)):
        launch = int(events["launch"][row])
        if events.text("kind")[row] == "kernel":
            assert events.text("kind")[launch] == "runtime"
            assert events["correlation"][launch] == events["correlation"][row]
            assert events["step"][launch] == events["step"][row]
    assert len(set(kernels["correlation"].tolist())) == 12, "a number of one trace is none of another"
    (account,) = study_of(opened).result("accounting").parts
    assert [(s.step, s.complete) for s in account.steps] == [
        (5, True), (6, False), (20, True), (21, True), (22, False), (40, False),
    ]  # fmt: skip
    assert all(sum(s.accounting.values()) == s.dur_ns <= 1_000_000 for s in account.steps)
    assert account.device.span_ns == 1_580_000 + 2_580_000 + 580_000


def test_light_mode_gives_metrics(run):
    part, lines = run
    lines(set())
    metrics = dtprof.open_run(part.parent).table("metrics", 0)
    at = {
        m: metrics.take(metrics.is_("metric", m) & (metrics["step"] == 9))["value"].tolist() for m in metrics.values("metric")
    }
    assert at == {"input_wait": [45.0], "phase_forward": [7.0], "own_time": [3.0]}


def test_a_trace_of_the_jobs_profiler_is_read_in_our_numbers(run):
    part, lines = run
    lines(set())
    trace(part / "trace-job-0001.json", [30, 31], marks=[2, 3])
    opened = dtprof.open_run(part.parent)
    steps, events = opened.table("steps", 0), opened.table("events", 0)
    assert steps["step"][steps["captured"]].tolist() == [30, 31]
    assert set(events["step"][events.is_("kind", "kernel")].tolist()) == {30, 31}
    assert any("own torch.profiler" in what for what, _ in quality(opened))
    (account,) = study_of(opened).result("accounting").parts
    assert [s.step for s in account.steps] == [30, 31]


def test_what_the_jobs_profiler_saw_of_our_window_is_not_counted_twice(run):
    part, lines = run
    lines({5, 6})
    trace(part / "trace.json", [5, 6])
    trace(part / "trace-job-0001.json", [6, 7], marks=[0, 1])
    trace(part / "trace-job-0002.json", [100], marks=[0])
    (part / "trace-job-0003.json").write_text("{")
    opened = dtprof.open_run(part.parent)
    assert len(opened.table("events", 0).take(opened.table("events", 0).is_("kind", "kernel"))) == 4
    told = [what for what, _ in quality(opened)]
    assert any("its steps are in another trace" in w for w in told) and any("no step of it is one of ours" in w for w in told)


def test_a_loop_that_waited_long_for_an_export_is_told(run):
    part, lines = run
    lines({5, 6})
    trace(part / "trace.json", [5, 6])
    whole = json.loads((part / "part.json").read_text())
    windows = [
        {"stop_ms": 900.0, "export_ms": 4100.0, "exported_at_step": 6},
        {"stop_ms": 5.0, "export_ms": 9.0},
        "x",
        {"stop_ms": None},
    ]
    whole["extra"]["collectors"] = [{"name": "torch_profiler", "facts": {"windows": windows}}, {"name": "torch_profiler"}]
    (part / "part.json").write_text(json.dumps(whole))
    told = [what for what, _ in quality(dtprof.open_run(part.parent)) if "stood still" in what]
    assert told == ["the loop stood still for 5.0 s after step 6, while torch.profiler stopped and exported"]
