"""Steps for Nsight Systems: a range ``step`` per training step, in the NVTX domain ``dtprof``, its payload the number.

An empty range ``rank R of N`` before them says whose process it was.
Ranges are start/end ranges, which may begin and end inside anything else. Nothing happens where no tool is attached.
Where ``dtprof run --nsys`` asks for it (DTPROF_NSYS_CAPTURE), the steps of the capture are framed by cudaProfilerStart and
cudaProfilerStop, between which nsys then records.

Raw files
    none: what is recorded lies in the tool's own report
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.session import nvtx_domain
from dtprof.table import Table

CAPTURE_VARIABLE = "DTPROF_NSYS_CAPTURE"


class NsysCollector:
    """Two calls of NVTX per step."""

    name = "nsys"

    def __init__(self) -> None:
        self._nvtx: Any = None
        self._range: Any = None
        self._profiling = False
        self._capture = (-1, -1)

    def start(self, context: Context) -> None:
        """Begin the first step's range."""
        if not nvtx_domain.attached():
            context.status.idle = True
            return
        try:
            import nvtx
        except ImportError:
            context.status.miss("steps and ranges in the report of the tool that is attached: nvtx is not installed")
            return
        self._nvtx = nvtx
        if os.environ.get(CAPTURE_VARIABLE) == "1":
            self._capture = context.capture
        nvtx.end_range(nvtx.start_range(f"rank {context.rank} of {context.world_size}", domain=nvtx_domain.NAME))
        self._begin(context.first_step)

    def _begin(self, step: int) -> None:
        first, end = self._capture
        if not self._profiling and first <= step < end:
            self._profiling = _profiler("start")
        elif self._profiling and step >= end:
            self._profiling = not _profiler("stop")
        self._range = self._nvtx.start_range(message="step", domain=nvtx_domain.NAME, category="step", payload=step)

    def _end(self) -> None:
        if self._range is not None:
            self._nvtx.end_range(self._range)
            self._range = None

    def on_step(self, step: int) -> None:
        """End the step's range, begin the next one's."""
        if self._nvtx is not None:
            self._end()
            self._begin(step + 1)

    def stop(self) -> None:
        """End what is open."""
        if self._nvtx is not None:
            self._end()
        if self._profiling:
            self._profiling = not _profiler("stop")

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: the report is read by itself."""
        return {}


def _profiler(what: str) -> bool:
    """Call cudaProfilerStart or cudaProfilerStop; False where this process has no CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    getattr(torch.cuda.profiler, what)()
    return True
