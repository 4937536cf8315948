"""Analyses: one file per question, each a function from a study to a result."""

from __future__ import annotations

from dtprof.analyse import (
    accounting,
    checkpoint,
    comm,
    goodput,
    gpu,
    hangs,
    host,
    kernels,
    lateness,
    memory,
    moe,
    parallel,
    phases,
    pipeline,
    stragglers,
    training,
    waiting,
)
from dtprof.analyse import input as loading
from dtprof.analyse.study import Study
from dtprof.plugins import loaded
from dtprof.protocols import Analysis
from dtprof.run import Run

ANALYSES: dict[str, Analysis] = {
    "accounting": accounting.analyse,
    "checkpoint": checkpoint.analyse,
    "comm": comm.analyse,
    "goodput": goodput.analyse,
    "gpu": gpu.analyse,
    "hangs": hangs.analyse,
    "host": host.analyse,
    "input": loading.analyse,
    "kernels": kernels.analyse,
    "lateness": lateness.analyse,
    "memory": memory.analyse,
    "moe": moe.analyse,
    "parallel": parallel.analyse,
    "phases": phases.analyse,
    "pipeline": pipeline.analyse,
    "stragglers": stragglers.analyse,
    "training": training.analyse,
    "waiting": waiting.analyse,
}


def study_of(run: Run) -> Study:
    """A study of ``run`` with the built-in analyses and those of plugins; a built-in name is never replaced."""
    extra = {p.name: p.value for p in loaded("analyses") if p.value is not None}
    return Study(run, {**extra, **ANALYSES})
