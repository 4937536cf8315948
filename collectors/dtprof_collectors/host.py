"""The host beside the operators: CPU time, context switches, garbage collection, load.

Raw file
    host.jsonl      one ``HostLine`` per step, written every four seconds
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dtprof.epoch import OFFSET_NS
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "host.jsonl"
FLUSH_S = 4.0
PAUSE_NS = 100_000
LOAD_NS = 1_000_000_000
MOST_PAUSES = 256
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
    """The end of a step. All but ``ts`` (Unix ns), ``pauses`` and ``load_1m`` are differences over ``steps`` steps: one at the
    beginning and around captures, otherwise those since the last reading, half a second ago.

    Context switches, CPU time ``thread_cpu_ns`` and ``run_delay_ns`` are the training thread's; the last is the time in
    which it could have run but had no core (Linux: /proc/thread-self/schedstat; null elsewhere). ``pauses`` are garbage
    collections of at least 0.1 ms: (start in Unix ns, ns, generation). ``load_1m`` is read at most once a second.
    """

    step: int
    ts: int
    steps: int = 1
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


class _Reading(NamedTuple):
    """Counters at the end of a step, as the system gives them; times in ns."""

    step: int
    at: int
    process_cpu: int
    thread_cpu: int
    usage: resource.struct_rusage
    gc_ns: int
    gc_count: int
    schedstat: bytes | None
    pauses: list[tuple[int, int, int]]


class HostCollector:
    """A few counters per step. Reading them is all that a step does: their code has left the caches while the job computed,
    so the lines are made as they are written.
    """

    name = "host"

    def __init__(self) -> None:
        self._pauses: list[tuple[int, int, int]] = []
        self._gc_began = self._gc_ns = self._gc_count = 0
        self._lines: Appender | None = None
        self._schedstat: int | None = None
        self._load_at = 0

    def start(self, context: Context) -> None:
        """Open the file, listen to the garbage collector."""
        self._status = context.status
        self._status.sampled = True
        self._lines = Appender(context.folder / FILE, flush_s=FLUSH_S, make=self._line)
        with contextlib.suppress(OSError):
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        if self._schedstat is None:
            context.status.miss("how long the training thread waits for a core: this system does not tell")
        self._before = self._read(context.first_step - 1)
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
        if pause >= PAUSE_NS and len(self._pauses) < MOST_PAUSES:
            self._pauses.append((self._gc_began + OFFSET_NS, pause, info["generation"]))

    def _read(self, step: int) -> _Reading:
        delay = None if self._schedstat is None else os.pread(self._schedstat, 64, 0)
        pauses, self._pauses = self._pauses, []
        return _Reading(
            step, time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns(), resource.getrusage(_THREAD),
            self._gc_ns, self._gc_count, delay, pauses,
        )  # fmt: skip

    def on_step(self, step: int) -> None:
        """Read what the step used."""
        if self._lines is not None:
            self._lines.add(self._read(step))

    def _line(self, now: _Reading) -> HostLine:
        """What was used since the reading before."""
        before, self._before = self._before, now
        line = HostLine(
            step=now.step,
            ts=now.at + OFFSET_NS,
            steps=max(now.step - before.step, 1),
            process_cpu_ns=now.process_cpu - before.process_cpu,
            thread_cpu_ns=now.thread_cpu - before.thread_cpu,
            voluntary=now.usage.ru_nvcsw - before.usage.ru_nvcsw,
            involuntary=now.usage.ru_nivcsw - before.usage.ru_nivcsw,
            major_faults=now.usage.ru_majflt - before.usage.ru_majflt,
            gc_ns=now.gc_ns - before.gc_ns,
            gc_count=now.gc_count - before.gc_count,
            pauses=now.pauses,
        )
        if now.schedstat is not None and before.schedstat is not None:
            line.run_delay_ns = int(now.schedstat.split()[1]) - int(before.schedstat.split()[1])
        if now.at - self._load_at >= LOAD_NS:
            self._load_at, line.load_1m = now.at, os.getloadavg()[0]
        return line

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
        """``metrics``: what a step used, where several were read together their mean, at the last one; ``samples``: the load,
        and one ``gc_pause`` per pause at its start.
        """
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
                    metrics.append({"step": line.step, "metric": metric, "value": value / line.steps, "unit": unit})
        samples.sort(key=lambda s: s["ts"])
        tables = {"samples": Table.from_rows("samples", samples), "metrics": Table.from_rows("metrics", metrics)}
        if bad:
            tables["quality"] = quality_rows([(FILE, "torn lines", bad, "those readings are missing")])
        return tables
