"""Which operation, group and bytes stand behind a communication kernel: shapes that people met in public."""

from __future__ import annotations

import pytest

import dtprof
from tests.unit.kineto_maker import Trace, study

ARGS = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}


def comm_rows(path):
    run = dtprof.open_run(path)
    table = run.table("comm", 0)
    return [table.row(i) for i in range(len(table))], run


def test_coalesced_kernels_take_op_and_bytes_from_the_records_inside(tmp_path):
    t = Trace(0, 2)
    for i in range(3):
        t.range("nccl:coalesced", 1000 * i, 1000 * i + 100)
        for k, elements in enumerate((1024, 2048, 4096)):
            t.op("record_param_comms", 1000 * i + 10 * k + 1, 1000 * i + 10 * k + 9,
                 **{"Collective name": "_allgather_base", "In msg nelems": elements, "Out msg nelems": 2 * elements,
                    **ARGS})  # fmt: skip
        t.run("ncclDevKernel_AllGather_RING_LL(...)", 1000 * i + 50, 1000 * i + 60, 1000 * i + 90, stream=20)
        t.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 1000 * i + 200, 1000 * i + 210, 1000 * i + 290, stream=20,
              **{"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, **ARGS})  # fmt: skip
    rows, _ = comm_rows(t.write(tmp_path / "rank0.json"))
    gathers = [r for r in rows if r["op"] == "all_gather"]
    assert [r["bytes_in"] for r in gathers] == [4096, 8192, 16384] * 3
    assert len({r["event"] for r in rows}) == 6
    assert len({r["batch"] for r in gathers}) == 3
    assert sum(r["op"] == "all_reduce" for r in rows) == 3
    assert study(tmp_path / "rank0.json").result("accounting").parts[0].device.comm_kernels == 6
    assert study(tmp_path / "rank0.json").result("comm").ungrouped_share == {0: 0.0}


def test_bare_collective_kernels_are_named_by_their_name_and_have_no_bytes(tmp_path):
    t = Trace(0, 2)
    t.run("ncclDevKernel_AllGather_RING_LL(...)", 0, 10, 50, stream=20)
    t.run("ncclDevKernel_AllReduce_Sum_f32(...)", 60, 70, 120, stream=20,
          **{"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, **ARGS})  # fmt: skip
    rows, _ = comm_rows(t.write(tmp_path / "rank0.json"))
    assert (rows[0]["op"], rows[0]["bytes_in"], rows[0]["bytes_known"]) == ("all_gather", None, "unknown")
    shares = study(tmp_path / "rank0.json").result("comm").ungrouped_share
    assert shares[0] == pytest.approx(40 / 90)


@pytest.mark.parametrize("around", [(50, 200), (135, 150)], ids=["records inside", "records closed before"])
def test_batched_point_to_point_is_one_batch_of_two(tmp_path, around):
    t = Trace(0, 4)
    t.range("nccl:coalesced", *around)
    world = {**ARGS, "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4}
    t.op("record_param_comms", 100, 110, **{"Collective name": "send", "Dst Rank": 1, "In msg nelems": 8, **world})
    t.op("record_param_comms", 112, 120, **{"Collective name": "recv", "Src Rank": 3, "Out msg nelems": 8, **world})
    t.run("ncclDevKernel_SendRecv(...)", 140, 150, 900, stream=20)
    rows, run = comm_rows(t.write(tmp_path / "rank0.json"))
    assert [(r["op"], r["peer"]) for r in rows] == [("send", 1), ("recv", 3)]
    assert len({r["batch"] for r in rows}) == 1 and rows[0]["batch"] is not None
    result = study(tmp_path / "rank0.json").result("accounting").parts[0]
    assert result.device.comm_ns == 750_000
    assert len(run.table("collectives")) == 1


@pytest.mark.parametrize("ids", [(17, 18), (18, 17)])
def test_the_launch_decides_not_the_external_id(tmp_path, ids):
    outer, inner = ids
    t = Trace(0, 2)
    t.op(
        "record_param_comms",
        0,
        100,
        **{"External id": outer, "Collective name": "_allgather_base", "In msg nelems": 4, "Out msg nelems": 8, **ARGS},
    )
    t.range("nccl:_all_gather_base", 10, 90, **{"External id": inner})
    t.run("ncclDevKernel_AllGather_RING_LL(...)", 50, 60, 95, stream=20, **{"External id": 17})
    rows, run = comm_rows(t.write(tmp_path / "rank0.json"))
    assert len(rows) == 1
    events = run.table("events", 0)
    assert events.text("name")[rows[0]["record"]] == "record_param_comms"
    assert (rows[0]["op"], rows[0]["bytes_in"]) == ("all_gather", 16)


def test_generic_kernel_names_say_nothing(tmp_path):
    t = Trace(0, 2)
    for i, name in enumerate(("allreduce", "_allgather_base", None)):
        args = {"Collective name": name, "In msg nelems": 4, "Out msg nelems": 4, **ARGS} if name else {}
        t.run(
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", 100 * i, 100 * i + 10, 100 * i + 50, stream=20, **args
        )
    rows, _ = comm_rows(t.write(tmp_path / "rank0.json"))
    assert [r["op"] for r in rows] == ["all_reduce", "all_gather", "unknown"]
    assert study(tmp_path / "rank0.json").result("accounting").parts[0].device.comm_kernels == 3


@pytest.mark.parametrize(
    ("split", "group", "wire", "known"),
    [
        ("[11, 12, 13, 14]", 4, 39 * 4, "exact"),
        ("[" + "1, " * 30 + "...]", 64, None, "upper_bound"),
        ("[]", 4, None, "upper_bound"),
    ],
)
def test_the_own_chunk_of_an_all_to_all_is_not_on_the_wire(tmp_path, split, group, wire, known):
    t = Trace(0, group)
    args = {"Collective name": "all_to_allv", "In msg nelems": 50, "Out msg nelems": 50, "dtype": "Float", "Group size": group,
            "Process Group Name": "0", "Global rank start": 0, "Global rank stride": 1, "Rank": 0,
            "In split size": split}  # fmt: skip
    t.run("ncclDevKernel_SendRecv(...)", 0, 10, 20, stream=20, **args)
    rows, _ = comm_rows(t.write(tmp_path / "rank0.json"))
    assert (rows[0]["op"], rows[0]["bytes_wire"], rows[0]["bytes_known"]) == ("all_to_all", wire, known)
    operation = study(tmp_path / "rank0.json").result("comm").operations[0]
    assert operation.n == group and operation.busbw_gb_s is None


@pytest.mark.parametrize("tid", [7, 1_000_007])
def test_sync_rows_are_no_kernels_and_no_stream(tmp_path, tid):
    t = Trace(0, 2)
    t.run("gemm", 0, 0, 100, stream=7)
    t.run("ncclDevKernel_AllReduce(...)", 40, 50, 250, stream=20)
    t.span("cuda_sync", "Stream Sync", 100, 250, pid=0, tid=tid, stream=7, device=0)
    path = t.write(tmp_path / "rank0.json")
    device = study(path).result("accounting").parts[0].device
    assert (device.comm_overlapped_by_compute_ns, device.exposed_comm_ns, device.comm_ns) == (50_000, 150_000, 200_000)
    assert 1_000_007 not in dtprof.open_run(path).table("lanes", 0)["stream"].tolist()


def test_custom_collectives_are_recognised_by_the_record_around_their_launch(tmp_path):
    t = Trace(0, 2)
    t.op("symm_mem::one_shot_all_reduce", 0, 30)
    t.run("void vendor_special_kernel(...)", 10, 20, 60)
    t.op("symm_mem::one_shot_all_reduce", 100, 130)
    t.op("aten::copy_", 105, 125)
    t.run("void at::native::elementwise_kernel(...)", 110, 120, 160)
    rows, run = comm_rows(t.write(tmp_path / "rank0.json"))
    assert [(r["op"], r["known_by"]) for r in rows] == [("all_reduce", "record")]
    assert run.table("events", 0).text("kind").count("kernel") == 1


@pytest.mark.parametrize(
    "name",
    ["ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "ncclDevKernel_Generic", "void rcclGenericKernel<1>",
     "msccl_kernel",
     "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>",
     "void vllm::cross_device_reduce_1stage<float>",
     "deep_ep::internode::dispatch<true, 8>", "void nvshmem_alltoall", "void two_shot_all_reduce_kernel_inplace",
     "hcclAllReduce"],
)  # fmt: skip
def test_communication_kernels_old_and_new(tmp_path, name):
    t = Trace(0, 2)
    t.run(name, 0, 10, 20)
    assert study(t.write(tmp_path / "rank0.json")).result("accounting").parts[0].device.comm_kernels == 1


def test_groups_of_a_cut_off_list_are_rebuilt_or_left_unknown(tmp_path):
    t = Trace(0, 16)
    cut = {"Collective name": "allreduce", "In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float", "Group size": 8,
           "Process Group Name": "5", "Process Group Ranks": "[0, 2, 4, ...]"}  # fmt: skip
    t.run("ncclDevKernel_AllReduce", 0, 10, 20, stream=20, **cut, **{"Global rank start": 0, "Global rank stride": 2})
    t.run("ncclDevKernel_AllReduce", 30, 40, 50, stream=20, **{**cut, "Process Group Name": "6"})
    groups = dtprof.open_run(t.write(tmp_path / "rank0.json")).table("groups", 0)
    assert groups["ranks"].tolist() == [tuple(range(0, 16, 2)), None]
    assert groups["size"].tolist() == [8, 8]


def test_a_send_of_gloo_has_its_peer_from_the_call_that_it_begins_in(tmp_path):
    t = Trace(0, 2)
    for at, call, span, peer in ((0, "c10d::send", "gloo:send", 1), (1000, "c10d::recv_", "gloo:recv", 3)):
        t.op(call, at, at + 50, **{"Concrete Inputs": ["", "", str(peer), "0"]})
        t.range(span, at + 40, at + 500)
    t.range("gloo:send", 2000, 2100)
    rows, _ = comm_rows(t.write(tmp_path / "rank0.json"))
    assert [(r["op"], r["peer"]) for r in rows] == [("send", 1), ("recv", 3), ("send", None)]
