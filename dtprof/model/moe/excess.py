"""What a rank computes longer than the others because its experts have more tokens."""

from __future__ import annotations

from collections import defaultdict
from weakref import WeakKeyDictionary

import numpy as np

from dtprof.model.fsdp.whatif import on_device
from dtprof.model.graph.graph import CyclicError
from dtprof.model.moe.observe import observe
from dtprof.model.moe.predict import slopes
from dtprof.model.moe.whatif import has_experts
from dtprof.model.on_device import checked
from dtprof.run import Run

_excess: WeakKeyDictionary[Run, dict[int, float]] = WeakKeyDictionary()


def by_tokens(run: Run) -> dict[int, float]:
    """Part -> ns per step that its tokens take beyond the median of its group's other parts, by the run's own time per token;
    empty without experts on hosts, and where the run does not tell what a token takes.
    """
    if run not in _excess:
        _excess[run] = _by_tokens(run) if has_experts(run) and not on_device(run) else {}
    return _excess[run]


def _by_tokens(run: Run) -> dict[int, float]:
    try:
        graph, _ = checked(run)
    except CyclicError:
        return {}
    seen = observe(run, graph)
    found = seen if isinstance(seen, str) else slopes(seen)
    if isinstance(seen, str) or isinstance(found, str) or not found.determined:
        return {}
    per_token = sum(s.value for s in found.compute.values())
    spent: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (group, _, step), load in seen.loads.items():
        for part in group if step in seen.steps else ():
            spent[group][part] += per_token * load.of(part) / len(seen.steps)
    return {
        part: ns - float(np.median([other for p, other in mine.items() if p != part]))
        for mine in spent.values()
        if len(mine) > 1
        for part, ns in mine.items()
    }
