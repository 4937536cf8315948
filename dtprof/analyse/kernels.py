"""Kernels: names, classes, counts, time; launches without kernels and kernels without launches."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from dtprof.analyse.accounting import graphs_without_kernels
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import KernelResult, KernelRow
from dtprof.catalogue.kernels import KernelClass, kernel_class
from dtprof.intervals import Ints
from dtprof.protocols import Lens

# a kernel shorter than this is shorter than its own launch usually takes
SHORT_NS = 10_000


def analyse(study: Lens) -> KernelResult:
    """The kernel table over all parts, by total time."""
    durations: dict[tuple[str, str], list[Ints]] = defaultdict(list)
    spent: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    without_kernel: dict[int, int] = {}
    without_launch: dict[int, int] = {}
    short, computing = 0, 0
    for part in study.run.parts:
        view = PartView(study.run, part.ordinal)
        rows = view.device_rows
        events = view.events
        for kind in ("kernel", "comm", "memcpy", "memset"):
            mine = rows[events["kind"][rows] == events.code("kind", kind)]
            names = events["name"][mine]
            dur = events["dur"][mine]
            if kind == "kernel":
                short += int(np.sum(dur < SHORT_NS))
                computing += len(dur)
            order = np.argsort(names, kind="stable")
            borders = np.flatnonzero(np.diff(names[order])) + 1
            for group in np.split(order, borders) if len(order) else []:
                name = events.values("name")[int(names[group[0]])]
                durations[(name, kind)].append(dur[group])
                spent[(name, kind)][part.ordinal] = int(dur[group].sum())
        if lost := graphs_without_kernels(view):
            without_kernel[part.ordinal] = lost
        if missing := int(np.sum(events["launch"][rows] < 0)):
            without_launch[part.ordinal] = missing
    return KernelResult(*_table(durations, spent), without_kernel, without_launch, short, computing)


def _table(
    durations: dict[tuple[str, str], list[Ints]], spent: dict[tuple[str, str], dict[int, int]]
) -> tuple[tuple[KernelRow, ...], dict[str, int]]:
    totals = {key: int(sum(d.sum() for d in found)) for key, found in durations.items()}
    whole = sum(totals.values()) or 1
    rows: list[KernelRow] = []
    classes: dict[str, int] = defaultdict(int)
    for key in sorted(totals, key=lambda k: -totals[k]):
        name, kind = key
        joined = np.concatenate(durations[key])
        of: KernelClass = "communication" if kind == "comm" else "copy" if kind != "kernel" else kernel_class(name)
        classes[of] += totals[key]
        rows.append(KernelRow(name, of, len(joined), totals[key], int(np.median(joined)), totals[key] / whole, spent[key]))
    return tuple(rows), dict(sorted(classes.items(), key=lambda item: -item[1]))
