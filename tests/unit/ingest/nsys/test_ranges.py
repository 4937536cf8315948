"""NVTX: steps, phases, tags, operators, communication."""

import json

import pytest

from dtprof.schema import MISSING
from tests.unit.ingest.nsys.maker import Report, losses, opened, payload, pid_of


def steps_of(report, tmp_path, part=0):
    run = opened(report.write(tmp_path / "x.sqlite"))
    table = run.table("steps", part)
    return table["step"].tolist(), table["host_dur"].tolist(), run


def with_kernels(report, count=3, every=1000):
    for i in range(count):
        report.run("gemm", i * every + 10, i * every + 100, i * every + 600)
    return report


def test_start_end_ranges_are_steps_and_libraries_are_not(tmp_path):
    report = with_kernels(Report()).domain("CCCL", 1)
    report.range("cub::DeviceRadixSort", 20, 30, domain=1)
    for i in range(3):
        report.range("train_step", i * 1000, i * 1000 + 990, kind=60, rangeId=i, endGlobalTid=pid_of(1000) | 7)
    numbers, durations, run = steps_of(report, tmp_path)
    assert (numbers, durations) == ([0, 1, 2], [990, 990, 990])
    assert run.table("events", 0).is_("kind", "range").sum() == 4


def test_without_them_no_steps_are_marked(tmp_path):
    report = with_kernels(Report()).domain("CCCL", 1)
    for i in range(325):
        report.range("cub::DeviceRadixSort", 3 * i, 3 * i + 2, domain=1)
    numbers, _, run = steps_of(report, tmp_path)
    assert numbers == [] and any(what == "no steps are marked" for what, _ in losses(run))


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["ProfilerStep#5", "ProfilerStep#6"], [5, 6]),
        (["iteration 10", "iteration 11"], [10, 11]),
        (["Iteration: 3", "Iteration: 4"], [3, 4]),
        (["iter_7", "iter_8"], [7, 8]),
        (["step 1", "step 2"], [1, 2]),
        (["train_step 4", "train_step 5"], [4, 5]),
        (["train_step", "train_step"], [0, 1]),
        (["train_step, op_id = 90", "train_step, op_id = 190"], [0, 1]),
        (["[pl][profile]run_training_batch", "[pl][profile]run_training_batch"], [0, 1]),
        (["run_training_batch", "run_training_batch"], [0, 1]),
        (["step 1", "step 1"], [0, 1]),
    ],
)
def test_names_that_mean_steps(tmp_path, texts, numbers):
    report = with_kernels(Report(), len(texts))
    for i, text in enumerate(texts):
        report.range(text, i * 1000, i * 1000 + 990)
    assert steps_of(report, tmp_path)[0] == numbers


@pytest.mark.parametrize("text", ["optimizer_step", "ncclAllReduce", "stepping", "validation_step", "Optimizer.step#Adam.step"])
def test_names_that_mean_none(tmp_path, text):
    report = with_kernels(Report()).range(text, 0, 990).range(text, 1000, 1990)
    assert steps_of(report, tmp_path)[0] == []


def test_the_profilers_steps_come_before_others_and_nested_ones_are_no_steps(tmp_path):
    report = with_kernels(Report())
    for i in range(3):
        report.range(f"ProfilerStep#{i + 4}", i * 1000, i * 1000 + 995).range("train_step", i * 1000 + 5, i * 1000 + 500)
        report.range("train_step", i * 1000 + 10, i * 1000 + 90)
    assert steps_of(report, tmp_path)[0] == [4, 5, 6]


def test_a_step_that_is_not_closed_is_incomplete_and_said(tmp_path):
    report = with_kernels(Report())
    for i in range(3):
        report.range("train_step", i * 1000, None if i == 2 else i * 1000 + 990)
    _, durations, run = steps_of(report, tmp_path)
    assert run.table("steps", 0)["complete"].tolist() == [True, True, False]
    assert durations == [990, 990, 600]
    assert ("ranges whose end is not in the file", "taken to last until the end of the recording") in losses(run)


def test_marks_are_instants_and_texts_may_be_registered(tmp_path):
    report = with_kernels(Report())
    report.range("saved", 400, None, kind=34)
    report.add(
        "NVTX_EVENTS",
        start=0,
        end=900,
        eventType=59,
        textId=report.string("train_step"),
        globalTid=pid_of(1000) | 1000,
        domainId=0,
    )
    numbers, durations, run = steps_of(report, tmp_path)
    assert (numbers, durations) == ([0], [900])
    events = run.table("events", 0)
    mark = events["ts"] == events["ts"].min() + 400
    assert [(r["name"], r["kind"], r["dur"]) for r in map(events.take(mark).row, range(1))] == [("saved", "other", 0)]


def test_our_ranges_carry_step_phase_and_tags(tmp_path):
    report = Report().domain("dtprof", 3)
    report.range("work", 0, None, kind=33, category=7, domain=3).rows["NVTX_EVENTS"][-1]["text"] = "forward"
    for i in range(2):
        at = i * 1000
        report.range("step", at, at + 990, domain=3, int64Value=40 + i)
        report.range("work#microbatch=2#layer=blocks.0", at + 10, at + 400, domain=3, category=7, uint64Value=2)
        report.run("gemm", at + 20, at + 100, at + 300)
    numbers, _, run = steps_of(report, tmp_path)
    assert numbers == [40, 41]
    events = run.table("events", 0)
    kernels = events.take(events.is_("kind", "kernel"))
    assert kernels["step"].tolist() == [40, 41] and kernels["microbatch"].tolist() == [2, 2]
    assert kernels.text("layer") == ["blocks.0"] * 2 and kernels.text("phase") == ["forward"] * 2


def test_frameworks_ranges_are_phases_layers_and_micro_batches(tmp_path):
    report = Report().range("iteration 0", 0, 9000)
    report.range("Forward 1", 0, 900).run("a", 10, 100, 200)
    report.range("PP:1B3", 1000, 1900).run("b", 1010, 1100, 1200)
    report.range("megatron.core.transformer.transformer_layer.TransformerLayer._forward_mlp.mlp", 2000, 2900)
    report.run("c", 2010, 2100, 2200)
    report.range("FSDP::pre_forward (blocks.3._checkpoint_wrapped_module), op_id = 9", 3000, 3900).run("d", 3010, 3100, 3200)
    run = opened(report.write(tmp_path / "x.sqlite"))
    events = run.table("events", 0)
    kernels = {r["name"]: r for r in map(events.row, range(len(events))) if r["kind"] == "kernel"}
    assert (kernels["a"]["phase"], kernels["a"]["microbatch"]) == ("forward", 1)
    assert (kernels["b"]["phase"], kernels["b"]["microbatch"], kernels["b"]["stage"]) == ("backward", 3, 1)
    assert kernels["c"]["layer"] == "mlp"
    assert kernels["d"]["layer"] == "blocks.3._checkpoint_wrapped_module"


COMMUNICATOR = 0xAB54A98CEB1F0AD2


def nccl(report, pid, rank, layouts=(16777218, 16777223, 16777226)):
    """Two collectives and a pair of sends between two processes, as NCCL reports them."""
    init, reduce, peer = layouts
    report.domain("NCCL", 1, pid)
    report.layout(init, ("NCCL communicator ID", 18, 0), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16))
    size = ("Message size [bytes]", 22, 8)
    report.layout(reduce, ("NCCL communicator ID", 18, 0), size, ("Reduction operation", 2**24 + 16, 16))
    report.layout(peer, ("NCCL communicator ID", 18, 0), size, ("Peer rank", 5, 16))

    def function(name, start, end, data=None):
        text = report.string(name)
        report.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            textId=text,
            globalTid=pid_of(pid) | pid,
            domainId=1,
            binaryData=data,
        )

    function("ncclCommInitRank", 0, 5, payload(init, "QIIII", COMMUNICATOR, 2, rank, 0, 0))
    function("ncclAllReduce", 100, 150, payload(reduce, "QQI", COMMUNICATOR, 4096, 0))
    report.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 110, 200 + rank * 10, 300, pid)
    function("ncclReduceScatter", 400, 450, payload(reduce, "QQI", COMMUNICATOR, 1024, 0))
    report.run("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)", 410, 500, 600, pid)
    function("ncclGroupStart", 700, 702)
    for n in range(2):
        function("ncclSend", 705 + 10 * n, 708 + 10 * n, payload(peer, "QQI", COMMUNICATOR, 512, n))
        function("ncclRecv", 725 + 10 * n, 728 + 10 * n, payload(peer, "QQI", COMMUNICATOR, 512, n))
    function("ncclGroupEnd", 750, 790)
    report.run("ncclDevKernel_SendRecv(ncclDevComm*)", 760, 800, 900, pid)
    return report


def test_nccls_payloads_name_operations_bytes_groups_and_ranks(tmp_path):
    report = Report()
    # process ids and devices in the opposite order of the ranks
    nccl(report, 2000, 0)
    nccl(report, 1000, 1, layouts=(5, 6, 7))
    run = opened(report.write(tmp_path / "x.sqlite"))
    assert [(p.rank, p.pid, p.rank_from, p.world_size) for p in run.parts] == [(0, 2000, "NCCL", 2), (1, 1000, "NCCL", 2)]
    for part in run.parts:
        comm = run.table("comm", part.ordinal)
        rows = [comm.row(i) for i in range(len(comm))]
        assert [r["op"] for r in rows] == ["all_reduce", "reduce_scatter", "send", "send", "recv", "recv"]
        assert [(r["bytes_in"], r["bytes_out"]) for r in rows[:3]] == [(4096, 4096), (2048, 1024), (512, None)]
        assert [r["peer"] for r in rows[2:]] == [0, 1, 0, 1] and len({r["event"] for r in rows[2:]}) == 1
        groups = run.table("groups", part.ordinal)
        assert [tuple(r) for r in groups["ranks"].tolist()] == [(0, 1)] and groups["size"].tolist() == [2]
    collectives = run.table("collectives")
    first = collectives.row(0)
    assert (first["op"], first["group"], first["bytes"], first["n_present"], first["transfer"]) == (
        "all_reduce",
        "0,1",
        4096,
        2,
        90,
    )


def test_an_all_to_all_of_sends_is_one_operation_where_torch_says_so(tmp_path):
    report = Report()
    for rank, pid in enumerate((1000, 2000)):
        nccl(report, pid, rank).range("nccl:all_to_all, op_id = 3", 695, 795, pid)
    run = opened(report.write(tmp_path / "x.sqlite"))
    comm = run.table("comm", 0)
    row = comm.row(len(comm) - 1)
    assert (row["op"], row["bytes_in"], row["bytes_out"], row["bytes_wire"]) == ("all_to_all", 1024, 1024, 512)
    assert len(comm) == 3
    whole = run.table("collectives").row(2)
    assert (whole["op"], whole["n_present"], whole["group"], whole["bytes"]) == ("all_to_all", 2, "0,1", 1024)


def test_payloads_as_json_and_hexadecimal_text(tmp_path):
    told = {"NCCL communicator ID": 77, "Message size [bytes]": 64, "Sequence": 12}
    report = Report().domain("NCCL", 1).range("ncclAllGather", 100, 150, domain=1, jsonText=json.dumps(told))
    report.run("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 110, 200, 300)
    report.layout(9, ("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8))
    report.range("ncclAllReduce", 400, 450, domain=1, binaryData=payload(9, "QQ", 78, 256).hex())
    report.run("ncclDevKernel_AllReduce_RING_LL(ncclDevComm*)", 410, 500, 600)
    comm = opened(report.write(tmp_path / "x.sqlite")).table("comm", 0)
    first, second = comm.row(0), comm.row(1)
    assert (first["op"], first["bytes_in"], first["bytes_out"], first["seq"]) == ("all_gather", 64, None, 12)
    assert (second["op"], second["bytes_in"]) == ("all_reduce", 256)


def test_a_payload_without_its_layout_or_cut_short_is_left_out(tmp_path):
    report = Report().layout(9, ("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8))
    for i, data in enumerate((payload(10, "QQ", 1, 2), payload(9, "QQ", 1, 2)[:36], b"\1\2", b"")):
        report.range("ncclAllReduce", i * 100, i * 100 + 50, domain=1, binaryData=data)
        report.run("ncclDevKernel_AllReduce_RING_LL(ncclDevComm*)", i * 100 + 10, i * 100 + 60, i * 100 + 90)
    comm = opened(report.write(tmp_path / "x.sqlite")).table("comm", 0)
    assert comm.text("op") == ["all_reduce"] * 4 and (comm["bytes_in"] == MISSING).all()
