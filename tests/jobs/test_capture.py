"""What two real ranks record: the same steps on both, whole, and every collective with its group, sequence and bytes."""

import gzip
import json
from pathlib import Path

import pytest

from dtprof.jsonl import read_lines
from dtprof.session.folder import describe
from dtprof_collectors.ddp import DdpCollector
from dtprof_collectors.host import HostCollector

RANKS = (0, 1)
LAYER = 96 * 96 * 4 + 96 * 4


@pytest.fixture(scope="module")
def out(run, scripts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture")
    run(2, [str(scripts / "capture.py"), str(folder)])
    return folder


def trace(part):
    with gzip.open(part / "trace.json.gz", "rt") as file:
        return json.load(file)


def spans(part, name):
    """(start, end) in Unix ns of the spans whose name starts so, by name and start."""
    found = trace(part)
    base = found["baseTimeNanoseconds"]
    rows = [e for e in found["traceEvents"] if e.get("ph") == "X" and e["name"].startswith(name)]
    rows.sort(key=lambda e: e["ts"])
    return [(e["name"], base + round(e["ts"] * 1000), base + round((e["ts"] + e["dur"]) * 1000)) for e in rows]


def facts(part, collector):
    return next(c for c in describe(part).extra["collectors"] if c["name"] == collector)


@pytest.mark.parametrize("rank", RANKS)
def test_the_trace_holds_the_window_and_each_step_as_a_whole(out, rank):
    part = out / "window" / f"part0000{rank}"
    steps = {r["step"]: r for r in read_lines(part / "steps.jsonl")[0]}
    assert [k for k, r in steps.items() if r["captured"]] == [3, 4, 5]
    marks = spans(part, "ProfilerStep#")
    assert [name for name, _, _ in marks] == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    for name, begin, end in marks:
        step = steps[int(name.partition("#")[2])]
        # the mark opens and closes in our own time between the steps
        assert begin <= step["host_ts"] + 200_000
        assert step["host_ts"] + step["host_dur"] <= end + 200_000
        for wanted in ("forward#microbatch=0", "backward"):
            assert len([s for s in spans(part, wanted) if begin <= s[1] and s[2] <= end]) == 1
    assert facts(part, "torch_profiler")["facts"]["steps"] == [3, 5]
    assert trace(part)["distributedInfo"]["rank"] == rank


@pytest.mark.parametrize("rank", RANKS)
def test_every_collective_has_group_sequence_bytes_and_step(out, rank):
    part = out / "window" / f"part0000{rank}"
    rows, bad = read_lines(part / "collectives.jsonl")
    layout = [r for r in read_lines(part / "ddp.jsonl")[0] if r["type"] == "layout"][-1]
    sizes = [b["bytes"] for b in layout["buckets"]]
    assert bad == 0
    assert [r["order"] for r in rows] == list(range(len(rows)))
    assert {(r["op"], r["dtype"], tuple(r["ranks"]), r["source"]) for r in rows} == {
        ("all_reduce", "float32", (0, 1), "flight_recorder")
    }
    assert [r["seq"] for r in rows] == list(range(rows[0]["seq"], rows[0]["seq"] + len(rows)))
    for step in (3, 4, 5):
        assert [r["bytes_in"] for r in rows if r["step"] == step] == sizes
    issued = spans(part, "c10d::allreduce_")
    assert len(issued) == len(rows) == len(spans(part, "gloo:all_reduce"))
    for row, (_, begin, end) in zip(rows, issued, strict=True):
        assert begin <= row["created_ns"] <= end


def test_the_ranks_issue_the_same_collectives(out):
    first, second = (read_lines(out / "window" / f"part0000{r}" / "collectives.jsonl")[0] for r in RANKS)
    same = ("order", "step", "group", "ranks", "seq", "op", "bytes_in", "bytes_out", "dtype")
    assert [[r[k] for k in same] for r in first] == [[r[k] for k in same] for r in second]


@pytest.mark.parametrize("rank", RANKS)
def test_gradients_become_ready_inside_backward_and_buckets_with_their_last_member(out, rank):
    part = out / "window" / f"part0000{rank}"
    tables = DdpCollector().tables(part)
    grads, buckets = tables["grads"], tables["buckets"]
    steps = {r["step"]: r for r in read_lines(part / "steps.jsonl")[0]}
    # every gradient in the first three steps and around the window, buckets alone in the others
    assert sorted(set(grads["step"].tolist())) == [0, 1, 2, 3, 4, 5]
    assert sorted(set(buckets["step"].tolist())) == list(range(9))
    assert (buckets["ready"][buckets["step"] > 1] > 0).all()
    rows = [grads.row(i) for i in range(len(grads))]
    backward = spans(part, "backward")
    for row in (buckets.row(i) for i in range(len(buckets))):
        begin = steps[row["step"]]["host_ts"]
        assert row["ready"] is None or begin < row["ready"] < begin + steps[row["step"]]["host_dur"]
    for step in (3, 4, 5):
        mine = [r for r in rows if r["step"] == step]
        assert sorted(r["parameter"] for r in mine) == sorted(f"{n}.{k}" for n in range(6) for k in ("weight", "bias"))
        _, begin, end = backward[step - 3]
        assert all(begin <= r["ready"] <= end for r in mine)
        ready = {r["parameter"]: r["ready"] for r in mine}
        own = [b for b in (buckets.row(i) for i in range(len(buckets))) if b["step"] == step]
        assert [b["bucket"] for b in own] == list(range(len(own)))
        assert sum(b["bytes"] for b in own) == 6 * LAYER
        for bucket in own:
            assert bucket["ready"] == max(ready[m] for m in bucket["members"])
            assert steps[step]["host_ts"] <= bucket["ready"] <= bucket["start"]
    assert "quality" not in tables


def test_the_configuration_is_recorded_as_given(out):
    def config(scenario):
        return next(r for r in reversed(read_lines(out / scenario / "part00000" / "ddp.jsonl")[0]) if r["type"] == "config")

    plain, unused = config("window"), config("unused")
    assert (plain["bucket_cap_mb"], plain["bucket_cap_bytes"]) == (pytest.approx(0.05, rel=1e-3), 52428)
    assert (plain["find_unused_parameters"], plain["gradient_as_bucket_view"], plain["comm_hook"]) == (False, False, None)
    assert (plain["ranks"], plain["backend"], plain["module"]) == ([0, 1], "gloo", "Sequential")
    assert (unused["bucket_cap_mb"], unused["find_unused_parameters"], unused["gradient_as_bucket_view"]) == (None, True, True)


def test_parameters_that_took_no_part_are_named(out):
    rows, _ = read_lines(out / "unused" / "part00000" / "ddp.jsonl")
    config = next(r for r in reversed(rows) if r["type"] == "config")
    names = [name for name, _, _ in config["parameters"]]
    grads = [r for r in rows if r["type"] == "grads" and r["model"] == config["model"]]
    assert [sorted(names[i] for i in r["unused"]) for r in grads] == [["idle.bias", "idle.weight"]] * len(grads)
    assert [r["step"] for r in grads] == [0, 1, 2, 3]


def test_a_window_at_the_very_start_is_captured_too(out):
    for rank in RANKS:
        names = [name for name, _, _ in spans(out / "from_the_start" / f"part0000{rank}", "ProfilerStep#")]
        assert names == ["ProfilerStep#0", "ProfilerStep#1"]


def test_a_loop_that_ends_inside_the_window_leaves_what_there_is_and_says_so(out):
    part = out / "cut_short" / "part00000"
    assert facts(part, "torch_profiler")["facts"]["steps"] == [3, 4]
    assert describe(part).extra["notes"] == ["capture 3:6 is incomplete: the loop ended after step 4"]
    assert {r["step"] for r in read_lines(part / "collectives.jsonl")[0]} == {3, 4}
    assert len(spans(part, "gloo:all_reduce")) > 0


def test_a_slow_file_system_does_not_stop_the_loop(out):
    part = out / "slow_export" / "part00001"
    told = facts(part, "torch_profiler")
    assert told["facts"]["exported_at_step"] == 5
    assert "missing" not in told
    assert len(spans(part, "ProfilerStep#")) == 3


def test_a_slow_backward_shows_in_the_gradients_of_its_rank_alone(out):
    def gaps(rank):
        table = DdpCollector().tables(out / "slow_layer" / f"part0000{rank}")["grads"]
        rows = [table.row(i) for i in range(len(table))]
        ready = {(r["step"], r["parameter"]): r["ready"] for r in rows}
        return [ready[s, "3.weight"] - ready[s, "4.weight"] for s in (3, 4, 5)]

    assert min(gaps(1)) >= 50_000_000
    assert min(gaps(0)) < min(gaps(1))


def test_a_wrapper_made_after_the_session_began_is_found_after_its_first_step(out):
    table = DdpCollector().tables(out / "made_late" / "part00000")["grads"]
    assert sorted(set(table["step"].tolist())) == [1, 2, 3]
    assert len(table) == 3 * 12


def test_uneven_batches_under_join_keep_their_own_step_counts(out):
    parts = [out / "join" / f"part0000{rank}" for rank in RANKS]
    assert [describe(p).extra["steps_done"] for p in parts] == [3, 6]
    grads = [[r for r in read_lines(p / "ddp.jsonl")[0] if r["type"] == "grads" and r["ready"]] for p in parts]
    assert all(r["join"] for rows in grads for r in rows)


def test_the_host_is_sampled_at_every_step(out):
    tables = HostCollector().tables(out / "window" / "part00000")
    metrics = tables["metrics"].text("metric")
    for metric in ("process_cpu", "thread_cpu", "voluntary_switches", "involuntary_switches", "major_faults", "gc_time"):
        assert metrics.count(metric) == 9
    if Path("/proc/thread-self/schedstat").exists():
        assert metrics.count("run_delay") == 9
    assert "load_1m" in tables["samples"].text("metric")


def test_without_the_flight_recorder_bucket_sizes_stand_in_and_it_is_said(run, scripts, tmp_path):
    run(2, [str(scripts / "capture.py"), str(tmp_path), "window"], changes={"TORCH_FR_BUFFER_SIZE": "0"})
    part = tmp_path / "window" / "part00000"
    rows, _ = read_lines(part / "collectives.jsonl")
    layout = [r for r in read_lines(part / "ddp.jsonl")[0] if r["type"] == "layout"][-1]
    assert {r["source"] for r in rows} == {"ddp_layout"}
    assert [r["bytes_in"] for r in rows if r["step"] == 4] == [b["bytes"] for b in layout["buckets"]]
    assert {r["seq"] for r in rows} == {None}
    assert "TORCH_FR_BUFFER_SIZE" in facts(part, "ddp")["missing"][0]
