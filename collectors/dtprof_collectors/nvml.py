"""The GPU beside the operators: utilisation, memory, clocks, power, temperature, throttling, errors, link traffic.

A daemon thread asks NVML once a second about the device of this process and no other. Nothing that NVML does reaches
the job: where there is none, where it refuses or fails half-way, what is missing is noted; where it hangs, the thread is
left behind. Options: ``interval_s`` (default 1), ``device`` (a UUID, where torch and CUDA_VISIBLE_DEVICES shall not decide).

Raw file
    nvml.jsonl      one ``NvmlLine`` per tick
Facts in part.json: ``device``, ``uuid``, ``nvml_index``, ``ordinal``, ``chosen_by``, ``driver``, ``pci``, … and
``unsupported``, what the device does not give. On a machine without NVML: ``nvml``, which says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtprof.epoch import epoch_ns
from dtprof.jsonl import Appender, Int32, Int64, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.session.guard import caught
from dtprof.table import Table
from dtprof_collectors import nvml_devices
from dtprof_collectors.nvml_readings import EVENT_REASONS, IDLE, RATES, REASONS, UNITS, Readings

FILE = "nvml.jsonl"
LIBRARY = "libnvidia-ml.so.1"
JOIN_S = 1.0
HANGS_AFTER_S = 10.0
_LONGEST_INTERVAL_S = 3600.0


class NvmlLine(msgspec.Struct, kw_only=True):
    """One tick: Unix ns, the process's number of the device, and what NVML gave (``nvml_readings.UNITS``)."""

    ts: Int64
    device: Int32
    values: dict[str, float]


class NvmlCollector:
    """Samples this process's device at 1 Hz."""

    name = "nvml"

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._notes: deque[tuple[str, Any]] = deque()
        self._stop = threading.Event()
        self._torch: tuple[int, str] | None = None
        self._asked_at: float | None = None
        self._unsupported: list[str] = []
        self._missed: set[str] = set()

    def start(self, context: Context) -> None:
        """Start the thread; NVML itself is loaded there, for loading it may hang too."""
        self._status = context.status
        self._status.sampled = True
        self._path = context.folder / FILE
        self._interval = min(max(float(context.options.get("interval_s", 1.0)), 0.05), _LONGEST_INTERVAL_S)
        self._uuid: str | None = context.options.get("device")
        self._thread = threading.Thread(target=self._run, name="dtprof-nvml", daemon=True)
        self._thread.start()

    def on_step(self, step: int) -> None:
        """Pass on what the thread has noted; ask torch, once it uses a device, which one that is."""
        if self._torch is None and self._uuid is None and self._thread is not None:
            self._torch = torch_device()
        self._pass_on()

    def _pass_on(self) -> None:
        while self._notes:
            key, value = self._notes.popleft()
            if key:
                self._status.facts[key] = value
                self._status.changed = True
            else:
                self._status.miss(value)
        asked = self._asked_at
        if asked is not None and time.monotonic() - asked > HANGS_AFTER_S:
            self._status.miss("NVML does not answer: no GPU counters from there on")

    def stop(self) -> None:
        """End the thread; one that hangs in NVML is left behind, and ends with the process."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join(JOIN_S)
        self._pass_on()
        if thread.is_alive():
            self._status.miss("NVML did not answer as the session ended: no GPU counters from there on")

    # -- the thread

    def _run(self) -> None:
        error = caught(self._load_and_sample)
        if isinstance(error, NoNvml):
            self._notes.append(("nvml", str(error)))
        elif error is not None:
            self._miss(f"GPU counters: {type(error).__name__}: {error}")

    def _load_and_sample(self) -> None:
        with self._asking():
            nvml = _load()
        self._sample(nvml)

    def _sample(self, nvml: Any) -> None:
        with self._asking():
            nvml.nvmlInit()
        lines = Appender(self._path, flush_s=0.0)
        try:
            self._tick_until_stopped(nvml, lines)
        finally:
            lines.close()
            with self._asking(), contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _tick_until_stopped(self, nvml: Any, lines: Appender) -> None:
        readings: Readings | None = None
        torch_said: tuple[int, str] | None = None
        why = ""
        due = time.monotonic()
        while not self._stop.is_set():
            began = time.thread_time_ns()
            with self._asking():
                if readings is None or torch_said != self._torch:
                    torch_said = self._torch
                    device, why = self._choose(nvml, torch_said)
                    readings = self._readings(nvml, device, readings)
                numbers = readings.read() if readings is not None else {}
            if numbers and readings is not None:
                lines.add(NvmlLine(ts=epoch_ns(), device=readings.device.ordinal, values=numbers))
            self._note_losses(readings)
            self._status.own_ns += time.thread_time_ns() - began
            if readings is not None and not readings:
                self._miss("NVML gives nothing more: no GPU counters from there on")
                return
            due = max(due + self._interval, time.monotonic())
            self._stop.wait(due - time.monotonic())
        if readings is None and why:
            self._miss(f"GPU counters: {why}")

    def _choose(self, nvml: Any, torch_said: tuple[int, str] | None) -> tuple[nvml_devices.Device | None, str]:
        if self._uuid is not None:
            found = nvml_devices.device_of_uuid(nvml, str(self._uuid))
            return found, f"the option device={self._uuid} names no device of this machine"
        if torch_said is not None:
            found = nvml_devices.device_of_torch(nvml, *torch_said)
            if found is not None:
                return found, ""
        return nvml_devices.device_of_environment(nvml, os.environ)

    def _readings(self, nvml: Any, device: nvml_devices.Device | None, before: Readings | None) -> Readings | None:
        if device is None:
            return before
        for key, value in nvml_devices.describe(nvml, device).items():
            self._notes.append((key, value))
        if before is not None and before.device.uuid == device.uuid:
            before.device = device
            return before
        return Readings(nvml, device)

    def _note_losses(self, readings: Readings | None) -> None:
        if readings is None:
            return
        if readings.unsupported != self._unsupported:
            self._unsupported = list(readings.unsupported)
            self._notes.append(("unsupported", self._unsupported))
        for name, why in readings.failed.items():
            self._miss(f"GPU counters: {name}: NVML failed ({why}); not recorded from there on")

    def _miss(self, text: str) -> None:
        if text not in self._missed:
            self._missed.add(text)
            self._notes.append(("", text))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self._asked_at = time.monotonic()
        try:
            yield
        finally:
            self._asked_at = None

    # -- at ingest

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``samples``: every reading; link traffic as a rate; each throttle reason that was ever active as 0 or 1."""
        lines, bad = read_lines(folder / FILE, NvmlLine)
        tables = {"samples": Table.from_rows("samples", list(sample_rows(lines)))}
        if bad:
            tables["quality"] = quality_rows([(FILE, "torn lines", bad, "those GPU counters are missing")])
        return tables


def sample_rows(lines: Sequence[NvmlLine]) -> Iterator[dict[str, Any]]:
    """Rows of ``samples`` in the order of the file. ``throttle_reasons`` counts those that slow the clocks; idle is none."""
    seen = 0
    for line in lines:
        seen |= int(line.values.get(EVENT_REASONS, 0))
    shown = {bit: name for bit, name in REASONS.items() if seen & bit}
    before: NvmlLine | None = None
    for line in lines:
        for key, unit in UNITS.items():
            if key in line.values:
                yield _sample(line, key, line.values[key], unit)
        if EVENT_REASONS in line.values:
            mask = int(line.values[EVENT_REASONS])
            yield _sample(line, "throttle_reasons", (mask & ~IDLE).bit_count(), "reasons")
            for bit, name in shown.items():
                yield _sample(line, f"throttle_{name}", bool(mask & bit), "active")
        if before is not None and before.device == line.device and line.ts > before.ts:
            yield from _rates(before, line)
        before = line


def _rates(before: NvmlLine, line: NvmlLine) -> Iterator[dict[str, Any]]:
    """Bytes per second since the last tick; none over a counter that was reset."""
    for counter, rate in RATES.items():
        moved = line.values.get(counter, float("nan")) - before.values.get(counter, float("nan"))
        if moved >= 0:
            yield _sample(line, rate, moved * 1e9 / (line.ts - before.ts), "bytes/s")


def _sample(line: NvmlLine, metric: str, value: float, unit: str) -> dict[str, Any]:
    return {"ts": line.ts, "metric": metric, "value": float(value), "unit": unit, "device": line.device}


class NoNvml(Exception):  # noqa: N818
    """This machine has no NVML, and that is nothing missing."""


def _load() -> Any:
    """pynvml; looks for the library first, for that is quicker than importing pynvml for nothing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise NoNvml("no NVIDIA driver on this machine") from None
    try:
        import pynvml
    except ImportError:
        raise RuntimeError("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
    return pynvml


def torch_device() -> tuple[int, str] | None:
    """Number and UUID of the device that torch uses now; None before it uses one. Creates no context."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    ordinal = int(cuda.current_device())
    uuid = getattr(cuda.get_device_properties(ordinal), "uuid", None)
    return None if uuid is None else (ordinal, str(uuid))
