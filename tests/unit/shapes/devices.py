"""Shapes of single processes: a device number that two share, CUDA graphs, a job without a device."""

from __future__ import annotations

from tests.unit.shapes.build import CALL, T0, US, PartBuilder, Shape, account, shape


def both_call_it_device_0() -> Shape:
    """Two processes of one host, each with one visible GPU that it calls device 0, with equal stream and correlation numbers.

    Nothing of one may be joined with the other: rank 0 computes 60 of 100 us, rank 1 90 of 100 us, and the busy time of
    "device 0" is never 150.
    """

    def rank(r: int, busy: int) -> PartBuilder:
        p = PartBuilder(r, r, world_size=2, pid=1000 * (r + 1), device="GPU 0")
        at = (p.thread(), p.stream(7))
        for step in (0, 1):
            start = 20 + 100 * step
            p.launched(at, "kernel", "gemm", start, start + busy, start - 10, step=step)
            p.step(step, 100 * step, 100 * step + 100, complete=step == 0)
        return p

    # the launch of step 1 returns 5 us before its kernel starts
    truth = {
        "accounting": {
            (0, 0): account(100, compute=60, idle_host=35, idle_dependency=5),
            (1, 0): account(100, compute=90, idle_host=5, idle_dependency=5),
        },
        "busy_us": {0: 120, 1: 180},
        "correlations": {0: {11, 12}, 1: {11, 12}},
    }
    return shape([rank(0, 60), rank(1, 90)], truth, world_size=2)


def cuda_graph(recorded: int = 3) -> Shape:
    """Three steps of one graph launch each; every launch owns three kernels, all with its correlation.

    With ``recorded`` below 3 only the first launches have kernels: the tracer lost the rest. The kernels that are there
    still belong to their launch, the others are missing data and not idle time.
    """
    p = PartBuilder(0, 0, world_size=1, pid=9)
    thread, stream = p.thread(), p.stream(7)
    for step in range(3):
        t = 100 * step
        call = p.span(thread, "runtime", "cudaGraphLaunch", t + 10, t + 10 + CALL, correlation=50 + step, step=step)
        for node in range(3 if step < recorded else 0):
            start = t + 20 + 20 * node
            kernel = p.span(
                stream, "kernel", f"node{node}", start, start + 20, correlation=50 + step, launch=call,
                graph_node=8 + node, step=step,
            )  # fmt: skip
            p.add("kernel_args", event=kernel, grid="8,1,1", block="128,1,1", registers=32, shared_memory=0, occupancy=0.5)
        p.step(step, t, t + 100, complete=step < 2)
    truth = {
        "kernels_per_launch": [3 if step < recorded else 0 for step in range(3)],
        "launches_without_kernel": 3 - recorded,
        "accounting": {
            (0, 0): account(100, compute=60, idle_host=35, idle_dependency=5),
            (0, 1): account(100, compute=60, idle_host=35, idle_dependency=5),
            (0, 2): account(60, compute=60),
        }
        if recorded == 3
        else {},
    }
    return shape([p], truth, world_size=1)


def gloo_cpu() -> Shape:
    """Two ranks on CPUs: the training thread computes, a gloo thread reduces; rank 1's forward pass is 150 us longer.

    The all-reduce starts at 200 us on rank 0 and at 350 us on rank 1 and ends at 500 us on both: transfer 150, rank 0
    waits 150. Rank 0 computes until 300 us, so its exposed communication is 50 of waiting and then 150 of transfer;
    rank 1 computes until 450 us, so 50 of transfer are exposed. The host interval, 600 us, is the step.
    """
    truth = {
        "accounting": {
            (0, 0): {"comm_wait_ns": 50 * US, "comm_transfer_ns": 150 * US, "compute_ns": 350 * US},
            (1, 0): {"comm_wait_ns": 0, "comm_transfer_ns": 50 * US, "compute_ns": 500 * US},
        },
        "step_us": 600,
        "comm_hidden_us": {(0, 0): 100, (1, 0): 100},
        "collectives": {("all_reduce", 0): {"transfer": 150 * US, "last": 1, "wait": [150 * US, 0]}},
        "device_spans": 0,
    }
    return shape([_gloo_rank(0, 100, 200), _gloo_rank(1, 250, 350)], truth, kind="dtprof", world_size=2)


def _gloo_rank(r: int, forward: int, reduce: int) -> PartBuilder:
    p = PartBuilder(r, r, world_size=2, pid=100 + r, backend="gloo")
    training, gloo = p.thread(), p.thread("gloo", 2, "pt_gloo_runloop")
    backward = forward + 200
    for name, start, end in (("forward", 0, forward), ("backward", forward, backward), ("optimizer", 500, 550)):
        outer = p.span(training, "range", name, start, end, step=0, phase=name)
        p.span(training, "cpu_op", f"aten::{name}", start, end, step=0, phase=name, parent=outer)
    span = p.span(gloo, "comm", "gloo:all_reduce", reduce, 500, step=0, phase="backward", bucket=0)
    p.comm(span, "all_reduce", p.group("0", (0, 1), backend="gloo", axis="dp"), 0, 1 << 20, known_by="collector")
    p.step(0, 0, 600)
    p.add(
        "buckets",
        step=0,
        bucket=0,
        members=("a.weight", "a.bias"),
        bytes=1 << 20,
        ready=T0 + reduce * US,
        start=T0 + reduce * US,
        end=T0 + 500 * US,
    )
    p.add("grads", step=0, parameter="a.weight", bytes=1 << 20, ready=T0 + reduce * US)
    return p
