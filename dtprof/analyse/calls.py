"""The host call (``c10d::…``) that handed over each operation of a CPU backend: its trace joins the two by their order only."""

from __future__ import annotations

import numpy as np

from dtprof.catalogue.collectives import operation
from dtprof.table import Table


def calls_of(events: Table, comm: Table) -> dict[int, int]:
    """Row of ``comm`` -> row of the call in ``events``.

    Operations begin in the order of the calls; a reduce-scatter is an all-reduce on gloo.
    """
    names = events.text("name")
    called = [(row, operation(str(names[row]))) for row in np.flatnonzero(events.is_("kind", "cpu_op")).tolist() if
              str(names[row]).startswith("c10d::")]  # fmt: skip
    ops = comm.text("op")
    out: dict[int, int] = {}
    place = 0
    for row in np.argsort(events["ts"][comm["event"]], kind="stable").tolist():
        begin = events["ts"][comm["event"][row]]
        for at in range(place, len(called)):
            if events["ts"][called[at][0]] > begin:
                break
            if called[at][1] == ops[row] or (called[at][1], ops[row]) == ("reduce_scatter", "all_reduce"):
                out[row], place = called[at][0], at + 1
                break
    return out
