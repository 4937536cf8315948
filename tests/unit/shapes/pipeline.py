"""Two pipeline stages that exchange activations and gradients, with batched sends and receives."""

from __future__ import annotations

from tests.unit.shapes.build import PartBuilder, Shape, account, shape

ACT = 4096  # bytes of one activation or gradient


def pipeline_batches() -> Shape:
    """Rank 0 is stage 0, rank 1 stage 1; two micro-batches; stage 1 runs 1F1B.

    Both ranks have one kernel that is a *batch* of two operations: rank 0 sends activation 1 and receives gradient 0
    (220 to 540 us), rank 1 sends gradient 0 and receives activation 1 (440 to 540 us). Its time counts once. The shortest
    participation in a message of 4096 bytes is 20 us on either link, so that the last 20 us of each move data and what is
    before them waits for the other stage.

    Device step 0 of rank 0 runs from its first compute kernel, 20 us, to the first of step 1, 1120 us; of rank 1 from
    140 us to 1140 us, because its first kernel of all is a receive on the communication stream. The receive at 1115 us
    was launched in step 1 and still lies in device step 0.
    """
    truth = {
        "accounting": {
            (0, 0): account(1100, compute=640, comm_wait=400, comm_transfer=40, idle_host=15, idle_dependency=5),
            (0, 1): account(20, compute=20),
            (1, 0): account(1000, compute=640, comm_wait=85, comm_transfer=60, idle_host=206, idle_dependency=9),
            (1, 1): account(20, compute=20),
        },
        "complete": {(0, 0): True, (0, 1): False, (1, 0): True, (1, 1): False},
        "comm_hidden_us": {(0, 0): 20, (1, 0): 0},
        "comm_us": {0: 20 + 320 + 120, 1: 40 + 100 + 20 + 25},
        "one_sided": True,
        "batches": {0: [1, 2, 1], 1: [1, 2, 1, 1]},
    }
    return shape([_first_stage(), _last_stage()], truth, world_size=2, mesh={"pp": 2})


def _stage(rank: int) -> tuple[PartBuilder, tuple[int, int], tuple[int, int], int]:
    p = PartBuilder(rank, rank, world_size=2, pid=100 + rank)
    thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
    return p, (thread, main), (thread, side), p.group("pp", (0, 1), axis="pp")


def _first_stage() -> PartBuilder:
    p, work, talk, pp = _stage(0)
    p.launched(work, "kernel", "forward", 20, 120, 10, step=0, stage=0, microbatch=0, phase="forward")
    p.launched(work, "kernel", "forward", 120, 220, 16, step=0, stage=0, microbatch=1, phase="forward")
    send0 = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 120, 140, 22, step=0, stage=0, microbatch=0)
    p.comm(send0, "send", pp, 0, None, bytes_in=ACT, peer=1, batch=0)
    both = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 220, 540, 28, step=0, stage=0)
    p.comm(both, "send", pp, 1, None, bytes_in=ACT, peer=1, batch=1)
    p.comm(both, "recv", pp, 2, None, bytes_out=ACT, peer=1, batch=1)
    p.launched(work, "kernel", "backward", 540, 740, 34, step=0, stage=0, microbatch=0, phase="backward")
    recv1 = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 740, 860, 40, step=0, stage=0, microbatch=1)
    p.comm(recv1, "recv", pp, 3, None, bytes_out=ACT, peer=1, batch=2)
    p.launched(work, "kernel", "backward", 860, 1060, 46, step=0, stage=0, microbatch=1, phase="backward")
    p.launched(work, "kernel", "adam", 1060, 1100, 52, step=0, stage=0, phase="optimizer")
    p.launched(work, "kernel", "forward", 1120, 1140, 1110, step=1, stage=0, microbatch=0, phase="forward")
    p.step(0, 0, 1100)
    p.step(1, 1100, 1150, complete=False)
    return p


def _last_stage() -> PartBuilder:
    p, work, talk, pp = _stage(1)
    recv0 = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 100, 140, 10, step=0, stage=1, microbatch=0)
    p.comm(recv0, "recv", pp, 0, None, bytes_out=ACT, peer=0, batch=0)
    p.launched(work, "kernel", "forward", 140, 240, 16, step=0, stage=1, microbatch=0, phase="forward")
    p.launched(work, "kernel", "backward", 240, 440, 22, step=0, stage=1, microbatch=0, phase="backward")
    both = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 440, 540, 28, step=0, stage=1)
    p.comm(both, "send", pp, 2, None, bytes_in=ACT, peer=0, batch=1)
    p.comm(both, "recv", pp, 1, None, bytes_out=ACT, peer=0, batch=1)
    p.launched(work, "kernel", "forward", 540, 640, 34, step=0, stage=1, microbatch=1, phase="forward")
    p.launched(work, "kernel", "backward", 640, 840, 40, step=0, stage=1, microbatch=1, phase="backward")
    send1 = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 840, 860, 46, step=0, stage=1, microbatch=1)
    p.comm(send1, "send", pp, 3, None, bytes_in=ACT, peer=0, batch=2)
    p.launched(work, "kernel", "adam", 860, 900, 52, step=0, stage=1, phase="optimizer")
    next_ = p.launched(talk, "comm", "ncclDevKernel_SendRecv", 1115, 1140, 1101, step=1, stage=1, microbatch=0)
    p.comm(next_, "recv", pp, 4, None, bytes_out=ACT, peer=0, batch=3)
    p.launched(work, "kernel", "forward", 1140, 1160, 1130, step=1, stage=1, microbatch=0, phase="forward")
    p.step(0, 0, 1100)
    p.step(1, 1100, 1150, complete=False)
    return p
