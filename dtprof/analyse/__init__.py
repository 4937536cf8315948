"""Analyses: one file per question, each a function from a study to a result."""

from __future__ import annotations

from dtprof.analyse import accounting, comm, kernels, lateness, memory, phases, stragglers, waiting
from dtprof.analyse.study import Study
from dtprof.plugins import loaded
from dtprof.protocols import Analysis
from dtprof.run import Run

ANALYSES: dict[str, Analysis] = {
    "accounting": accounting.analyse,
    "comm": comm.analyse,
    "kernels": kernels.analyse,
    "lateness": lateness.analyse,
    "memory": memory.analyse,
    "phases": phases.analyse,
    "stragglers": stragglers.analyse,
    "waiting": waiting.analyse,
}


def study_of(run: Run) -> Study:
    """A study of ``run`` with the built-in analyses and those of plugins; a built-in name is never replaced."""
    extra = {p.name: p.value for p in loaded("analyses") if p.value is not None}
    return Study(run, {**extra, **ANALYSES})
