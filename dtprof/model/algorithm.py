"""NCCL's algorithm as an edit of the step graph: its all-reduces take as much longer as NCCL's own model says.

Which algorithm ran is not recorded (a kernel's name does not tell), so it is taken for the one that NCCL would choose; forcing
one can then only lose, or change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from dtprof.catalogue.hardware import gpu_of
from dtprof.edits import Edit
from dtprof.model.cost.allowed import nodes_of
from dtprof.model.cost.expected import lines_of, links_of
from dtprof.model.cost.nccl import Links, time_ns
from dtprof.model.graph.graph import NodeKind, StepGraph
from dtprof.run import Run
from dtprof.schema import MISSING


def by_algorithm(run: Run, graph: StepGraph, edit: Edit, most: bool, notes: list[str]) -> StepGraph | str:
    """The graph with every matched all-reduce of known bytes done by ``ring`` or ``tree``; or why it cannot be told.

    ``most`` takes the least of what the links may be, else the most: a mesh does not say.
    """
    links = _links(run, most)
    if isinstance(links, str):
        return links
    shares = run.table("participations")
    ranks: dict[int, int] = defaultdict(int)
    for number in shares["collective"].tolist():
        ranks[number] += 1
    factors: dict[tuple[int, int], float] = {}
    table = run.table("collectives")
    for at in range(len(table)):
        row: dict[str, Any] = table.row(at)
        if row["op"] != "all_reduce" or not row["bytes"] or row["transfer"] in (None, MISSING) or row["n"] != ranks[row["id"]]:
            continue
        size, n = int(row["bytes"]), int(row["n"])
        factor = time_ns("all_reduce", size, n, 1, links, str(edit.value)) / time_ns("all_reduce", size, n, 1, links)
        factors[int(row["last_start"]), int(row["transfer"])] = factor
    if not factors:
        return "the run has no all-reduce of known bytes with all its ranks"
    dur = graph.dur.copy()
    for node in np.flatnonzero(graph.kind == NodeKind.MEET).tolist():
        dur[node] = round(int(dur[node]) * factors.get((int(graph.start[node]), int(dur[node])), 1.0))
    longer = sum(f > 1.001 for f in factors.values())
    notes.append(
        f"by NCCL's own model {longer} of {len(factors)} all-reduces take longer by {edit.value}, and none less: today's "
        "algorithm is taken for NCCL's choice; contention with computing and other protocols are left out"
    )
    return graph.with_times(dur=dur)


def _links(run: Run, most: bool) -> Links | str:
    """The links of the run's GPUs as NCCL counts them, on one host; or why they are not known."""
    names = {p.device for p in run.parts}
    gpu = gpu_of(str(next(iter(names)))) if len(names) == 1 else None
    if gpu is None or gpu.capability is None:
        return f"NCCL's model does not hold these devices: {', '.join(sorted(map(str, names)))}"
    nodes = nodes_of(run, run.parts)
    if isinstance(nodes, str):
        return f"{nodes}, and NCCL's model needs it"
    if nodes > 1:
        return "the ranks are on several hosts, and this edit is modelled within one only"
    lines = lines_of(gpu, len(run.parts))
    return links_of(gpu, gpu.capability, min(lines) if most else max(lines))
