"""From the tables of a run to its step graph."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from dtprof.model.graph import blocking, device, host, waits
from dtprof.model.graph.cpu import build_cpu
from dtprof.model.graph.device import Placed
from dtprof.model.graph.graph import FILLS, YIELDS, Builder, NodeKind, StepGraph
from dtprof.model.graph.nodes import PartNodes
from dtprof.run import Run
from dtprof.schema import MISSING

# warps that one multiprocessor holds at most on every generation since Kepler but Turing and consumer Ampere
# (CUDA C++ Programming Guide, "Compute Capabilities"): a kernel that brings more leaves no room
FILLING_WARPS = 64.0


def build(run: Run, rule: str = "elimination") -> StepGraph:
    """The graph of the whole capture of a run; ``rule``, one of ``waits.RULES``, is for waits on a device.

    ``notes`` holds, by part ordinal, what was inferred and how: handoffs, waits recorded and inferred, unplaced waits,
    queue depth, and operations without a launch call in the trace; without device work what ``cpu.build_cpu`` says.
    """
    builder = Builder()
    everyone = [PartNodes(run, part.ordinal, part.rank, part.clock_offset_ns) for part in run.parts]
    if not any(len(nodes.ops) for nodes in everyone):
        build_cpu(run, builder, everyone)
        return builder.build()
    meets = _meets(run, builder)
    for nodes in everyone:
        if len(nodes.ops) == 0:
            continue
        placed = Placed()
        queued = blocking.queued_calls(nodes)
        depth = blocking.queue_depth(nodes)
        host.place(nodes, builder, placed, blocking.blocking_calls(nodes) | queued)
        device.place(nodes, builder, placed, meets.get(nodes.part, {}))
        device.connect(nodes, builder, placed, device.constants(nodes))
        _crowd(nodes, builder, placed)
        found = waits.find(nodes, rule)
        waits.connect(builder, placed, found)
        blocking.connect(nodes, builder, placed)
        if depth is not None:
            blocking.connect_queue(nodes, builder, placed, depth)
        handoffs = host.connect(nodes, builder, placed)
        builder.notes[str(nodes.part)] = {
            "handoffs": handoffs,
            "waits_certain": sum(w.certain for w in found.waits),
            "waits_inferred": sum(not w.certain for w in found.waits),
            "waits_unplaced": found.unplaced,
            "queue_depth": depth,
            "operations_without_launch": int(np.sum(nodes.launch[nodes.ops] < 0)),
        }
    return builder.build()


def _crowd(nodes: PartNodes, builder: Builder, placed: Placed) -> None:
    """Mark the kernels that fill the device, and all kernels that compute as yielding to those.

    Only where the part computes on more than one stream: elsewhere nothing can come between.
    """
    kernels = nodes.ops[nodes.view.events.is_("kind", "kernel")[nodes.ops]]
    if len(np.unique(nodes.lane[kernels])) < 2:
        return
    args = nodes.run.table("kernel_args", nodes.part)
    fills = set(args["event"][args["warps_per_sm"] >= FILLING_WARPS].tolist())
    for row in kernels.tolist():
        builder.crowd(placed.begin[row], YIELDS | (FILLS if row in fills else 0))


def _meets(run: Run, builder: Builder) -> dict[int, dict[int, int]]:
    """Nodes of the operations in which all ranks of a group are present and end together: part -> event row -> node."""
    table, shares = run.table("collectives"), run.table("participations")
    numbers = {int(n): i for i, n in enumerate(table["id"].tolist())}
    rows: dict[int, list[int]] = defaultdict(list)
    for i, number in enumerate(shares["collective"].tolist()):
        rows[number].append(i)
    out: dict[int, dict[int, int]] = defaultdict(dict)
    for number, mine in rows.items():
        at = numbers[number]
        transfer = int(table["transfer"][at])
        if transfer == MISSING or len(mine) < 2:
            continue
        node = builder.node(NodeKind.MEET, -1, -1, -1, int(table["last_start"][at]), transfer)
        for i in mine:
            out[int(shares["part"][i])][int(shares["event"][i])] = node
    return out
