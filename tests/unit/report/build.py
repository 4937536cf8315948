"""Hand-made facts with invented numbers: eight GPU ranks that wait for a late one, two gloo ranks, three of eight, many."""

import random

from dtprof.analyse.results import (
    ACCOUNTING,
    AccountingResult,
    CommResult,
    DeviceTotals,
    HostTotals,
    KernelResult,
    KernelRow,
    Operation,
    PartAccount,
    PhaseResult,
    PhaseTime,
    StepAccount,
)
from dtprof.findings import Evidence, Finding, Verdict
from dtprof.report.facts import Facts, quality_of
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

MS = 1_000_000
US = 1_000
T0 = 1_700_000_000_000_000_000

# per operation: op, label, bytes, end (ms), transfer (us), waits (us) of ranks 0 to 7
EIGHT = [
    ("all_to_all", "pooled embeddings, forward", 24_576, 10.75, 10, (2140, 7610, 510, 6100, 4870, 4660, 500, 0)),
    ("all_to_all", "sparse splits", 192, 13.50, 8, (1020, 1010, 510, 1010, 1090, 1050, 520, 0)),
    ("all_to_all", "sparse lengths", 1536, 13.91, 7, (170, 160, 166, 168, 164, 167, 169, 0)),
    ("all_to_all", "sparse values", 13_600, 14.06, 7, (124, 125, 123, 127, 126, 124, 122, 0)),
    ("all_reduce", "gradients, bucket 1", 1_580_000, 15.36, 86, (160, 220, 112, 205, 9, 10, 127, 0)),
    ("all_to_all", "pooled embeddings, backward", 24_576, 17.10, 10, (504, 533, 459, 531, 50, 0, 474, 346)),
    ("all_reduce", "gradients, bucket 2", 448, 17.71, 20, (580, 579, 552, 581, 51, 0, 583, 447)),
    ("all_reduce", "gradients, bucket 3", 907_776, 19.14, 69, (881, 854, 845, 812, 0, 11, 850, 735)),
]
FACTOR = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_to_all": lambda n: (n - 1) / n}


def operation(i, op, label, size, end_ms, transfer_us, waits_us, *, n=None, t0=T0, step=10, **changes):
    n = n or len(waits_us)
    waits = {r: w * US for r, w in enumerate(waits_us)}
    end, transfer = t0 + int(end_ms * MS), transfer_us * US
    last = min(waits, key=waits.get)
    spread = sorted(waits.values())
    algbw = size / transfer
    values = {
        "id": i,
        "op": op,
        "group": ",".join(map(str, range(n))),
        "seq": i,
        "n": n,
        "n_present": len(waits),
        "bytes": size,
        "bytes_known": "exact",
        "first_start_ns": end - transfer - spread[-1],
        "end_ns": end,
        "transfer_ns": transfer,
        "transfer_upper_ns": transfer,
        "wait_ns": waits,
        "dur_ns": {r: w + transfer for r, w in waits.items()},
        "last_rank": last,
        "last_by_ns": spread[1] if len(spread) > 1 else None,
        "start_skew_ns": spread[-1],
        "end_skew_ns": 2 * US,
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * FACTOR[op](n),
        "matched_by": "order",
        "one_sided": False,
        "capture_start": False,
        "step": step,
        "label": label,
        "events": {},
    }
    return Operation(**{**values, **changes})


def account(rank, parts_ms, *, step=10, ts=T0, complete=True, on_device=True, part=None, steps=1):
    parts = dict.fromkeys(ACCOUNTING, 0) | {k: int(v * MS) for k, v in parts_ms.items()}
    whole = sum(parts.values())
    comm = sum(parts[k] for k in ("comm_wait_ns", "comm_transfer_ns", "comm_unsplit_ns"))
    totals = DeviceTotals(whole, whole // 2, whole - whole // 2, parts["compute_ns"], comm, 20_000, 0, comm, 8)
    host = HostTotals(whole, parts["compute_ns"], comm, 0, comm)
    accounts = tuple(
        StepAccount(step + i, ts + i * whole, whole, complete, on_device, parts, 200_000, 1000, 0) for i in range(steps)
    )
    nothing = DeviceTotals(0, 0, 0, 0, 0, 0, 0, 0, 0)
    return PartAccount(rank if part is None else part, rank, totals if on_device else nothing, host, accounts)


def kernel_result(count=14):
    kinds = ("gemm", "elementwise", "reduction", "optimizer", "communication", "other", "normalization")
    names = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_{i}<float>, float*>" for i in range(count)
    ]
    rows = [KernelRow(n, kinds[i % 7], 100 + i, (count - i) * 90_000, 3000 + i, (count - i) / 120) for i, n in enumerate(names)]
    return KernelResult(tuple(rows), {"gemm": 4 * MS, "elementwise": 2 * MS}, {}, {1: 64, 3: 64}, 93, 100)


LATE = Finding(
    "comm.waiting",
    "high",
    "Rank 7 enters the step up to 7.5 ms after the others, and all seven wait for it",
    (7,),
    (10,),
    0.0044,
    (
        Evidence("Last in operations 0 to 4; 35.2 of 45.3 ms of exposed waiting is for it.", {7: (1, 2, 3), 0: (4,)}),
        Evidence("From entering the step to launching operation 0 it needs 3.18 ms; the others need 2.97 to 3.86 ms.", {}),
    ),
    "rank 7 enters step 10 between 0.6 and 7.5 ms after the others; it is late, not slow. Moving the data itself takes 1.4%.",
    "capture three steps: from one, a slow rank and a profiler that started late look the same",
    "nothing yet: the cause lies before the capture",
    "capture three steps and look whether rank 7 enters late again",
    share=0.30,
)
DRY = Finding(
    "host.launch_bound",
    "high",
    "The GPUs run dry: half of the step no kernel has been launched yet",
    tuple(range(8)),
    (10,),
    0.00711,
    (Evidence("5.9 to 8.7 ms per rank pass between the end of the last work and the next launch.", {0: (9,)}),),
    "nothing has been launched for half of the step",
    "look at the host",
    'CUDA graphs around forward and backward, or `torch.compile(mode="reduce-overhead")`',
    "measure again",
    share=0.49,
    bound=True,
)
SMALL = Finding(
    "comm.exposed",
    "low",
    "Not worth doing: compression, other bucket sizes, a faster network",
    tuple(range(8)),
    (10,),
    None,
    (Evidence("Moving the data of all eight operations takes 217 us.", {}),),
    "",
    "",
    "nothing",
    "not needed",
)


def device_tables(part, enters_ms, end_ms, operations, rng):
    """Events, steps and lanes of one GPU rank; returns the tables and the event row of each operation."""
    rows = []
    t = enters_ms + 1.5
    while t < end_ms:
        rows.append((T0 + int(t * MS), rng.randint(2, 40) * US, "kernel", 0))
        t += rng.choice((0.03, 0.05, 0.1, 0.6))
    rows.append((T0 + int((enters_ms + 1.0) * MS), 30 * US, "memcpy", 1))
    for i, op in enumerate(operations):
        dur = op.dur_ns[part]
        rows.append((op.end_ns - dur, dur, "comm", (2, i)))
    rows.sort(key=lambda r: r[0])
    at = {r[3][1]: row for row, r in enumerate(rows) if isinstance(r[3], tuple)}
    events = Table.of(
        "events",
        ts=[r[0] for r in rows],
        dur=[r[1] for r in rows],
        kind=[r[2] for r in rows],
        name=[r[2] for r in rows],
        lane=[r[3][0] if isinstance(r[3], tuple) else r[3] for r in rows],
        step=[10] * len(rows),
    )
    lanes = Table.of("lanes", id=[0, 1, 2], device=[0, 0, 0], stream=[7, 9, 20], role=["compute", "copy", "communication"])
    steps = Table.of(
        "steps",
        step=[10],
        host_ts=[T0 + int(enters_ms * MS)],
        host_dur=[int(14.5 * MS)],
        device_ts=[T0 + int((enters_ms + 1.5) * MS)],
        device_dur=[int((end_ms - enters_ms - 1.5) * MS)],
        complete=[False],
        kind=["train"],
    )
    return {("events", part): events, ("lanes", part): lanes, ("steps", part): steps}, at


def participation_rows(operations, events):
    rows = []
    for op in operations:
        for rank, dur in op.dur_ns.items():
            rows.append(
                {
                    "collective": op.id,
                    "part": rank,
                    "rank": rank,
                    "event": events.get(rank, {}).get(op.id),
                    "start": op.end_ns - dur,
                    "dur": dur,
                    "wait": op.wait_ns[rank],
                }
            )
    return rows


def eight_ranks(present=range(8), findings=(LATE, DRY, SMALL)):
    present = list(present)
    rng = random.Random(8)
    enters = [5.4, 0.0, 7.0, 1.3, 2.9, 3.0, 6.9, 7.5]
    operations = []
    for i, (op, label, size, end, transfer, waits) in enumerate(EIGHT):
        made = operation(i, op, label, size, end, transfer, waits)
        if len(present) < 8:
            made = operation(
                i,
                op,
                label,
                size,
                end,
                transfer,
                waits[: len(present)],
                n=8,
                transfer_ns=None,
                algbw_gb_s=None,
                busbw_gb_s=None,
                wait_ns=dict.fromkeys(present),
                last_rank=None,
                last_by_ns=None,
            )
        operations.append(made)
    tables, accounts, events = {}, [], {}
    for rank in present:
        made, events[rank] = device_tables(rank, enters[rank], 19.6, operations, rng)
        tables |= made
        waits = sum(w or 0 for o in operations for r, w in o.wait_ns.items() if r == rank) / MS
        split = {"comm_wait_ns": waits, "comm_transfer_ns": 0.2} if len(present) == 8 else {"comm_unsplit_ns": 5.2}
        idle = 19.6 - enters[rank] - 1.5 - 1.47 - waits
        accounts.append(
            account(
                rank,
                {"compute_ns": 1.05, "copy_exposed_ns": 0.02, **split, "idle_host_ns": max(idle, 2), "idle_dependency_ns": 0.4},
                ts=T0 + int((enters[rank] + 1.5) * MS),
                complete=False,
            )
        )
        tables["quality", rank] = Table.of(
            "quality",
            source=["clock"],
            what=["Times are whole microseconds"],
            count=[1000 + rank],
            effect=["a transfer of 7 us is known to about 1 us"],
        )
    tables["participations", None] = Table.from_rows("participations", participation_rows(operations, events))
    manifest = Manifest(
        world_size=8,
        parts=[
            Part(ordinal=i, rank=r, host="box", device="Tesla V100-SXM2-32GB", backend="nccl", source=f"rank{r}.json.gz")
            for i, r in enumerate(present)
        ],
    )
    run = Run(manifest, MemoryStore(tables), "/data/dlrm_8rank", "kineto")
    backward = PhaseResult(
        tuple(PhaseTime(r, r, 10, "backward", T0 + int((enters[r] + 8.5) * MS), int(4.4 * MS), 0) for r in present)
    )
    header = "step 14.5 ms (11.0 to 18.5), one step · 8 ranks · nccl · own cost not known"
    verdict = Verdict(
        header,
        "39% of the step (mean of 8 ranks) is waiting for a late rank, three quarters of it for rank 7",
        LATE.why,
        (
            "capture three steps: from one, a slow rank and a profiler that started late on rank 7 look the same",
            "larger, and certain: 49% of the step is idle because nothing has been launched",
        ),
        ("dtprof report /data/dlrm_8rank --html report.html",),
    )
    return _facts(run, accounts, operations, kernel_result(), backward, findings, verdict)


def _facts(run, accounts, operations, kernels, phases, findings, verdict, on_device=True):
    participations = run.table("participations")
    comm = CommResult(tuple(operations), Table.empty("collectives"), participations, {}, "nccl" if on_device else "gloo")
    return Facts(
        run, AccountingResult(tuple(accounts), on_device), comm, kernels, phases, tuple(findings), verdict, quality_of(run)
    )


def two_gloo():
    """Two CPU ranks, 5 steps, rank 1 computes 20 ms longer."""
    tables, accounts, operations, phases = {}, [], [], []
    for step in range(5, 10):
        t0 = T0 + (step - 5) * 80 * MS
        for bucket in range(3):
            made = operation(
                (step - 5) * 3 + bucket,
                "all_reduce",
                f"gradients, bucket {bucket}",
                4_000_000,
                50 + 9 * bucket,
                5000,
                ((20000, 0), (300, 0), (0, 200))[bucket],
                t0=t0,
                step=step,
            )
            operations.append(made)
    for rank in (0, 1):
        waits = {"comm_wait_ns": 20.3} if rank == 0 else {"comm_wait_ns": 0.2}
        accounts.append(
            account(
                rank,
                {"compute_ns": 40 + 20 * rank, "comm_transfer_ns": 15, **waits, "idle_input_ns": 1.1},
                step=5,
                steps=5,
                on_device=False,
            )
        )
        rows = []
        for s in range(5):
            base = T0 + s * 80 * MS
            rows += [(base + k * MS, 900 * US, "cpu_op", 0) for k in range(2, 29 + 20 * rank)]
            rows += [(o.end_ns - o.dur_ns[rank], o.dur_ns[rank], "comm", (1, o.id)) for o in operations if o.step == s + 5]
            phases += [PhaseTime(rank, rank, s + 5, "backward", base + 20 * MS, 40 * MS, 0)]
        rows.sort(key=lambda r: r[0])
        tables["events", rank] = Table.of(
            "events",
            ts=[r[0] for r in rows],
            dur=[r[1] for r in rows],
            kind=[r[2] for r in rows],
            name=[r[2] for r in rows],
            lane=[r[3][0] if isinstance(r[3], tuple) else r[3] for r in rows],
        )
        tables["lanes", rank] = Table.of("lanes", id=[0, 1], device=[-1, -1], thread=[1, 2], role=["training", "gloo"])
        tables["steps", rank] = Table.of(
            "steps",
            step=list(range(5, 10)),
            host_ts=[T0 + s * 80 * MS for s in range(5)],
            host_dur=[78 * MS] * 5,
            complete=[True] * 5,
            kind=["train"] * 5,
        )
    tables["participations", None] = Table.from_rows("participations", participation_rows(operations, {}))
    parts = [Part(ordinal=r, rank=r, host="box", backend="gloo", source=f"part{r:05d}") for r in (0, 1)]
    manifest = Manifest(world_size=2, own_cost={"fraction": 0.002, "low": 0.001, "high": 0.004}, parts=parts)
    run = Run(manifest, MemoryStore(tables), "runs/0007", "dtprof")
    slow = Finding(
        "straggler.compute_rank",
        "high",
        "Rank 1 computes its forward pass 20.3 ms longer than rank 0",
        (1,),
        tuple(range(5, 10)),
        0.0203,
        (Evidence("Forward: 40.1 ms on rank 1, 19.8 ms on rank 0, in 5 of 5 steps.", {1: (1, 2)}),),
        "rank 1 computes its forward pass 20.3 ms longer than rank 0, in 5 of 5 steps; same work: the machine is slow",
        "look at rank 1's host (clocks, other processes)",
        "look at rank 1's host",
        "dtprof job ddp --ranks 2",
        share=0.26,
    )
    verdict = Verdict(
        "step 76.3 ms, median of 5 · 2 ranks · gloo · own cost 0.2% (bound 0.4%)",
        "13% of the step (mean of 2 ranks) is waiting for rank 1; rank 0 waits 26%",
        slow.why,
        (slow.next,),
        ("dtprof job ddp --ranks 2",),
    )
    kernels = KernelResult((), {}, {}, {}, 0, 0)
    return _facts(run, accounts, operations, kernels, PhaseResult(tuple(phases)), (slow,), verdict, on_device=False)


def many_ranks(count=64, per_rank=30):
    """Many GPU ranks, many operations; rank 41 is late."""
    rng = random.Random(3)
    operations = []
    for i in range(per_rank):
        waits = [rng.randint(100, 900) if r != 41 else 0 for r in range(count)]
        operations.append(operation(i, "all_reduce", f"gradients, bucket {i}", 25_000_000, 5 + 2 * i, 1500, waits))
    tables, accounts = {}, []
    for rank in range(count):
        made, _ = device_tables(rank, 0.1 * (rank % 5), 70.0, operations, rng)
        tables |= made
        accounts.append(
            account(
                rank,
                {
                    "compute_ns": 30 + rng.random(),
                    "comm_wait_ns": 0.5 if rank == 41 else 14 + rng.random(),
                    "comm_transfer_ns": 20,
                },
                complete=True,
            )
        )
    tables["participations", None] = Table.from_rows("participations", participation_rows(operations, {}))
    manifest = Manifest(world_size=count, parts=[Part(ordinal=r, rank=r, source=f"rank{r}.json") for r in range(count)])
    run = Run(manifest, MemoryStore(tables), "/data/many", "kineto")
    late = Finding(
        "comm.waiting", "medium", "Rank 41 is waited for", (41,), (10,), 0.014, (), "late", "look", "a", "b", share=0.2
    )
    verdict = Verdict(
        "step 65 ms", "20% of the step (mean of 64 ranks) is waiting for rank 41", "rank 41 is late", ("look at it",)
    )
    return _facts(run, accounts, operations, kernel_result(), PhaseResult(()), (late,), verdict)


def nothing():
    """A file without steps, communication, kernels or findings."""
    zero = DeviceTotals(0, 0, 0, 0, 0, 0, 0, 0, 0)
    accounts = [PartAccount(0, None, zero, HostTotals(0, 0, 0, 0, 0), ())]
    run = Run(Manifest(parts=[Part(ordinal=0, source="t.json")]), MemoryStore({}), "t.json", "kineto")
    verdict = Verdict(
        "no step is marked · 1 process", "nothing can be said about a step", "no step is marked", ("mark the steps",)
    )
    return _facts(run, accounts, [], KernelResult((), {}, {}, {}, 0, 0), PhaseResult(()), (), verdict)


ALL = {"eight": eight_ranks, "three": lambda: eight_ranks(range(3)), "gloo": two_gloo, "many": many_ranks, "nothing": nothing}
