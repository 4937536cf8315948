"""Memory of the process: allocator and resident bytes of every step, what the training state takes, and whose it is.

Raw file
    memory.jsonl    (fields: ``memory_lines``) ``counters`` of every step; ``state``, once an optimizer has stepped and after
                    the step behind the capture window: parameters (and buffers), gradients, optimizer state, DDP's
                    buckets, by module;
                    ``grown``, on CUDA: what each module's forward pass leaves allocated, in the step before the window

Gradients are summed as an optimizer begins its step, for most loops have freed them before the step ends. Nothing of the
job's is reset, no tensor is kept alive, and no tensor is read. Option: ``modules`` (False): ranges around the forward pass
of every module in the captured steps, by which the allocations of a trace with ``profile_memory`` are told apart.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dtprof.epoch import OFFSET_NS, epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.session.guard import Guard
from dtprof.table import Table
from dtprof_collectors import memory_modules, memory_state
from dtprof_collectors.memory_lines import Counters, Grown, Line, State

FILE = "memory.jsonl"
FLUSH_S = 4.0
WAIT_STEPS = 20
_STATM = "/proc/self/statm"
_PAGE = resource.getpagesize()
_METRICS = (
    ("rss", "bytes"), ("rss_peak", "bytes"), ("allocated", "bytes"), ("allocated_peak", "bytes"), ("reserved", "bytes"),
    ("active", "bytes"), ("inactive_split", "bytes"), ("retries", "retries"), ("ooms", "errors"),
)  # fmt: skip
_PHASES = {"gradient": "backward", "optimizer": "optimizer", "activation": "forward", "communication": "backward"}


class _Reading(NamedTuple):
    """Counters at the end of a step, as they were given; ``at`` in ns of the monotonic clock."""

    step: int
    at: int
    usage: resource.struct_rusage
    statm: bytes | None
    cuda: tuple[Mapping[str, Any], int] | None


class MemoryCollector:
    """About 20 us per step, for which nothing is in the caches; some milliseconds once or twice, when the state is counted."""

    name = "memory"

    def __init__(self) -> None:
        self._lines: Appender | None = None
        self._statm: int | None = None
        self._hook: Any = None
        self._hooks: memory_modules.Hooks | None = None
        self._gradients: dict[tuple[int, int], int] = {}
        self._stepped = self._taken = False
        self._guard = Guard()

    def start(self, context: Context) -> None:
        """Open the file; listen for the first optimizer step."""
        self._status = context.status
        self._status.sampled = True
        self._modules = bool(context.options.get("modules", False))
        self._first, self._end = context.capture
        self._first_step = context.first_step
        self._lines = Appender(context.folder / FILE, flush_s=FLUSH_S, make=_made)
        with contextlib.suppress(OSError):
            self._statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        if self._statm is None:
            context.status.miss("resident memory of each step: this system does not tell")
        self._listen()
        self._around(context.first_step)

    def on_step(self, step: int) -> None:
        """Read the counters; count the state when it is time; hook the modules before a step that needs it."""
        if self._lines is None:
            return
        self._lines.add(self._read(step))
        if self._taken and self._hooks is None and not self._first - 1 <= step + 1 <= self._end + 1:
            return
        self._listen()
        self._around(step + 1)
        overdue = step == self._first_step + WAIT_STEPS
        if (not self._taken and (self._stepped or overdue)) or step == self._end > 0:
            self._take(step)
        elif step == self._end - 1:
            self._stepped = self._taken = False
            self._listen()

    def _listen(self) -> None:
        """Until the state is counted, see every optimizer as it steps."""
        module: Any = sys.modules.get("torch.optim.optimizer")
        if self._hook is None and not self._taken and hasattr(module, "register_optimizer_step_pre_hook"):
            self._hook = module.register_optimizer_step_pre_hook(self._on_optimizer)

    def _on_optimizer(self, optimizer: Any, *_: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        began = time.perf_counter_ns()
        self._stepped = True
        if not self._guard.call("memory", "optimizer", -1, self._add_gradients, optimizer):
            self._status.miss("gradients: some could not be counted")
        self._status.own_ns += time.perf_counter_ns() - began

    def _add_gradients(self, optimizer: Any) -> None:
        self._gradients.update(memory_state.gradients_of(optimizer))

    def _read(self, step: int) -> _Reading:
        cuda = initialized_cuda()
        return _Reading(
            step,
            time.perf_counter_ns(),
            resource.getrusage(resource.RUSAGE_SELF),
            None if self._statm is None else os.pread(self._statm, 128, 0),
            None if cuda is None else (cuda.memory_stats_as_nested_dict(), cuda.current_device()),
        )

    def _take(self, step: int) -> None:
        self._taken = True
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        if "torch" not in sys.modules or self._lines is None:
            return
        rows = memory_state.take(self._gradients)
        self._lines.add(State(step=step, ts=epoch_ns(), rows=rows))
        if not self._stepped:
            self._status.miss(f"gradients and optimizer state: no optimizer of torch stepped up to step {step}")
        self._gradients.clear()

    def _around(self, coming: int) -> None:
        """Step ``coming`` begins: hook the modules for it, or take the hooks away."""
        growth = self._hooks
        if isinstance(growth, memory_modules.Growth):
            self._grown(coming - 1, growth)
        wanted: memory_modules.Hooks | None = None
        if self._modules and self._first <= coming < self._end:
            wanted = self._hooks or memory_modules.Ranges()
        elif coming == self._first - 1 and (cuda := initialized_cuda()) is not None:
            wanted = memory_modules.Growth(cuda.memory_allocated)
        if wanted is self._hooks:
            return
        self._unhook()
        if wanted is None or "torch" not in sys.modules:
            return
        if memory_modules.compiled():
            self._status.miss("memory by module: torch.compile is in use, and hooks would have it compile again")
            return
        self._hooks = wanted
        wanted.install()

    def _grown(self, step: int, growth: memory_modules.Growth) -> None:
        cuda = initialized_cuda()
        rows = [(path, cuda.current_device(), count) for path, count in growth.largest.items() if count > 0] if cuda else []
        if rows and self._lines is not None:
            self._lines.add(Grown(step=step, ts=epoch_ns(), rows=rows))

    def _unhook(self) -> None:
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.remove()

    def stop(self) -> None:
        """Take all hooks away, close the file."""
        self._unhook()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        fd, self._statm = self._statm, None
        if fd is not None:
            os.close(fd)
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``metrics``: ``memory_*`` of each step; ``memory``: the state and the growth by module."""
        lines, bad = read_lines(folder / FILE, Line)
        metrics = [row for line in lines if isinstance(line, Counters) for row in metric_rows(line)]
        rows = [row for line in lines if not isinstance(line, Counters) for row in memory_rows(line)]
        tables = {"metrics": Table.from_rows("metrics", metrics), "memory": Table.from_rows("memory", rows)}
        if bad:
            tables["quality"] = quality_rows([(FILE, "torn lines", bad, "those readings are missing")])
        return tables


def _made(row: _Reading | Line) -> Line:
    return _counters(row) if isinstance(row, _Reading) else row


def _counters(reading: _Reading) -> Counters:
    line = Counters(step=reading.step, ts=reading.at + OFFSET_NS, rss_peak=reading.usage.ru_maxrss * 1024)
    if reading.statm is not None:
        line.rss = int(reading.statm.split()[1]) * _PAGE
    if reading.cuda is not None:
        allocator_counters(line, *reading.cuda)
    return line


def initialized_cuda() -> Any:
    """torch.cuda where the job uses it, else None: asking must not make a context."""
    torch = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def allocator_counters(line: Counters, stats: Mapping[str, Any], device: int) -> None:
    """Fill in what torch.cuda.memory_stats_as_nested_dict() says: "allocated_bytes" -> "all" -> "current", and so on."""

    def of(name: str, what: str) -> int | None:
        value = stats.get(name, {}).get("all", {}).get(what)
        return None if value is None else int(value)

    line.device = device
    line.allocated, line.allocated_peak = of("allocated_bytes", "current"), of("allocated_bytes", "peak")
    line.reserved, line.active = of("reserved_bytes", "current"), of("active_bytes", "current")
    line.inactive_split = of("inactive_split_bytes", "current")
    line.retries, line.ooms = stats.get("num_alloc_retries"), stats.get("num_ooms")


def metric_rows(line: Counters) -> Iterator[dict[str, Any]]:
    """One row per counter that was read."""
    for field, unit in _METRICS:
        value = getattr(line, field)
        if value is not None:
            yield {"step": line.step, "metric": f"memory_{field}", "value": float(value), "unit": unit}


def memory_rows(line: State | Grown) -> Iterator[dict[str, Any]]:
    """One row per category, module and device; the phase is that in which such memory comes into being."""
    rows = line.rows if isinstance(line, State) else [("activation", module, device, n) for module, device, n in line.rows]
    for category, module, device, count in rows:
        yield {
            "ts": line.ts, "device": device, "category": category, "bytes": count, "phase": _PHASES.get(category),
            "module": module,
        }  # fmt: skip
