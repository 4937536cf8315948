"""The operators of the captured steps, by torch.profiler.

Raw file
    trace.json.gz   Kineto's Chrome trace of the captured steps: CPU operators and, where there is a device, its kernels,
                    copies and synchronisations; a user annotation ``ProfilerStep#k`` covers step k as a whole, with the
                    session's own number k. The file appears by renaming, complete and checked, or not at all.
Facts in part.json
    prepare_ms, start_ms, stop_ms, export_ms   what the loop waited for, at the ends of the steps around the capture
    write_ms        compressing and checking, in the background
    exported_at_step, bytes, operators, steps [first, last] complete in the trace

The profiler is prepared one step before the window, so that its own warm-up falls into a step that is not recorded, and
runs from the end of step A-1 to the end of step B-1. The trace is exported to a local temporary folder at the end of the
last step and compressed into the part folder by a background thread: a slow shared disk does not stop training.

The job's own torch.profiler has the right of way: where one is prepared or running this one steps aside, and where one is
begun during the window this one ends first and keeps what it has. (Two at once end each other, and exporting the one that
was ended kills the process.)
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.table import Table

TRACE = "trace.json.gz"
WAIT_S = 120.0


class TorchProfilerCollector:
    """Records the capture window. Options: record_shapes (True), with_stack, profile_memory, with_flops (False)."""

    name = "torch_profiler"

    def __init__(self) -> None:
        self._profiler: Any = None
        self._mark: Any = None
        self._watch: _ForeignProfilers | None = None
        self._writer: threading.Thread | None = None
        self._first_traced = self._last = -1

    def start(self, context: Context) -> None:
        """Remember the window; begin at once if it starts with the next step."""
        self._folder, self._status, self._options = context.folder, context.status, dict(context.options)
        self._first, self._end = context.capture
        self._thread = threading.get_ident()
        if self._first >= 0:
            self._between(context.first_step)

    def on_step(self, step: int) -> None:
        """Between step ``step`` and the next: prepare, begin, mark or end, as the window says."""
        if self._first >= 0 and self._first - 2 <= step < self._end:
            self._close_mark()
            self._last = step
            self._between(step + 1)

    def _between(self, coming: int) -> None:
        if self._first - 1 <= coming < self._end and self._profiler is None and self._watch is None:
            self._prepare(coming)
        if coming == self._first:
            self._begin(coming)
        elif coming == self._end:
            self._finish()
        if self._status.tracing:
            self._open_mark(coming)

    def _prepare(self, coming: int) -> None:
        if coming > self._first:
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        self._watch = _ForeignProfilers(self._give_way)
        if self._watch.any_now():
            self._status.miss("trace: the job's own torch.profiler is in use; it has the right of way")
            return
        activities = [ProfilerActivity.CPU]
        extra: dict[str, Any] = {}
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            extra["experimental_config"] = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
        wanted: dict[str, Any] = {"record_shapes": True, "with_stack": False, "profile_memory": False, "with_flops": False}
        wanted.update({k: v for k, v in self._options.items() if k in wanted})
        self._profiler = profile(activities=activities, **wanted, **extra)
        self._timed("prepare_ms", self._profiler.prepare_trace)
        self._watch.begin(self._profiler)

    def _begin(self, coming: int) -> None:
        if self._profiler is None:
            return
        self._timed("start_ms", self._profiler.start_trace)
        let_forked_children_exit()
        if threading.current_thread() is not threading.main_thread():
            self._status.facts["note"] = (
                "recording begins outside the main thread; torch may print 'External init callback must run in same thread "
                "as registerClient', which is harmless"
            )
        self._thread = threading.get_ident()
        self._first_traced = coming
        self._status.tracing = True

    def _open_mark(self, step: int) -> None:
        from torch.profiler import record_function

        self._mark = record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()

    def _close_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _finish(self) -> None:
        """Stop, and export what this thread has recorded; exporting what another one has kills the process."""
        from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

        profiler, self._profiler = self._profiler, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
        if profiler is None or not self._status.tracing:
            return
        self._status.tracing = False
        ours = _profiler_enabled()
        # one that is left running, in whatever thread, kills the process when it ends
        self._timed("stop_ms", profiler.stop_trace)
        if not ours:
            self._status.miss("trace: lost, for it was begun in another thread than the one that ended it")
            return
        local = Path(tempfile.mkdtemp(prefix="dtprof-"))
        self._timed("export_ms", profiler.export_chrome_trace, str(local / "trace.json"))
        known = {"exported_at_step": self._last, "steps": [self._first_traced, self._last]}
        self._status.facts.update(known, bytes=None, operators=None, write_ms=None)
        other_thread = threading.get_ident() != self._thread
        self._writer = threading.Thread(target=self._write, args=(local, other_thread), name="dtprof-trace", daemon=True)
        self._writer.start()

    def _write(self, local: Path, other_thread: bool) -> None:
        """In the background: compress, check, rename; a failure is noted and leaves no file."""
        began = time.perf_counter()
        try:
            size, operators = compress(local / "trace.json", self._folder / TRACE)
            self._status.facts.update(bytes=size, operators=operators)
            if not operators:
                why = (
                    "the loop runs in another thread than the one in which recording began"
                    if other_thread
                    else "no reason known"
                )
                self._status.miss(f"trace: no operator was recorded ({why}); its idle time means nothing")
        except Exception as error:  # noqa: BLE001 - this thread has nobody to raise to
            self._status.miss(f"trace: not written ({type(error).__name__}: {error})")
        finally:
            self._status.facts["write_ms"] = (time.perf_counter() - began) * 1e3
            self._status.changed = True
            shutil.rmtree(local, ignore_errors=True)

    def _give_way(self) -> None:
        """The job begins a profiler of its own: end ours first."""
        self._status.miss("trace: cut short, for the job began its own torch.profiler, which has the right of way")
        self._mark = None
        self._finish()
        self._first = -1

    def stop(self) -> None:
        """End an unfinished capture, and wait for the file."""
        self._close_mark()
        self._finish()
        if self._writer is not None:
            self._writer.join(WAIT_S)
            if self._writer.is_alive():
                self._status.miss(f"trace: still being written after {WAIT_S:.0f} s; not waited for")

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: the trace is read by the Kineto reader."""
        return {}

    def _timed(self, fact: str, function: Callable[..., Any], *args: Any) -> None:
        began = time.perf_counter()
        function(*args)
        self._status.facts[fact] = (time.perf_counter() - began) * 1e3


_children_may_exit = False


def let_forked_children_exit() -> None:
    """Keep children that are forked from now on from hanging as they exit.

    Once a process has used torch.profiler, a static destructor of torch's waits for a thread that a forked child does not
    have. Children of multiprocessing leave by ``os._exit`` and never come there; others now leave before the destructors,
    after all exit handlers of Python, with their own exit status (glibc's ``on_exit`` hands it on).
    """
    global _children_may_exit
    if not _children_may_exit:
        _children_may_exit = True
        os.register_at_fork(after_in_child=_exit_before_destructors)


def _exit_before_destructors() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


class _ForeignProfilers:
    """Watches for profilers of the job from the moment ours is prepared until it ends."""

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        import torch.autograd.profiler as module

        self._class: Any = module.profile
        self._module: Any = module
        self._on_foreign = on_foreign
        self._original: Any = None

    def any_now(self) -> bool:
        """Is one running, or prepared and about to run?"""
        if self._module._is_profiler_enabled:
            return True
        objects = (o for o in gc.get_referrers(self._class) if isinstance(o, self._class))
        return any(o.entered and o.enabled and o.kineto_results is None for o in objects)

    def begin(self, ours: Any) -> None:
        """From now on call ``on_foreign`` before any other profiler is prepared."""
        original = self._original = self._class._prepare_trace
        mine = ours.profiler

        def prepare(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if profiler is not mine and self._original is not None:
                self._on_foreign()
            return original(profiler, *args, **kwargs)

        self._class._prepare_trace = self._installed = prepare

    def end(self) -> None:
        """Stop watching."""
        original, self._original = self._original, None
        if original is not None and self._class._prepare_trace is self._installed:
            self._class._prepare_trace = original


def compress(raw: Path, target: Path) -> tuple[int, int]:
    """Compress a Chrome trace to ``target`` (by renaming), after checking both; returns (bytes, number of operators).

    Raises ValueError where the JSON does not end as it began, or where the compressed file does not read back whole.
    """
    from isal import igzip

    open_gz: Any = igzip.open
    size = raw.stat().st_size
    operators = 0
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with raw.open("rb") as source, open_gz(temporary, "wb", compresslevel=1) as sink:
            head, tail = source.read(64).lstrip(), b""
            source.seek(0)
            while block := source.read(1 << 20):
                operators += block.count(b'"cat": "cpu_op"')
                tail = (tail + block)[-64:]
                sink.write(block)
        if not head.startswith(b"{") or not tail.rstrip().endswith(b"}"):
            raise ValueError(f"{size} bytes exported, but the text is cut off")
        back = 0
        with open_gz(temporary, "rb") as check:
            while block := check.read(1 << 20):
                back += len(block)
        if back != size:
            raise ValueError(f"{back} of {size} bytes read back")
        written = temporary.stat().st_size
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return written, operators
