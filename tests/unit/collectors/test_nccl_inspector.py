"""NCCL Inspector files, written here by the plug-in's documentation: two hosts, four processes, groups of four and of two."""

import json
import os

import pytest

import dtprof
from dtprof.protocols import Context
from dtprof_collectors.nccl_inspector import NcclInspectorCollector, dump_folder, operation_of, operations, own_files
from dtprof_collectors.nccl_inspector_reader import NcclInspectorReader

BEGAN_US = 1_748_030_377_000_000


def line(
    coll, rank, *, comm="0x7f8c496ae9f661", n=4, sn=1, size=1 << 20, us=100.0, host="n0", pid=100, at=0, factor=1.0, **perf
):
    algbw = factor * size / us / 1000
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": n, "nnodes": 2, "new": [1]},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": BEGAN_US + at, "hostname": host, "pid": pid,
        },
        "coll_perf": {
            "coll": coll, "coll_sn": sn, "coll_msg_size_bytes": size, "coll_exec_time_us": us, "coll_algobw_gbs": algbw,
            "coll_busbw_gbs": algbw * 2 * (n - 1) / n, "coll_timing_source": "kernel_gpu", **perf,
        },
        "newer": {"x": 1},
    }  # fmt: skip


def write(folder, who, lines, tail=""):
    host, pid = who
    text = "".join(json.dumps(row) + "\n" for row in lines) + tail
    (folder / f"{host}-pid{pid}.log").write_text(text)


@pytest.fixture
def job(tmp_path):
    """Rank r is process 100 + r; ranks 2 and 3 are on n1; a group of (1, 3) all-gathers under another communicator."""
    for rank in range(4):
        who = (f"n{rank // 2}", 100 + rank)
        lines = [line("AllReduce", rank, sn=sn, us=100.0 + rank, host=who[0], pid=who[1], at=1000 * sn) for sn in (1, 2)]
        if rank in (1, 3):
            lines.append(line("AllGather", rank // 2, comm="0xb", n=2, us=50.0, host=who[0], pid=who[1], at=5000, factor=2))
        write(tmp_path, who, lines)
    return tmp_path


def test_processes_are_ranks_and_communicators_are_groups(job):
    run = dtprof.open_run(job)
    assert (run.format, run.ranks, run.world_size) == ("nccl_inspector", [0, 1, 2, 3], 4)
    assert [(p.host, p.pid) for p in run.parts] == [("n0", 100), ("n0", 101), ("n1", 102), ("n1", 103)]
    assert [run.table("groups", 1).row(i)["ranks"] for i in range(2)] == [(0, 1, 2, 3), (1, 3)]


def test_operations_are_joined_with_wait_and_bandwidth(job):
    rows = dtprof.open_run(job).table("collectives")
    assert rows.text("op") == ["all_reduce", "all_reduce", "all_gather"]
    first = rows.row(0)
    assert (first["n"], first["n_present"], first["seq"], first["bytes"], first["transfer"]) == (4, 4, 1, 1 << 20, 100_000)
    assert first["busbw"] == pytest.approx((1 << 20) / 100_000 * 1.5)
    gathered = rows.row(2)
    assert (gathered["group"], gathered["bytes"]) == ("1,3", 2 << 20)
    assert gathered["busbw"] == pytest.approx(2 * (1 << 20) / 50_000 / 2)


def test_an_operation_ends_when_its_line_was_written_unless_it_was_traced(job, tmp_path):
    run = dtprof.open_run(job)
    event = run.table("events", 0).row(0)
    assert (event["ts"] + event["dur"], event["dur"]) == ((BEGAN_US + 1000) * 1000, 100_000)
    traced = line("AllReduce", 0, event_trace_ts={"coll_start_ts": BEGAN_US - 7, "coll_stop_ts": BEGAN_US, "kernel_events": []})
    assert operation_of(traced).start == (BEGAN_US - 7) * 1000
    assert operation_of(traced).traced


@pytest.mark.parametrize(
    ("coll", "factor", "sides"),
    [
        ("AllGather", 4, (4096, 1024)),
        ("AllGather", 1, (1024, 256)),
        ("ReduceScatter", 4, (4096, 1024)),
        ("ReduceScatter", 1, (1024, 256)),
        ("AllReduce", 1, (1024, 1024)),
        ("Broadcast", 1, (1024, 1024)),
    ],
)
def test_the_larger_side_is_told_by_the_lines_own_bandwidth(coll, factor, sides):
    found = operation_of(line(coll, 0, size=1024, factor=factor))
    assert (found.size, found.side) == sides


def test_sends_and_receives_under_their_own_prefix():
    row = line("x", 0)
    del row["coll_perf"]
    row["p2p_perf"] = {"p2p": "Send", "p2p_sn": 4, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 2, "p2p_busbw_gbs": 0.032}
    found = operation_of(row)
    assert (found.op, found.seq, found.size, found.dur, found.busbw) == ("send", 4, 64, 2000, 0.032)


@pytest.mark.parametrize(
    "change",
    [
        {"header": None}, {"header": {"rank": "0"}}, {"header": {"id": 1, "rank": 0, "n_ranks": 0}}, {"metadata": 7},
        {"header": {"rank": 4, "n_ranks": 4}}, {"header": {"rank": 0, "n_ranks": 2**40}},
        {"header": {"rank": -1, "n_ranks": 4}}, {"metadata": {"dump_timestamp_us": 2**60}},
        {"metadata": {"pid": 1}}, {"coll_perf": {}}, {"coll_perf": {"coll": 7}}, {"coll_perf": []},
    ],
)  # fmt: skip
def test_a_line_that_is_no_operation(change):
    assert operation_of({**line("AllReduce", 0), **change}) is None


def test_odd_numbers_are_unknown():
    perf = {"coll_msg_size_bytes": -1, "coll_exec_time_us": 1e300, "coll_algobw_gbs": "x", "coll_sn": 1.5, "event_trace_ts": 3}
    found = operation_of(line("AllReduce", 0, **perf))
    assert (found.size, found.dur, found.algbw, found.seq) == (None, None, None, None)


def test_a_torn_end_is_counted(job):
    write(job, ("n0", 100), [line("AllReduce", 0)], tail='{"header": {"id": "0x7f8c')
    run = dtprof.open_run(job)
    quality = run.table("quality", 0)
    assert ("lines that are no operation", 1) in zip(quality.text("what"), quality["count"].tolist(), strict=True)


def test_a_missing_process_leaves_the_transfer_unknown(job):
    (job / "n1-pid102.log").unlink()
    row = dtprof.open_run(job).table("collectives").row(0)
    assert (row["n"], row["n_present"], row["transfer"], row["transfer_upper"], row["busbw"]) == (4, 3, None, 100_000, None)


def test_a_time_of_the_host_is_named(tmp_path):
    write(tmp_path, ("n0", 1), [line("AllReduce", 0, coll_timing_source="collective_cpu")])
    assert "operations timed by collective_cpu" in dtprof.open_run(tmp_path).table("quality", 0).text("what")


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"a_perf": {"a": "x"}}\n', b"\xff\x00\n", b"[1]\n"])
def test_what_is_no_inspector_file(tmp_path, data):
    (tmp_path / "n0-pid1.log").write_bytes(data)
    assert not NcclInspectorReader().sniff(tmp_path)


def test_in_the_job_own_files_become_samples(tmp_path, monkeypatch):
    dumped, part = tmp_path / "dumped", tmp_path / "part00000"
    dumped.mkdir()
    part.mkdir()
    monkeypatch.setenv("NCCL_INSPECTOR_DUMP_DIR", str(dumped))
    monkeypatch.setenv("NCCL_INSPECTOR_ENABLE", "1")
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "/opt/libnccl-profiler-inspector.so")
    collector, context = NcclInspectorCollector(), Context(0, 1, part, (-1, -1), {})
    collector.start(context)
    write(dumped, ("n0", os.getpid()), [line("AllReduce", 0, us=100.0, at=3), line("AllGather", 0, us=20.0, at=2, factor=4)])
    write(dumped, ("n0", 1), [line("AllReduce", 1)])
    collector.stop()
    assert context.status.facts["bytes"] > 0
    samples = collector.tables(part)["samples"]
    assert samples.text("metric") == [
        "nccl_all_gather_time",
        "nccl_all_gather_busbw",
        "nccl_all_reduce_time",
        "nccl_all_reduce_busbw",
    ]
    assert samples.row(2) == {
        "ts": (BEGAN_US + 3) * 1000, "metric": "nccl_all_reduce_time", "value": 100_000.0, "unit": "ns", "device": -1
    }  # fmt: skip


@pytest.mark.parametrize(("enabled", "missing"), [("1", 1), ("0", 0)])
def test_a_plug_in_that_wrote_nothing_is_named_where_it_is_on(tmp_path, monkeypatch, enabled, missing):
    monkeypatch.setenv("NCCL_INSPECTOR_DUMP_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("NCCL_INSPECTOR_ENABLE", enabled)
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "inspector")
    collector, context = NcclInspectorCollector(), Context(0, 1, tmp_path, (-1, -1), {})
    collector.start(context)
    collector.stop()
    assert len(context.status.missing) == missing


def test_where_the_plug_in_writes(tmp_path):
    assert str(dump_folder({})) == "nccl-inspector-unknown-jobid"
    assert str(dump_folder({"SLURM_JOBID": "7"})) == "nccl-inspector-7"
    for name in ("a-pid12.log", "a-pid112.log", "a-pid12.txt"):
        (tmp_path / name).touch()
    assert [f.name for f in own_files(tmp_path, 12)] == ["a-pid12.log"]
    assert operations(tmp_path / "absent") == ([], 0)
