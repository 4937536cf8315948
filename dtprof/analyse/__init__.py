"""Analyses: one file per question, each a function from a study to a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtprof.analyse import (
    accounting,
    checkpoint,
    comm,
    compute,
    compute_attention,
    compute_compile,
    compute_mfu,
    fsdp,
    goodput,
    gpu,
    hangs,
    host,
    kernels,
    lateness,
    links,
    memory,
    memory_room,
    moe,
    parallel,
    parameter_server,
    phases,
    pipeline,
    stragglers,
    stragglers_time,
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
    "attention": compute_attention.analyse,
    "checkpoint": checkpoint.analyse,
    "comm": comm.analyse,
    "compile": compute_compile.analyse,
    "compute": compute.analyse,
    "fsdp": fsdp.analyse,
    "goodput": goodput.analyse,
    "gpu": gpu.analyse,
    "hangs": hangs.analyse,
    "host": host.analyse,
    "input": loading.analyse,
    "kernels": kernels.analyse,
    "lateness": lateness.analyse,
    "links": links.analyse,
    "memory": memory.analyse,
    "moe": moe.analyse,
    "moving_stragglers": stragglers_time.analyse,
    "parallel": parallel.analyse,
    "memory_room": memory_room.analyse,
    "mfu": compute_mfu.analyse,
    "parameter_server": parameter_server.analyse,
    "phases": phases.analyse,
    "pipeline": pipeline.analyse,
    "stragglers": stragglers.analyse,
    "training": training.analyse,
    "waiting": waiting.analyse,
}


def study_of(run: Run, known: Mapping[str, Any] | None = None) -> Study:
    """A study of ``run`` with the built-in analyses and those of plugins; a built-in name is never replaced.

    ``known`` are results that are not computed again.
    """
    extra = {p.name: p.value for p in loaded("analyses") if p.value is not None}
    return Study(run, {**extra, **ANALYSES}, known)
