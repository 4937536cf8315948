"""Where the work of a part's steps lies: time per step by phase, layer, kernel class and operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.covers import PartView
from dtprof.analyse.results import CommResult, PartAccount, settled
from dtprof.catalogue.kernels import kernel_class
from dtprof.intervals import Ints
from dtprof.run import Run
from dtprof.schema import MISSING32, PHASES, ROLES

Facet = tuple[str, str]
Work = dict[Facet, float]
# host operators that only hand communication over
_HANDOVER = ("c10d::", "record_param_comms", "_c10d_functional::", "ProfilerStep")


def work_of(run: Run, account: PartAccount) -> Work:
    """(facet, name) -> ns per settled step; facets are ``phase``, ``layer``, ``kernel class`` and ``operation``.

    On a device the time of compute kernels and copies, else the self time of operators on training and autograd threads.
    """
    steps = settled(account.steps)
    if not steps:
        return {}
    view = PartView(run, account.part)
    rows, spent = _device_work(view) if view.on_device else _host_work(view)
    inside = np.isin(view.events["step"][rows], [s.step for s in steps])
    rows, spent = rows[inside], spent[inside] / len(steps)
    found: Work = {}
    names, kinds = view.events.values("name"), view.events["kind"][rows]
    by_name = _sums(view.events["name"][rows], spent)
    kernel = view.events.code("kind", "kernel")
    found |= {("operation", names[c]): ns for c, ns in by_name.items()}
    found |= {("phase", PHASES[c]): ns for c, ns in _sums(view.events["phase"][rows], spent).items()}
    layers = view.events.values("layer")
    found |= {("layer", layers[c]): ns for c, ns in _sums(view.events["layer"][rows], spent).items()}
    if view.on_device:
        classes: dict[str, float] = defaultdict(float)
        for code, ns in _sums(view.events["name"][rows[kinds == kernel]], spent[kinds == kernel]).items():
            classes[kernel_class(names[code])] += ns
        found |= {("kernel class", name): ns for name, ns in classes.items()}
    return found


def _sums(codes: NDArray[np.int32], spent: NDArray[np.float64]) -> dict[int, float]:
    """Code -> sum, without the missing ones."""
    known = codes >= 0
    sums = np.bincount(codes[known], weights=spent[known])
    return {int(c): float(sums[c]) for c in np.flatnonzero(sums)}


def _device_work(view: PartView) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = view.device_rows
    mine = rows[view.events["kind"][rows] != view.events.code("kind", "comm")]
    return mine, view.events["dur"][mine].astype(np.float64)


def _host_work(view: PartView) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    events = view.events
    names = events.values("name")
    handover = np.array([n.startswith(_HANDOVER) for n in names] + [False], bool)
    threads = np.isin(view.lane_role, [ROLES.index("training"), ROLES.index("autograd")])
    operators = events.is_("kind", "cpu_op") & threads
    own: Ints = events["dur"].copy()
    rows = np.flatnonzero(operators)
    above = _operator_above(events["parent"], operators, rows)
    nested = above >= 0
    np.subtract.at(own, above[nested], events["dur"][rows[nested]])
    kept = rows[~handover[events["name"][rows]]]
    return kept, own[kept].astype(np.float64)


def _operator_above(parent: NDArray[np.int32], operators: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The innermost operator that encloses each row, -1 where none does: ranges between them are passed over."""
    above = parent[rows].astype(np.int64)
    above[above == MISSING32] = -1
    while True:
        through = (above >= 0) & ~operators[np.maximum(above, 0)]
        if not through.any():
            return above
        up = parent[above[through]].astype(np.int64)
        above[through] = np.where(up == MISSING32, -1, up)


def operations_of(comm: CommResult, steps: Iterable[int]) -> dict[str, tuple[float, float, float]]:
    """Collective -> (how many, bytes, ns moving) per step, over the steps given; all 0 where nothing is known."""
    numbers = set(steps)
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation in comm.operations:
        if operation.step in numbers:
            moving = operation.transfer_ns if operation.transfer_ns is not None else operation.transfer_upper_ns
            found[operation.op].append((operation.bytes or 0, moving or 0))
    count = max(len(numbers), 1)
    return {op: (len(v) / count, sum(b for b, _ in v) / count, sum(t for _, t in v) / count) for op, v in found.items()}
