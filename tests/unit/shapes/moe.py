"""Four ranks of experts that exchange tokens with uneven all-to-alls."""

from __future__ import annotations

from tests.unit.shapes.build import US, PartBuilder, Shape, account, shape

TOKEN = 128  # bytes of one token
# tokens that rank r sends to rank s in the dispatch; the diagonal stays at home
DISPATCH = ((5, 10, 20, 30), (10, 5, 10, 40), (20, 10, 5, 60), (10, 10, 10, 5))
ROUTER = (50, 60, 70, 100)  # us before the dispatch
EXPERTS = (150, 120, 90, 100)  # us between dispatch and combine


def moe_all_to_all_v() -> Shape:
    """Dispatch ends at 200 us and combine at 400 us on every rank; ranks enter when their compute ends.

    Dispatch: starts 70, 80, 90, 120; shortest, so transfer, 80; rank 3 is last. Combine: starts 350, 320, 290, 300;
    transfer 50; rank 0 is last. Bytes in, out and on the wire differ by rank; the chunk that stays at home is not on
    the wire. The combine's split is cut off in the source, so its bytes are an upper bound and nothing is on the wire.
    """
    waits = {"dispatch": (50, 40, 30, 0), "combine": (0, 30, 60, 50)}
    accounting = {
        (r, 0): account(
            500,
            compute=ROUTER[r] + EXPERTS[r] + 100,
            comm_wait=waits["dispatch"][r] + waits["combine"][r],
            comm_transfer=80 + 50,
            idle_host=15,
            idle_dependency=5,
        )
        for r in range(4)
    }
    truth = {
        "accounting": accounting,
        "collectives": {
            ("all_to_all", 0): {"transfer": 80 * US, "last": 3, "wait": [w * US for w in waits["dispatch"]]},
            ("all_to_all", 1): {"transfer": 50 * US, "last": 0, "wait": [w * US for w in waits["combine"]]},
        },
        "bytes_wire": [TOKEN * (sum(row) - row[r]) for r, row in enumerate(DISPATCH)],
        "tokens_by_expert": [sum(row[e] for row in DISPATCH) for e in range(4)],
    }
    return shape([_rank(r) for r in range(4)], truth, world_size=4, mesh={"ep": 4})


def _rank(r: int) -> PartBuilder:
    p = PartBuilder(r, r, world_size=4, pid=100 + r)
    thread = p.thread()
    work, talk = (thread, p.stream(7)), (thread, p.stream(20, "communication"))
    ep = p.group(f"name on rank {r}", (0, 1, 2, 3), axis="ep", description="experts")
    dispatch, combine = 20 + ROUTER[r], 200 + EXPERTS[r]
    p.launched(work, "kernel", "router", 20, dispatch, 10, step=0, layer="moe.0")
    first = p.launched(talk, "comm", "ncclDevKernel_SendRecv", dispatch, 200, 16, step=0, layer="moe.0")
    received = sum(row[r] for row in DISPATCH)
    sent = sum(DISPATCH[r])
    p.comm(
        first, "all_to_all", ep, 0, None, bytes_in=sent * TOKEN, bytes_out=received * TOKEN,
        bytes_wire=(sent - DISPATCH[r][r]) * TOKEN, dtype="bfloat16",
    )  # fmt: skip
    p.launched(work, "kernel", "experts", 200, combine, 22, step=0, layer="moe.0", expert=r)
    second = p.launched(talk, "comm", "ncclDevKernel_SendRecv", combine, 400, 28, step=0, layer="moe.0")
    p.comm(
        second, "all_to_all", ep, 1, None, bytes_in=received * TOKEN, bytes_out=sent * TOKEN,
        bytes_known="upper_bound", dtype="bfloat16",
    )  # fmt: skip
    p.launched(work, "kernel", "dense", 400, 500, 34, step=0)
    p.launched(work, "kernel", "router", 520, 540, 510, step=1)
    p.step(0, 0, 500)
    p.step(1, 500, 550, complete=False)
    for expert in range(4):
        p.add(
            "metrics",
            step=0,
            metric="moe_tokens",
            value=float(DISPATCH[r][expert]),
            unit="tokens",
            layer="moe.0",
            expert=expert,
        )
    return p
