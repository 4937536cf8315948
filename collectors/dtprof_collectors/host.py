"""The host beside the operators: CPU time, context switches, garbage collection, load.

Raw file
    host.jsonl      one line per step, written as it ends: step, ts (Unix ns), process_cpu_ns, thread_cpu_ns (the training
                    thread), voluntary and involuntary (context switches of that thread), major_faults, gc_ns and gc_count
                    (collections during the step), pauses [[ts, dur_ns, generation], …] of at least 0.1 ms, and load_1m
                    (at most once a second). All but ts, pauses and load_1m are differences over the step.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtprof.epoch import OFFSET_NS, epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "host.jsonl"
PAUSE_NS = 100_000
_CALLBACK_NS = 400
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_COUNTERS = {
    "process_cpu_ns": ("process_cpu", "ns"),
    "thread_cpu_ns": ("thread_cpu", "ns"),
    "voluntary": ("voluntary_switches", "switches"),
    "involuntary": ("involuntary_switches", "switches"),
    "major_faults": ("major_faults", "faults"),
    "gc_ns": ("gc_time", "ns"),
    "load_1m": ("load_1m", "processes"),
}


class HostCollector:
    """A few counters per step: about 10 us."""

    name = "host"

    def __init__(self) -> None:
        self._pauses: deque[tuple[int, int, int]] = deque(maxlen=256)
        self._gc_began = self._gc_ns = self._gc_count = 0
        self._load_at = 0.0
        self._lines: Appender | None = None

    def start(self, context: Context) -> None:
        """Open the file, listen to the garbage collector."""
        self._status = context.status
        self._lines = Appender(context.folder / FILE)
        self._before = self._counters()
        gc.callbacks.append(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._gc_began = now
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

    def on_step(self, step: int) -> None:
        """Write what the step used."""
        if self._lines is None:
            return
        now = self._counters()
        row: dict[str, Any] = {"step": step, "ts": epoch_ns()}
        row.update({key: now[key] - self._before[key] for key in now})
        if self._pauses:
            row["pauses"] = list(self._pauses)
            self._pauses.clear()
        if time.monotonic() - self._load_at >= 1.0:
            self._load_at = time.monotonic()
            row["load_1m"] = os.getloadavg()[0]
        self._lines.add(row)
        self._before = now

    def stop(self) -> None:
        """Close the file, leave the garbage collector alone."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``samples``: one reading per counter and step at the step's end, and one ``gc_pause`` per pause at its start."""
        rows, bad = read_lines(folder / FILE)
        samples: list[dict[str, Any]] = []
        for row in rows:
            for ts, pause, _generation in row.get("pauses", ()):
                samples.append({"ts": ts, "metric": "gc_pause", "value": float(pause), "unit": "ns", "device": -1})
            for key, (metric, unit) in _COUNTERS.items():
                if key in row:
                    samples.append({"ts": row["ts"], "metric": metric, "value": float(row[key]), "unit": unit, "device": -1})
        samples.sort(key=lambda s: s["ts"])
        tables = {"samples": Table.from_rows("samples", samples)}
        if bad:
            tables["quality"] = quality_rows([(FILE, "torn lines", bad, "those readings are missing")])
        return tables
