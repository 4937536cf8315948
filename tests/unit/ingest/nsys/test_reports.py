"""Real and hand-made reports against plain SQL on the same file."""

import sqlite3
from collections import Counter

import numpy as np
import pytest

from dtprof.analyse import study_of
from tests.unit.ingest.nsys.maker import START, Report, losses, opened, pid_of

H100 = "h100_2gpu_train_schema3.25.sqlite"


def sql(path, query, *values):
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        return database.execute(query, values).fetchall()


def spans(table, *kinds):
    rows = table.is_("kind", *kinds)
    return sorted(zip(table["ts"][rows].tolist(), table["dur"][rows].tolist(), strict=True))


@pytest.fixture(scope="module")
def h100(truth):
    path = truth / "traces" / "nsys" / H100
    return path, opened(path)


def test_two_ranks_by_their_devices(h100):
    _, run = h100
    assert (run.format, run.ranks, [p.pid for p in run.parts]) == ("nsys", [0, 1], [144, 145])
    assert {p.rank_from for p in run.parts} == {"order of devices"} and run.world_size == 2
    assert sum("no rank is recorded" in what for what, _ in losses(run)) == 2


def test_every_activity_has_the_counts_and_times_of_plain_sql(h100):
    path, run = h100
    ((start,),) = sql(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("globalPid", ("kernel", "comm")),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("globalPid", ("memcpy",)),
        "CUPTI_ACTIVITY_KIND_MEMSET": ("globalPid", ("memset",)),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("globalPid", ("sync",)),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("globalTid", ("runtime",)),
        "NVTX_EVENTS": ("globalTid", ("range", "cpu_op")),
    }
    for table, (owner, kinds) in tables.items():
        for part in run.parts:
            rows = sql(path, f"SELECT start, end - start FROM {table} WHERE {owner} >> 24 & 16777215 = ?", part.pid)
            expected = sorted((ts + start, dur) for ts, dur in rows)
            assert spans(run.table("events", part.ordinal), *kinds) == expected and expected, (table, part.pid)


def test_kernels_have_the_names_streams_and_launches_of_plain_sql(h100):
    path, run = h100
    query = (
        "SELECT n.value, k.streamId, k.registersPerThread, k.gridX || ',' || k.gridY || ',' || k.gridZ, r.start"
        " FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds n ON n.id = k.demangledName"
        " LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24"
        " WHERE k.globalPid >> 24 & 16777215 = ? ORDER BY k.start"
    )
    for part in run.parts:
        events, lanes, args = (run.table(n, part.ordinal) for n in ("events", "lanes", "kernel_args"))
        rows = args["event"]
        when = [None if c < 0 else int(events["ts"][c]) for c in events["launch"][rows].tolist()]
        ((start,),) = sql(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        names = events.take(rows).text("name")
        streams = lanes["stream"][events["lane"][rows]].tolist()
        found = list(zip(names, streams, args["registers"].tolist(), args.text("grid"), when, strict=True))
        expected = [(*row[:4], None if row[4] is None else row[4] + start) for row in sql(path, query, part.pid)]
        assert found == expected


def test_copies_have_their_bytes_and_directions(h100):
    path, run = h100
    words = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
    for part in run.parts:
        events = run.table("events", part.ordinal)
        copies = events.take(events.is_("kind", "memcpy"))
        found = Counter(zip(copies.text("copy_kind"), copies["bytes"].tolist(), strict=True))
        query = "SELECT copyKind, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE globalPid >> 24 & 16777215 = ?"
        assert found == Counter((words[kind], size) for kind, size in sql(path, query, part.pid))


def test_operations_of_the_two_ranks_are_matched(h100):
    _, run = h100
    collectives = run.table("collectives")
    whole = collectives.take((collectives["n_present"] == 2) & collectives.is_("op", "all_to_all"))
    assert len(whole) == 32 and set(whole["n"].tolist()) == {2}
    # they end together on one machine, within 26 us, and move their bytes in 0.25 ms at most but once
    assert int(whole["end_skew"].max()) < 30_000
    assert int(run.table("participations")["dur"].min()) > 0
    assert any(what == "no steps are marked" for what, _ in losses(run))


def test_operators_of_emit_nvtx_are_operators_with_their_numbers(h100):
    path, run = h100
    events = run.table("events", 0)
    ops = events.take(events.is_("kind", "cpu_op"))
    count = sql(path, "SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE 'aten::%' AND globalTid >> 24 & 16777215 = 144")[0][0]
    assert sum(name.startswith("aten::") for name in ops.text("name")) == count
    assert "aten::copy_" in ops.values("name") and not any("op_id" in name for name in ops.text("name"))
    ids = set(ops["op_id"].tolist())
    wanted = sql(path, "SELECT text FROM NVTX_EVENTS WHERE text LIKE 'aten::%' AND globalTid >> 24 & 16777215 = 144")
    assert {int(t.rsplit("op_id = ", 1)[1]) for (t,) in wanted} <= ids


def test_a_window_without_nvtx_and_steps(truth):
    run = opened(truth / "traces" / "nsys" / "rtx3080_small.sqlite")
    (part,) = run.parts
    assert (part.rank, part.device, part.host) == (None, "NVIDIA GeForce RTX 3080", "DESKTOP-KBEMEQS")
    account = study_of(run).result("accounting").parts[0].device
    assert account.compute_ns == (1517728492 - 1517727052) + (1535981719 - 1535979030)


def test_two_processes_that_share_correlation_ids_and_device_0(truth):
    path = truth / "cases" / "nsys_two_ranks.sqlite"
    run = opened(path)
    assert run.ranks == [0, 1] and [p.pid for p in run.parts] == [1000, 2000]
    kernels = 0
    for part in run.parts:
        events, lanes = run.table("events", part.ordinal), run.table("lanes", part.ordinal)
        device = np.flatnonzero(events.is_("kind", "kernel", "comm"))
        kernels += len(device)
        launch = events["launch"][device]
        assert (launch >= 0).all()
        assert set(lanes["process"][events["lane"][launch]].tolist()) == {part.pid}
        graph = [i for i in launch.tolist() if events.text("name")[i] == "cudaGraphLaunch"]
        assert len(graph) == 3 and len(set(graph)) == 1
        assert events["graph_node"][device].tolist()[2:] == [100, 101, 102]
        query = "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = ?"
        assert int(events["dur"][device].sum()) == sql(path, query, part.pid << 24)[0][0]
        assert run.table("steps", part.ordinal)["host_dur"].tolist() == [10_000_000]
    assert kernels == 10


def test_a_whole_graph_is_one_operation_of_its_launch(tmp_path):
    report = Report()
    for i in range(3):
        at = 1000 * i
        report.range("train_step", at, at + 990).call("cudaGraphLaunch_v10000", at, at + 50, correlation=i)
        report.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=at + 60, end=at + 560, deviceId=0, contextId=1, streamId=7,
            correlationId=i, globalPid=pid_of(1000), graphId=4,
        )  # fmt: skip
    run = opened(report.write(tmp_path / "x.sqlite"))
    events = run.table("events", 0)
    graphs = events.take(events.is_("kind", "kernel"))
    assert graphs.text("name") == ["CUDA graph 4"] * 3 and (graphs["launch"] >= 0).all()
    steps = study_of(run).result("accounting").parts[0].steps
    assert [s.accounting["compute_ns"] for s in steps if s.complete] == [500, 500]


def test_a_stream_waits_for_the_record_that_its_pair_names(tmp_path):
    report = Report().run("gemm", 0, 100, 200)
    for number, (record, wait) in enumerate(((10, 20), (30, 40))):
        report.call("cudaEventRecord_v3020", record, record + 2, correlation=record)
        report.call("cudaStreamWaitEvent_v3020", wait, wait + 2, correlation=wait)
        pair = {"globalPid": pid_of(1000), "eventId": 5, "eventSyncId": number + 1}
        report.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", correlationId=record, **pair)
        report.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=wait, end=wait + 1, deviceId=0, contextId=1, streamId=7,
            correlationId=wait, syncType=2, **pair,
        )  # fmt: skip
    for columns in (True, False):
        if not columns:  # older exports have no pairs: the last record before the wait counts
            for row in report.rows["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] + report.rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"]:
                row.pop("eventSyncId")
        run = opened(report.write(tmp_path / f"{columns}.sqlite"))
        events, deps = run.table("events", 0), run.table("deps", 0)
        assert [events["ts"][i] - START for i in deps["src"].tolist()] == [10, 30]
        assert [events["ts"][i] - START for i in deps["dst"].tolist()] == [20, 40]
        assert set(events.take(deps["dst"]).text("name")) == {"Stream Wait Event"}


def test_gpu_metrics_and_cpu_samples_become_samples(tmp_path):
    report = Report().run("gemm", 0, 100, 200)
    report.add("TARGET_INFO_GPU_METRICS", typeId=0, metricId=3, metricName="SMs Active [Throughput %]")
    for ts, value in ((50, 10), (10, 30)):
        report.add("GPU_METRICS", timestamp=ts, typeId=0, metricId=3, value=value)
    report.add("GPU_METRICS", timestamp=70, typeId=5, metricId=3, value=99)
    for i in range(7):
        report.add("COMPOSITE_EVENTS", id=i, start=i * 30_000_000, globalTid=pid_of(1000) | 1000)
    run = opened(report.write(tmp_path / "x.sqlite"))
    samples = run.table("samples", 0)
    rows = {(r["ts"] - START, r["metric"], r["value"], r["unit"], r["device"]) for r in map(samples.row, range(len(samples)))}
    assert rows == {
        (10, "SMs Active [Throughput %]", 30.0, "%", 0), (50, "SMs Active [Throughput %]", 10.0, "%", 0),
        (0, "cpu_samples", 4.0, "samples per 100 ms", -1), (100_000_000, "cpu_samples", 3.0, "samples per 100 ms", -1),
    }  # fmt: skip


def test_what_is_counted_and_not_read_is_said(tmp_path):
    report = Report().run("gemm", 0, 100, 200)
    report.add("OSRT_API", start=1, end=2, globalTid=pid_of(1000) | 1000, nameId=1)
    run = opened(report.write(tmp_path / "x.sqlite"))
    assert ("calls of the operating system (OSRT_API)", "counted, not read") in losses(run)
