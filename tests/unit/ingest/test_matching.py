"""Operations without sequence numbers are joined by order, and left alone where the order cannot tell which one is missing."""

from __future__ import annotations

from tests.unit.kineto_maker import Trace, study


def write(folder, rank, starts_of):
    """One step per list of starts, one all-reduce per start, each ending 1 ms after the next full 2 ms."""
    t = Trace(rank, 2)
    for step, starts in enumerate(starts_of):
        at = 20_000 * step
        t.step(step, at, at + 20_000)
        t.run("gemm", at, at + 1, at + 10)
        for start in starts:
            t.op("record_param_comms", at + start - 9, at + start - 1, **{"Collective name": "allreduce", "Group size": 2,
                 "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "In msg nelems": 9, "dtype": "Float"})  # fmt: skip
            t.run("ncclDevKernel", at + start - 5, at + start, at + start // 2_000 * 2_000 + 3_000, 20)
    t.write(folder / f"rank{rank}.json")


def test_a_capture_that_began_late_shifts_no_partner(tmp_path):
    write(tmp_path, 0, [[2_000, 6_000, 10_000], [2_000, 6_000]])
    write(tmp_path, 1, [[6_500, 10_500], [2_500, 6_500]])
    operations = study(tmp_path).result("comm").operations
    joined = [o for o in operations if o.n_present == 2]
    assert [o.step for o in joined] == [1, 1]
    assert [o.wait_ns for o in joined] == [{0: 500_000, 1: 0}] * 2
    alone = [o for o in operations if o.n_present == 1]
    assert len(alone) == 5 and all(o.transfer_ns is None and o.matched_by == "single" for o in alone)
