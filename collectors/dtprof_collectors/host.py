"""The host beside the operators: CPU time, context switches, garbage collection, load.

Raw file
    host.jsonl      one ``HostLine`` per step, written as it ends
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtprof.epoch import OFFSET_NS, epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "host.jsonl"
PAUSE_NS = 100_000
_CALLBACK_NS = 400
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_COUNTERS = (
    ("process_cpu_ns", "process_cpu", "ns"),
    ("thread_cpu_ns", "thread_cpu", "ns"),
    ("voluntary", "voluntary_switches", "switches"),
    ("involuntary", "involuntary_switches", "switches"),
    ("major_faults", "major_faults", "faults"),
    ("gc_ns", "gc_time", "ns"),
    ("run_delay_ns", "run_delay", "ns"),
)
_SCHEDSTAT = "/proc/thread-self/schedstat"


class HostLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step. All but ``ts`` (Unix ns), ``pauses`` and ``load_1m`` are differences over the step.

    Context switches, CPU time ``thread_cpu_ns`` and ``run_delay_ns`` are the training thread's; the last is the time in
    which it could have run but had no core (Linux: /proc/thread-self/schedstat; null elsewhere). ``pauses`` are garbage
    collections of at least 0.1 ms: (start in Unix ns, ns, generation). ``load_1m`` is read at most once a second.
    """

    step: int
    ts: int
    process_cpu_ns: int
    thread_cpu_ns: int
    voluntary: int
    involuntary: int
    major_faults: int
    gc_ns: int
    gc_count: int
    run_delay_ns: int | None = None
    pauses: list[tuple[int, int, int]] = []
    load_1m: float | None = None


class HostCollector:
    """A few counters per step: about 10 us."""

    name = "host"

    def __init__(self) -> None:
        self._pauses: deque[tuple[int, int, int]] = deque(maxlen=256)
        self._gc_began = self._gc_ns = self._gc_count = 0
        self._load_at = 0.0
        self._lines: Appender | None = None
        self._schedstat: int | None = None

    def start(self, context: Context) -> None:
        """Open the file, listen to the garbage collector."""
        self._status = context.status
        self._lines = Appender(context.folder / FILE)
        with contextlib.suppress(OSError):
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        if self._schedstat is None:
            context.status.miss("how long the training thread waits for a core: this system does not tell")
        self._before = self._counters()
        self._delay = self._run_delay()
        gc.callbacks.append(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._gc_began = now
            return
        if not self._gc_began:  # a collection was under way as we began
            return
        pause = now - self._gc_began
        self._gc_ns += pause
        self._gc_count += 1
        self._status.own_ns += _CALLBACK_NS
        if pause >= PAUSE_NS:
            self._pauses.append((self._gc_began + OFFSET_NS, pause, info["generation"]))

    def _counters(self) -> dict[str, int]:
        usage = resource.getrusage(_THREAD)
        return {
            "process_cpu_ns": time.process_time_ns(),
            "thread_cpu_ns": time.thread_time_ns(),
            "voluntary": usage.ru_nvcsw,
            "involuntary": usage.ru_nivcsw,
            "major_faults": usage.ru_majflt,
            "gc_ns": self._gc_ns,
            "gc_count": self._gc_count,
        }

    def _run_delay(self) -> int | None:
        if self._schedstat is None:
            return None
        return int(os.pread(self._schedstat, 64, 0).split()[1])

    def on_step(self, step: int) -> None:
        """Write what the step used."""
        if self._lines is None:
            return
        now = self._counters()
        used: dict[str, Any] = {key: now[key] - self._before[key] for key in now}
        line = HostLine(step=step, ts=epoch_ns(), **used)
        delay = self._run_delay()
        if delay is not None and self._delay is not None:
            line.run_delay_ns = delay - self._delay
        self._delay = delay
        if self._pauses:
            line.pauses = list(self._pauses)
            self._pauses.clear()
        if time.monotonic() - self._load_at >= 1.0:
            self._load_at = time.monotonic()
            line.load_1m = os.getloadavg()[0]
        self._lines.add(line)
        self._before = now

    def stop(self) -> None:
        """Close the file, leave the garbage collector alone."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        fd, self._schedstat = self._schedstat, None
        if fd is not None:
            os.close(fd)
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``metrics``: what each step used; ``samples``: the load, and one ``gc_pause`` per pause at its start."""
        lines, bad = read_lines(folder / FILE, HostLine)
        samples: list[dict[str, Any]] = []
        metrics: list[dict[str, Any]] = []
        for line in lines:
            for ts, pause, _generation in line.pauses:
                samples.append({"ts": ts, "metric": "gc_pause", "value": float(pause), "unit": "ns", "device": -1})
            if line.load_1m is not None:
                samples.append({"ts": line.ts, "metric": "load_1m", "value": line.load_1m, "unit": "processes", "device": -1})
            for field, metric, unit in _COUNTERS:
                value = getattr(line, field)
                if value is not None:
                    metrics.append({"step": line.step, "metric": metric, "value": float(value), "unit": unit})
        samples.sort(key=lambda s: s["ts"])
        tables = {"samples": Table.from_rows("samples", samples), "metrics": Table.from_rows("metrics", metrics)}
        if bad:
            tables["quality"] = quality_rows([(FILE, "torn lines", bad, "those readings are missing")])
        return tables
