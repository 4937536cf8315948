"""What the device computes: products, attention, what only moves memory, short kernels; and with which type it multiplies.

``study.result("compute")`` is a ``ComputeResult``. Times are sums of kernel durations per settled step (kernels of two
streams at once count twice), mean over the parts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dtprof.analyse.covers import PartView
from dtprof.analyse.kernels import SHORT_NS
from dtprof.analyse.results import AccountingResult, PartAccount, settled
from dtprof.catalogue.hardware import Gpu, gpu_of
from dtprof.catalogue.kernels import kernel_class
from dtprof.catalogue.precision import is_product, precision_of
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import PHASES

# what bounds a kernel of a class: arithmetic, or the traffic to memory (Williams et al. 2009, Roofline)
_BOUND = {"gemm": "products", "attention": "attention", "other": "other"}
# what a compiler can put into one kernel with its neighbours
_FUSABLE = ("elementwise", "normalization")
# dtype conversions: torch's own kernels for copies between types
_CASTS = ("bfloat16_copy", "float16_copy", "half_copy")


@dataclass(frozen=True)
class Spent:
    """Kernels of one kind: ``ns`` and ``count`` per step, mean of the parts; ``rows``: part -> events."""

    ns: float
    count: float
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)


NOTHING = Spent(0.0, 0.0)


@dataclass(frozen=True)
class ComputeResult:
    """``kinds``: products, attention, memory, other; ``math``: precision -> products of it (``unknown`` where the name does
    not say); ``fusable``: elementwise kernels and normalisations; ``small``: kernels below SHORT_NS, ``small_optimizer`` those
    of the optimizer; ``casts`` between types; ``fused``: the job has kernels that a compiler made. ``why`` is set, and all is
    empty, where nothing can be said."""

    kinds: dict[str, Spent] = field(default_factory=dict)
    math: dict[str, Spent] = field(default_factory=dict)
    fusable: Spent = NOTHING
    small: Spent = NOTHING
    small_optimizer: Spent = NOTHING
    casts: Spent = NOTHING
    fused: bool = False
    why: str = ""


def analyse(study: Lens) -> ComputeResult:
    """All kernels of settled steps; not where graph launches without kernels were recorded, for then they are a part only."""
    accounting: AccountingResult = study.result("accounting")
    parts = [p for p in accounting.parts if p.steps and p.steps[0].on_device]
    if not parts:
        return ComputeResult(why="no step with work of a device was recorded")
    if doubt := next((p.unreliable for p in parts if p.unreliable), ""):
        return ComputeResult(why=doubt)
    found: dict[str, list[tuple[int, NDArray[np.int64], float, float]]] = defaultdict(list)
    fused = False
    for account in parts:
        view = PartView(study.run, account.part)
        groups, compiled = _groups(view, account)
        fused |= compiled
        steps = len(settled(account.steps))
        for name, rows in groups.items():
            spent = float(view.events["dur"][rows].sum()) / steps
            found[name].append((account.part, rows, spent, len(rows) / steps))
    made = {name: _spent(of, len(parts)) for name, of in found.items()}
    return ComputeResult(
        {n.removeprefix("kind "): s for n, s in made.items() if n.startswith("kind ")},
        {n.removeprefix("math "): s for n, s in made.items() if n.startswith("math ")},
        made.get("fusable", NOTHING), made.get("small", NOTHING), made.get("small "
            "optimizer", NOTHING), made.get("casts", NOTHING), fused,
    )  # fmt: skip


def _spent(of: list[tuple[int, NDArray[np.int64], float, float]], parts: int) -> Spent:
    rows = {part: tuple(mine.tolist()) for part, mine, _, _ in of}
    return Spent(sum(ns for *_, ns, _ in of) / parts, sum(count for *_, count in of) / parts, rows)


def _groups(view: PartView, account: PartAccount) -> tuple[dict[str, NDArray[np.int64]], bool]:
    """Kernels of the settled steps by what they are, and whether a compiler made some."""
    events = view.events
    kernels = view.device_rows[events.is_("kind", "kernel")[view.device_rows]]
    kernels = kernels[np.isin(events["step"][kernels], [s.step for s in settled(account.steps)])]
    codes, names = events["name"][kernels], events.values("name")
    used = np.unique(codes).tolist()
    kind = {c: "products" if is_product(names[c]) else _BOUND.get(kernel_class(names[c]), "memory") for c in used}
    math = {c: precision_of(names[c]) or "unknown" for c in used if kind[c] == "products"}
    groups: dict[str, NDArray[np.int64]] = {}
    for prefix, of in (("kind", kind), ("math", math)):
        for value in set(of.values()):
            groups[f"{prefix} {value}"] = kernels[np.isin(codes, [c for c, v in of.items() if v == value])]
    fusable = [c for c in used if kind[c] == "memory" and kernel_class(names[c]) in _FUSABLE]
    groups["fusable"] = kernels[np.isin(codes, fusable)]
    short = events["dur"][kernels] < SHORT_NS
    optimizer = events["phase"][kernels] == PHASES.index("optimizer")
    groups["small"], groups["small optimizer"] = kernels[short], kernels[short & optimizer]
    groups["casts"] = kernels[np.isin(codes, [c for c in used if any(cast in names[c] for cast in _CASTS)])]
    return groups, any("triton_" in names[c] for c in used)


def gpu_of_all(run: Run) -> Gpu | None:
    """The one kind of device that all parts have; None where the catalogue has it not, or there are several."""
    names = {p.device for p in run.parts if p.device}
    return gpu_of(names.pop()) if len(names) == 1 else None
