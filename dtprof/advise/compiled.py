"""Backward passes that torch.compile owns whole: their gradients come out together, and no bucket can leave before."""

from __future__ import annotations

import numpy as np

from dtprof.run import Part, Run

_BACKWARD = "CompiledFunctionBackward"
WHY = "the compiled graph owns the backward pass: its gradients come out together, and no all-reduce can begin before its end"
REMEDY = (
    "let the backward pass be cut where buckets end: torch._dynamo.config.optimize_ddp with DistributedDataParallel, or blocks "
    "compiled one by one"
)


def owns_backward(run: Run) -> bool:
    """Do all all-reduces of every captured step begin after its last compiled backward graph, on all ranks that have one?"""
    found = [owned for part in run.parts for owned in _steps(run, part)]
    return bool(found) and all(found)


def _steps(run: Run, part: Part) -> list[bool]:
    events, comm = run.table("events", part.ordinal), run.table("comm", part.ordinal)
    named = np.array([name == _BACKWARD for name in events.values("name")] + [False], bool)
    graphs = np.flatnonzero(named[events["name"]] & events.is_("kind", "cpu_op"))
    if len(graphs) == 0 or len(comm) == 0:
        return []
    rows = comm["event"][comm.is_("op", "all_reduce") & (comm["event"] >= 0)]
    records = comm["record"][comm.is_("op", "all_reduce") & (comm["event"] >= 0)]
    issued = np.where(records >= 0, records, rows)
    out = []
    for step in np.unique(events["step"][graphs]).tolist():
        mine, sent = graphs[events["step"][graphs] == step], issued[events["step"][rows] == step]
        if step >= 0 and len(sent):
            out.append(bool(events["ts"][sent].min() >= (events["ts"][mine] + events["dur"][mine]).max()))
    return out
