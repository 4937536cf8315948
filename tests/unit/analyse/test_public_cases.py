"""Situations that people met in public, as small traces with known truth."""

from __future__ import annotations

import pytest

import dtprof
from tests.unit.kineto_maker import Trace, found, study, verdict

WORLD2 = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}


def collective(t, op, start, end, seq, ranks, elements=1000, stream=20):
    members = list(range(ranks))
    t.run("ncclDevKernel_X", start - 5, start, end, stream=stream,
          **{"Collective name": op, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float", "Seq": seq,
             "Process Group Name": "0", "Process Group Ranks": str(members), "Group size": ranks})  # fmt: skip


def test_clock_of_another_host_comes_from_collective_ends(tmp_path):
    starts = [(0, 10_000, 4_000, 9_000), *[(20_000 + 1000 * i,) * 4 for i in range(4)]]
    for rank in range(4):
        t = Trace(rank, 4, host_name=f"node{rank}")
        shift = 400 if rank == 3 else 0
        for seq, begins in enumerate(starts):
            end = max(begins) + 30
            collective(t, "_allgather_base", begins[rank] + shift, end + shift, seq, 4)
        t.write(tmp_path / f"rank{rank}.json")
    s = study(tmp_path)
    operations = s.result("comm").operations
    assert [p.clock_offset_ns for p in s.run.parts] == [0, 0, 0, -400_000]
    assert all(p.clock_residual_ns == 0 for p in s.run.parts)
    first, *rest = operations
    assert first.transfer_ns == 30_000 and max(first.wait_ns.values()) == 10_000_000 and first.last_rank == 1
    assert first.capture_start and not any(o.capture_start for o in rest)
    assert all(o.start_skew_ns == 0 and o.transfer_ns == 30_000 for o in rest)


def test_small_offsets_are_not_applied(tmp_path):
    for rank in range(2):
        t = Trace(rank, 2, host_name=f"node{rank}")
        for seq in range(5):
            collective(t, "allreduce", 1000 * seq + 60 * rank, 1000 * seq + 100 + 60 * rank, seq, 2)
        t.write(tmp_path / f"rank{rank}.json")
    run = dtprof.open_run(tmp_path)
    assert len(run.table("collectives")) == 5
    assert [p.clock_offset_ns for p in run.parts] == [0, 0]
    assert run.parts[1].clock_residual_ns == 60_000


def test_an_early_small_send_is_neither_a_clock_nor_a_wait(tmp_path):
    for rank in range(2):
        t = Trace(rank, 2, host_name=f"node{rank}")
        collective(t, "allreduce", 100, 200 + 2 * rank, 0, 2)
        op, begin, end, key = ("send", 1000, 1020, "Dst Rank") if rank == 0 else ("recv", 5000, 5015, "Src Rank")
        t.run("ncclDevKernel_SendRecv", begin - 5, begin, end, stream=20,
              **{"Collective name": op, key: 1 - rank, "In msg nelems": 1024, "Out msg nelems": 1024, "Seq": 1,
                 **WORLD2})  # fmt: skip
        collective(t, "allreduce", 6000, 6100 + rank, 2, 2)
        t.write(tmp_path / f"rank{rank}.json")
    s = study(tmp_path)
    assert [p.clock_offset_ns for p in s.run.parts] == [0, 0]
    one_sided = [o for o in s.result("comm").operations if o.one_sided]
    assert {o.op for o in one_sided} == {"send", "recv"}
    for operation in one_sided:
        assert operation.transfer_ns is None and set(operation.wait_ns.values()) == {None} and operation.busbw_gb_s is None
    assert all(w >= 0 for o in s.result("comm").operations for w in o.wait_ns.values() if w is not None)


def test_a_late_root_of_a_broadcast_is_no_wait(tmp_path):
    for rank in range(2):
        t = Trace(rank, 2)
        collective(t, "broadcast", 1000 if rank == 0 else 0, 1100, 0, 2)
        t.write(tmp_path / f"rank{rank}.json")
    (operation,) = study(tmp_path).result("comm").operations
    assert operation.one_sided and operation.transfer_ns is None and operation.last_rank is None


def graph_trace(kernels_of_launch):
    t = Trace(0, 1)
    for i in range(120):
        t.step(i, 60_000 * i, 60_000 * i + 60_000)
        correlation = t.launch(60_000 * i + 10, 60_000 * i + 20, "cudaGraphLaunch")
        for k in range(kernels_of_launch(i)):
            t.kernel("gemm", 60_000 * i + 100 + 1000 * k, 60_000 * i + 1000 + 1000 * k, correlation=correlation)
    return t


def test_graph_launches_without_kernels_are_missing_data_not_idle(tmp_path):
    path = graph_trace(lambda i: 55 if i == 0 else 0).write(tmp_path / "rank0.json")
    s = study(path)
    (part,) = s.result("accounting").parts
    assert part.unreliable.startswith("119 graph launches")
    assert s.result("kernels").launches_without_kernel == {0: 119}
    assert sum(s_.accounting["idle_host_ns"] for s_ in part.steps) == 0
    assert "host.launch_bound" not in found(path)
    assert "cannot be trusted" in verdict(s).verdict


def test_graph_kernels_belong_to_their_one_launch(tmp_path):
    path = graph_trace(lambda i: 55).write(tmp_path / "rank0.json")
    s = study(path)
    (part,) = s.result("accounting").parts
    assert part.unreliable == "" and len(part.steps) == 120
    events = s.run.table("events", 0)
    kernels = events.is_("kind", "kernel")
    assert kernels.sum() == 120 * 55 and len(set(events["launch"][kernels].tolist())) == 120
    first = part.steps[0]
    assert first.dur_ns == 60_000_000 and first.accounting["compute_ns"] == 55 * 900_000
    assert first.accounting["idle_host_ns"] + first.accounting["idle_dependency_ns"] == first.dur_ns - 55 * 900_000


def test_device_work_that_drains_inside_the_data_wait_is_no_input_stall(tmp_path):
    t = Trace(0, 1)
    for i in range(5):
        base = 100_000 * i
        t.step(i, base, base + 100_000)
        t.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", base, base + 10_000)
        t.range("forward", base + 10_000, base + 20_000)
        t.run("gemm", base + 10_000, base + 10_010, base + 100_000)
        t.range("enumerate(DataLoader)#_copy", base + 20_000, base + 100_000)
    s = study(t.write(tmp_path / "rank0.json"))
    step = s.result("accounting").parts[0].steps[1]
    assert step.accounting["compute_ns"] / step.dur_ns == pytest.approx(0.9, abs=0.001)
    assert step.accounting["idle_input_ns"] / step.dur_ns == pytest.approx(0.1, abs=0.001)
    assert found(tmp_path / "rank0.json")["input.stall"][0].share == pytest.approx(0.1, abs=0.001)


def test_input_that_a_prefetch_hides_is_no_stall(tmp_path):
    t = Trace(0, 1)
    for i in range(5):
        base = 100_000 * i
        t.step(i, base, base + 100_000)
        t.run("gemm", base, base + 10, base + 99_000)
        t.range("enumerate(DataLoader)#_next", base + 1_000, base + 60_000)
    assert "input.stall" not in found(t.write(tmp_path / "rank0.json"))


def gathers(sync):
    """Four layers of 4 ms computing, each with a 2 ms all-gather that must precede it."""
    t = Trace(0, 2)
    for k in range(3):
        base = 40_000 * k
        t.step(k, base, base + 40_000)
        at = base + 100
        for layer in range(4):
            if sync:
                t.span("cuda_runtime", "cudaStreamSynchronize", at - 90, at - 20, correlation=10_000 + layer)
            gather = (at, at + 2000) if sync or layer == 0 else (at - 3000, at - 1000)
            t.run("ncclDevKernel_AllGather", gather[0] - 10, *gather, stream=20,
                  **{"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 20, **WORLD2})  # fmt: skip
            begin = at + 2000 if sync or layer == 0 else at
            t.run("gemm", gather[0] - 5, begin, begin + 4000)
            at = begin + 4000
    return t


def test_gathers_behind_a_host_sync_are_exposed_and_prefetched_ones_are_not(tmp_path):
    exposed = study(gathers(sync=True).write(tmp_path / "sync.json")).result("accounting").parts[0].steps[1]
    hidden = study(gathers(sync=False).write(tmp_path / "prefetch.json")).result("accounting").parts[0].steps[1]
    assert exposed.accounting["comm_unsplit_ns"] == 8_000_000
    assert hidden.accounting["comm_unsplit_ns"] == 2_000_000 and hidden.comm_hidden_ns == 6_000_000


def test_launch_and_dependency_split_a_gap(tmp_path):
    t = Trace(0, 1)
    for k in range(3):
        base = 1000 * k
        t.step(k, base, base + 1000)
        t.run("gemm", base, base + 10, base + 100)
        t.run("gemm", base + 399, base + 700, base + 800, stream=7)
    step = study(t.write(tmp_path / "rank0.json")).result("accounting").parts[0].steps[0]
    assert step.dur_ns == 1_000_000
    assert step.accounting["idle_host_ns"] == 300_000 + 201_000
    assert step.accounting["idle_dependency_ns"] == 300_000 + 9_000 - 10_000 + 10_000


def test_collectives_of_equal_order_but_other_groups_do_not_mix(tmp_path):
    """Names of groups differ per rank; members decide. Shard {0,1},{2,3}, replicate {0,2},{1,3}."""
    for rank in range(4):
        t = Trace(rank, 4)
        shard, replicate = ([0, 1] if rank < 2 else [2, 3]), ([0, 2] if rank % 2 == 0 else [1, 3])
        for seq, (op, members, begin, length) in enumerate(
            (("reduce_scatter", shard, 100, 20), ("allreduce", replicate, 120, 23))
        ):
            t.run("ncclDevKernel_X", begin - 5, begin, begin + length, stream=20,
                  **{"Collective name": op, "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", "Seq": seq,
                     "Group size": 2,
                     "Process Group Name": f"{rank}-{op}", "Process Group Ranks": str(members)})  # fmt: skip
        t.write(tmp_path / f"rank{rank}.json")
    operations = study(tmp_path).result("comm").operations
    assert sorted((o.op, o.group, o.n, o.n_present) for o in operations) == [
        ("all_reduce", "0,2", 2, 2), ("all_reduce", "1,3", 2, 2),
        ("reduce_scatter", "0,1", 2, 2), ("reduce_scatter", "2,3", 2, 2),
    ]  # fmt: skip
