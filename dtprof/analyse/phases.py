"""Phases of every step on the host: data, forward, backward, optimizer, with communication taken out."""

from __future__ import annotations

import numpy as np

from dtprof import intervals
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import PhaseResult, PhaseTime
from dtprof.ingest.kineto.marks import outermost
from dtprof.protocols import Lens
from dtprof.schema import PHASES


def analyse(study: Lens) -> PhaseResult:
    """Times of all marked phases; own time excludes the communication that ran while nothing computed."""
    times: list[PhaseTime] = []
    for part in study.run.parts:
        view = PartView(study.run, part.ordinal)
        waiting = intervals.subtract(view.host_comm, view.host_compute)
        for phase in PHASES:
            rows = outermost(view.phase_rows(phase).astype(np.int32), view.events["ts"], view.events["dur"])
            starts, ends = view.events["ts"][rows], view.end[rows]
            inside = intervals.measure(waiting, starts, ends)
            steps = view.events["step"][rows]
            times += [
                PhaseTime(part.ordinal, part.rank, int(s), phase, int(a), int(b - a), int(c))
                for s, a, b, c in zip(steps.tolist(), starts.tolist(), ends.tolist(), inside.tolist(), strict=True)
                if s >= 0
            ]
    return PhaseResult(tuple(times))
