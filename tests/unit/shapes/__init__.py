"""Hand-made runs of the shapes that are hard to get right, each with what is true of it by construction.

``SHAPES[name]()`` returns a ``Shape``: the run, its tables by (name, part), and ``truth``, a dict with some of

    accounting    (part, step) -> accounting keys in ns; keys that are not named are 0
    collectives   (op, seq) -> transfer, transfer_upper, last, wait by rank, n, n_present
    comm_us       part -> union of communication
"""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.shapes.build import Shape
from tests.unit.shapes.devices import both_call_it_device_0, cuda_graph, gloo_cpu
from tests.unit.shapes.moe import moe_all_to_all_v
from tests.unit.shapes.partial import restarted_rank, simulated, three_of_eight
from tests.unit.shapes.pipeline import pipeline_batches


def cuda_graph_under_recorded() -> Shape:
    """The CUDA graph of which only the first launch was recorded."""
    return cuda_graph(recorded=1)


SHAPES: dict[str, Callable[[], Shape]] = {
    make.__name__: make
    for make in (
        pipeline_batches,
        moe_all_to_all_v,
        both_call_it_device_0,
        cuda_graph,
        cuda_graph_under_recorded,
        gloo_cpu,
        restarted_rank,
        three_of_eight,
        simulated,
    )
}
