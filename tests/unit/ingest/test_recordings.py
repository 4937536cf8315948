"""Files of different jobs in one folder are kept, named, and never compared."""

from __future__ import annotations

import dtprof
from tests.unit.kineto_maker import Trace, quality, study, verdict

MINUTE = 60 * 10**9
BASE = 1_700_000_000_000_000_000


def write(folder, rank, world, base=BASE, slow=0):
    t = Trace(rank, world, base_ns=base)
    for step in range(4):
        at = 10_000 * step
        t.step(step, at, at + 10_000)
        t.run("gemm", at + 10, at + 20, at + 3_000 + slow)
        t.run("ncclDevKernel_AllReduce_Sum_f32", at + 30, at + 3_000 + slow, at + 9_000, 20)
    t.write(folder / f"rank{rank}.json")


def test_one_recording_is_left_alone(tmp_path):
    write(tmp_path, 0, 2)
    write(tmp_path, 1, 2, BASE + 5 * 10**9, slow=4_000)
    at = study(tmp_path)
    assert {p.attempt for p in at.run.parts} == {0}
    assert [s.rank for s in at.result("stragglers").found] == [1]


def test_days_apart_is_not_one_recording(tmp_path):
    write(tmp_path, 0, 2)
    write(tmp_path, 1, 2, BASE + 3 * 24 * 60 * MINUTE, slow=4_000)
    at = study(tmp_path)
    assert [p.attempt for p in at.run.parts] == [0, 1]
    assert any("after rank0.json" in what for what, _ in quality(at.run))
    assert {o.n_present for o in at.result("comm").operations} == {1}
    assert not at.result("stragglers").found and "different runs" in at.result("stragglers").abstained
    assert "2 attempts or recordings, not compared" in verdict(at).header


def test_other_world_sizes_are_other_jobs(tmp_path):
    write(tmp_path, 0, 2)
    write(tmp_path, 1, 8)
    run = dtprof.open_run(tmp_path)
    assert len({p.attempt for p in run.parts}) == 2
    told = [what for what, _ in quality(run) if "states a world" in what]
    assert told == ["states a world of 2 ranks, other files one of 8: not one job",
                    "states a world of 8 ranks, other files one of 2: not one job"]  # fmt: skip


def test_files_without_a_clock_base_are_not_judged_by_their_times(tmp_path):
    for rank in (0, 1):
        write(tmp_path, rank, 2, base=rank * 60 * MINUTE)
    assert {p.attempt for p in dtprof.open_run(tmp_path).parts} == {0}


def test_a_group_that_is_no_world_makes_no_other_job(tmp_path):
    for rank, members in ((0, [0, 1]), (1, [0, 1, 2, 3])):
        t = Trace()
        t.run("ncclDevKernel_AllReduce", 1, 10, 20, 20, **{"Collective name": "allreduce", "Rank": rank,
              "Group size": len(members), "Process Group Ranks": str(members), "Process Group Name": "0"})  # fmt: skip
        t.write(tmp_path / f"{'ab'[rank]}.json")
    run = dtprof.open_run(tmp_path)
    assert run.ranks == [0, 1]
    assert {p.attempt for p in run.parts} == {0}
    assert not any("states a world" in what for what, _ in quality(run))
