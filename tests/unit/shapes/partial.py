"""Shapes of whole jobs: a restart, most ranks missing, and a run that was computed instead of measured."""

from __future__ import annotations

from tests.unit.shapes.build import US, PartBuilder, Shape, account, shape

MIB = 1 << 20


def _data_parallel(
    p: PartBuilder, ranks: tuple[int, ...] | None, compute: int, end: int, steps: int, at: int = 0, **group: int
) -> PartBuilder:
    """Steps of 500 us: compute from 20 us on, then an exposed all-reduce until ``end``; a last kernel closes the last step."""
    thread = p.thread()
    work, talk = (thread, p.stream(7)), (thread, p.stream(20, "communication"))
    dp = p.group("dp", ranks, axis="dp", **group)
    for step in range(steps):
        t = at + 500 * step
        p.launched(work, "kernel", "step", t + 20, t + 20 + compute, t + 10, step=step)
        reduce = p.launched(
            talk, "comm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", t + 20 + compute, t + end, t + 16, step=step
        )
        p.comm(reduce, "all_reduce", dp, step, MIB)
        p.step(step, t, t + 500)
    t = at + 500 * steps
    p.launched(work, "kernel", "step", t + 20, t + 40, t + 10, step=steps)
    p.step(steps, t, t + 50, complete=False)
    return p


def restarted_rank() -> Shape:
    """Rank 1 dies in step 1 of the first attempt; both ranks start again 10 ms later and count steps and sequence from 0.

    Parts 0 and 1 are ranks 0 and 1 of attempt 0, parts 2 and 3 of attempt 1. Group, sequence, operation and bytes repeat,
    yet operations of different attempts never belong together: two in attempt 0 (the second has rank 0 alone, n_present 1),
    two in attempt 1.
    """
    late = 10_000
    parts = []
    for ordinal, (rank, attempt) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        p = PartBuilder(ordinal, rank, attempt=attempt, world_size=2, pid=100 + ordinal)
        died = (rank, attempt) == (1, 0)
        steps = 1 if died else 2
        parts.append(_data_parallel(p, (0, 1), 100 + 100 * rank, 400, steps, at=late * attempt))
    truth = {
        "ranks": [0, 1],
        "present": {"attempt 0": [2, 1], "attempt 1": [2, 2]},
        "longest_operation_us": 280,
    }
    return shape(parts, truth, kind="dtprof", world_size=2)


def three_of_eight() -> Shape:
    """Ranks 0 to 2 of a group of eight: the all-reduce lasts 280, 260 and 240 us on them.

    Nobody can say who came last or how long moving took: wait and transfer are missing, 240 us is an upper bound of the
    transfer, and exposed communication is unsplit.
    """
    ranks = tuple(range(8))
    parts = [_data_parallel(PartBuilder(r, r, world_size=8, pid=100 + r), ranks, 100 + 20 * r, 400, 1) for r in range(3)]
    truth = {
        "accounting": {
            (r, 0): account(500, compute=100 + 20 * r, comm_unsplit=280 - 20 * r, idle_host=115, idle_dependency=5)
            for r in range(3)
        },
        "collectives": {
            ("all_reduce", 0): {
                "n": 8,
                "n_present": 3,
                "transfer": None,
                "transfer_upper": 240 * US,
                "last": None,
                "wait": [None] * 3,
            }
        },
    }
    return shape(parts, truth, world_size=8)


def simulated() -> Shape:
    """What a simulation returns: names, lanes, times, dependencies and communication, and nothing that only a tracer knows.

    No correlation, no process, no thread, no path: the columns are not stored. Rank 1 computes 100 us longer than rank 0;
    the all-reduce ends at 400 us on both, so transfer is 180 and rank 0 waits 100.
    """
    truth = {
        "accounting": {
            (0, 0): account(500, compute=100, comm_wait=100, comm_transfer=180, idle_host=115, idle_dependency=5),
            (1, 0): account(500, compute=200, comm_transfer=180, idle_host=115, idle_dependency=5),
        },
        "collectives": {
            ("all_reduce", 0): {"transfer": 180 * US, "last": 1, "wait": [100 * US, 0]},
        },
        "never_stored": {"events": ("correlation", "op_id", "graph_node"), "lanes": ("process", "thread", "stream", "context")},
    }
    parts = []
    for r in range(2):
        p = _data_parallel(PartBuilder(r, r, world_size=2, host=None), (0, 1), 100 + 100 * r, 400, 1)
        for name, columns in truth["never_stored"].items():
            for row in p.rows[name]:
                for column in columns:
                    row.pop(column, None)
        for i, row in enumerate(p.rows["events"]):
            if "launch" in row:
                p.add("deps", src=row["launch"], dst=i, kind="launch")
        parts.append(p)
    return shape(parts, truth, kind="simulated", world_size=2, knobs={"ddp.bucket_cap_mb": 50})
