"""Recomputation: forward operators that run again in the backward pass, under activation checkpointing.

The backward formulas of aten call ``mm``, ``native_layer_norm_backward``, … and never the operators by which a module's forward
pass enters aten: ``linear``, ``layer_norm``, ``scaled_dot_product_attention``. Where those run inside a node of autograd's
engine, a checkpointed block is computed again, from the first of them to the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.intervals import Cover
from dtprof.schema import MISSING32

_FORWARD = frozenset(
    f"aten::{name}"
    for name in (
        "linear", "layer_norm", "rms_norm", "group_norm", "batch_norm", "conv1d", "conv2d", "conv3d", "dropout", "gelu", "silu",
        "relu", "softmax", "scaled_dot_product_attention", "multi_head_attention_forward",
    )
)  # fmt: skip
_NODE = "autograd::engine::evaluate_function"
# operators that are no one's model: they may run in both passes
_NEUTRAL = ("aten::", "prims::", "c10d::", "_c10d_functional::", "autograd::", "profiler::", "record_param_comms", "fsdp::")


def recomputed(view: PartView) -> Cover | None:
    """When this part's compute is done again; None where it cannot be told: no node of autograd or no such forward operator was
    recorded, or operators of a library of its own run in both passes."""
    names = view.events.values("name")
    operator = view.events.is_("kind", "cpu_op")
    forward = _named(view, [n in _FORWARD for n in names]) & operator
    nodes = _named(view, [n.startswith(_NODE) for n in names])
    if not nodes.any() or not (rows := np.flatnonzero(forward)).size:
        return None
    inside = _node_above(view, rows, nodes)
    own = _named(view, ["::" in n and not n.startswith(_NEUTRAL) for n in names]) & operator
    if not (inside >= 0).any():
        return None if _in_both(view, np.flatnonzero(own), nodes) else intervals.empty()
    starts, ends = _hulls(view, rows[inside >= 0], inside[inside >= 0])
    again = intervals.union(starts, ends)
    if not view.on_device:
        return intervals.intersect(view.host_compute, again)
    launched = view.events["launch"][view.device_rows]
    at = view.events["ts"][np.maximum(launched, 0)]
    place = np.searchsorted(again[0], at, "right") - 1
    mine = (launched >= 0) & (place >= 0) & (at < again[1][np.maximum(place, 0)])
    kernels = view.device_rows[mine & view.events.is_("kind", "kernel")[view.device_rows]]
    return view.cover(kernels)


def _named(view: PartView, wanted: list[bool]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.array([*wanted, False], bool)[view.events["name"]]
    return found


def _node_above(view: PartView, rows: NDArray[np.int64], nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The innermost node of autograd around each row; -1 where there is none."""
    parent = view.events["parent"]
    above = parent[rows].astype(np.int64)
    above[above == MISSING32] = -1
    while True:
        through = (above >= 0) & ~nodes[np.maximum(above, 0)]
        if not through.any():
            return above
        up = parent[above[through]].astype(np.int64)
        above[through] = np.where(up == MISSING32, -1, up)


def _in_both(view: PartView, rows: NDArray[np.int64], nodes: NDArray[np.bool_]) -> bool:
    """Does an operator run inside and outside of autograd's nodes?"""
    if not rows.size:
        return False
    inside = _node_above(view, rows, nodes) >= 0
    name = view.events["name"][rows]
    return bool(np.intersect1d(name[inside], name[~inside]).size)


def _hulls(view: PartView, rows: NDArray[np.int64], node: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each node the time from the first to the last of its rows."""
    _, of = np.unique(node, return_inverse=True)
    starts = np.full(of.max() + 1, np.iinfo(np.int64).max)
    ends = np.full(of.max() + 1, np.iinfo(np.int64).min)
    np.minimum.at(starts, of, view.events["ts"][rows])
    np.maximum.at(ends, of, view.end[rows])
    return starts, ends
