"""Is it literally true? Sentences on inputs that tempt to say more than is known."""

from __future__ import annotations

from tests.unit.kineto_maker import Trace, found, study, verdict


def write(folder, comm, group_of):
    """Two ranks that communicate for half of every step, in the group that ``group_of`` names for each rank."""
    for rank in range(2):
        t = Trace(rank, 2)
        for step in range(4):
            at = 10_000 * step
            t.step(step, at, at + 10_000)
            t.run("gemm", at + 10, at + 20, at + 4_000)
            members = group_of(rank)
            t.op("record_param_comms", at + 100, at + 120, **{
                "Collective name": comm, "Seq": step, "Group size": len(members), "Process Group Name": "0",
                "Process Group Ranks": str(members), "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float",
            })  # fmt: skip
            t.run("ncclDevKernel", at + 105, at + 4_000, at + 9_000, 20)
        t.write(folder / f"rank{rank}.json")
    return folder


def test_a_process_of_unknown_number_is_not_called_minus_one(tmp_path):
    t = Trace()
    for step in range(3):
        at = 10_000 * step
        t.step(step, at, at + 10_000)
        t.range("data", at, at + 4_000)
        t.run("gemm", at + 4_000, at + 4_010, at + 9_900)
    t.write(tmp_path / "x.json")
    (stall,) = found(tmp_path / "x.json")["input.stall"]
    assert stall.ranks == () and stall.title.startswith("Part 0 waits")
    told = " ".join([stall.title, stall.why, *(e.text for e in stall.evidence)])
    assert "rank" not in told.lower()


def test_one_device_runs_dry_in_the_singular(tmp_path):
    t = Trace()
    for step in range(3):
        at = 10_000 * step
        t.step(step, at, at + 10_000)
        t.run("gemm", at + 9_000, at + 9_001, at + 9_900)
    (dry,) = found(t.write(tmp_path / "x.json"))["host.launch_bound"]
    assert dry.title.startswith("The device runs dry")
    assert any("kernels on part 0" in e.text for e in dry.evidence)


def test_a_busy_device_is_not_offered_a_larger_batch_for_free(tmp_path):
    for name, busy in (("busy", 8_000), ("free", 1_000)):
        t = Trace()
        for step in range(3):
            at = 10_000 * step
            t.step(step, at, at + 10_000)
            t.run("gemm", at + 9_950 - busy, at + 9_960 - busy, at + 9_960)
        (dry,) = found(t.write(tmp_path / f"{name}.json"))["host.launch_bound"]
        assert ("larger batch" in dry.apply) == ("larger batch" in dry.next) == (name == "free")


def test_one_sided_traffic_is_not_blamed_on_a_busy_machine(tmp_path):
    (exposed,) = found(write(tmp_path, "send", lambda rank: [0, 1]))["comm.exposed"]
    assert "one-sided" in exposed.why and "quieter machine" not in exposed.next
    assert all("peers are missing" not in e.text for e in exposed.evidence)


def test_a_group_of_one_waits_for_nobody(tmp_path):
    at = study(write(tmp_path, "allreduce", lambda rank: [rank]))
    for operation in at.result("comm").operations:
        assert operation.transfer_ns == 5_000_000 and set(operation.wait_ns.values()) == {0}
        assert operation.last_rank is None and operation.busbw_gb_s is None
    for part in at.result("accounting").parts:
        assert all(s.accounting["comm_unsplit_ns"] == 0 for s in part.steps)


def test_a_step_that_is_mostly_lost_is_not_called_healthy(tmp_path):
    t = Trace()
    for step in range(3):
        at = 10_000 * step
        t.step(step, at, at + 10_000)
        t.op("aten::mm", at, at + 3_000)
    told = verdict(study(t.write(tmp_path / "x.json")))
    assert told.verdict == "no rule names a cause; the step is 70% outside any recorded operator, 30% computing"
    assert "nothing to do" not in told.next[0]
