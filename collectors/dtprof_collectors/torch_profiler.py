"""The operators of the captured steps, by torch.profiler.

Raw files
    trace.json.gz       Kineto's Chrome trace of the steps of the configured window: CPU operators and, where there is a
                        device, its kernels, copies and synchronisations; a user annotation ``ProfilerStep#k`` covers step k
                        as a whole, with the session's own number k. A file appears by renaming, complete and checked, or not
                        at all.
    trace-0001.json.gz  the same for the first window that was asked for while the job ran, and so on
    trace-job-0001.json what the job's own torch.profiler exported first (a hard link), and so on
Facts in part.json
    prepare_ms, start_ms, stop_ms, export_ms   what the loop waited for, at the ends of the steps around the capture
    write_ms        compressing and checking, in the background
    file, number, exported_at_step, bytes, operators, steps [first, last] complete in the trace
    windows         these facts of every window in turn; those above are the newest window's
    limits          {windows_kept, trace_bytes, captured_steps}: a ring of the newest later windows, and a cap on all traces
    dropped         names of traces that were deleted to stay within these
    job_traces      {path, file, bytes, problem} of every export of the job's own profiler

The profiler is prepared one step before a window, so that its own warm-up falls into a step that is not recorded, and
runs from the end of step A-1 to the end of step B-1. The trace is exported to a local temporary folder at the end of the
last step (torch holds the interpreter while it does: this is what the loop waits for) and compressed and checked
by a background thread: a slow shared disk does not stop training. The end of the session waits STOP_S seconds for that
thread, so that no other rank waits longer in its next collective; the end of the process waits WAIT_S.

The job's own torch.profiler has the right of way: where one is prepared or running this one steps aside, and where one is
begun during the window this one ends first and keeps what it has. (Two at once end each other, and exporting the one that
was ended kills the process.) What the job's profiler exports while the session runs is read later in place of ours.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtprof.protocols import Context, Window
from dtprof.session.guard import caught
from dtprof.table import Table
from dtprof_collectors.torch_profiler_files import CAP_BYTES, KEPT_WINDOWS, compress, prune, trace_name
from dtprof_collectors.torch_profiler_foreign import ForeignProfilers, JobExports

STOP_S, WAIT_S = 2.0, 120.0
_WHAT = {"record_shapes": True, "with_stack": False, "profile_memory": False, "with_flops": False}


class TorchProfilerCollector:
    """Records the capture windows. Options: record_shapes (True), with_stack, profile_memory, with_flops (False), keep (8)
    later windows, cap_bytes (4 GiB) of traces.
    """

    name = "torch_profiler"

    def __init__(self) -> None:
        self._profiler: Any = None
        self._mark: Any = None
        self._watch: ForeignProfilers | None = None
        self._exports: JobExports | None = None
        self._writers: list[threading.Thread] = []
        self._window = Window()
        self._told: dict[str, Any] = {}
        self._first_traced = self._last = self._given_up = -1

    def start(self, context: Context) -> None:
        """Remember the window; begin at once if it starts with the next step."""
        self._folder, self._status, self._options = context.folder, context.status, dict(context.options)
        self._status.sampled = True
        self._window = context.window
        self._thread = threading.get_ident()
        self._keep = int(self._options.get("keep", KEPT_WINDOWS))
        self._cap = int(self._options.get("cap_bytes", CAP_BYTES))
        self._status.facts["limits"] = {"windows_kept": self._keep, "trace_bytes": self._cap}
        self._exports = JobExports(context.folder, self._exported)
        self._exports.begin()
        if self._window.first >= 0:
            self._between(context.first_step)

    def on_step(self, step: int) -> None:
        """Between step ``step`` and the next: prepare, begin, mark or end, as the window says."""
        if self._exports is not None:
            self._exports.begin()
        window = self._window
        if window.first >= 0 and window.first - 2 <= step < window.end and window.number != self._given_up:
            self._close_mark()
            self._last = step
            self._between(step + 1)

    def _between(self, coming: int) -> None:
        window = self._window
        if window.first - 1 <= coming <= window.first and self._profiler is None and self._watch is None:
            self._prepare()
        if coming == window.first:
            self._begin(coming)
        elif coming == window.end:
            self._finish()
        if self._status.tracing:
            self._open_mark(coming)

    def _prepare(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        self._told = {"number": self._window.number}
        self._watch = ForeignProfilers(self._give_way)
        if self._watch.any_now():
            self._status.miss("trace: the job's own torch.profiler is in use; it has the right of way")
            return
        activities = [ProfilerActivity.CPU]
        extra: dict[str, Any] = {}
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            extra["experimental_config"] = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
        wanted = {**_WHAT, **{k: v for k, v in self._options.items() if k in _WHAT}}
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
        if profiler is not None and not self._status.tracing and profiler.profiler is not None:
            # prepared and given up: should the object live on, nobody must take it for one that is about to run
            profiler.profiler.entered = False
        if profiler is None or not self._status.tracing:
            return
        self._status.tracing = False
        ours = _profiler_enabled()
        # one that is left running, in whatever thread, kills the process when it ends
        self._timed("stop_ms", profiler.stop_trace)
        if not ours:
            self._status.miss("trace: lost, for it was begun in another thread than the one that ended it")
            return
        told = self._told
        told |= {"exported_at_step": self._last, "steps": [self._first_traced, self._last]}
        told |= {"file": trace_name(told["number"]), "bytes": None, "operators": None, "write_ms": None}
        self._status.facts.setdefault("windows", []).append(told)
        self._status.facts.update(told)
        local = Path(tempfile.mkdtemp(prefix="dtprof-"))
        export: Callable[..., Any] = profiler.export_chrome_trace
        if self._exports is not None:
            export = self._exports.quietly(export)
        try:
            self._timed("export_ms", export, str(local / "trace.json"))
        except BaseException:
            shutil.rmtree(local, ignore_errors=True)
            raise
        other_thread = threading.get_ident() != self._thread
        writer = threading.Thread(target=self._write, args=(local, told, other_thread), name="dtprof-trace", daemon=True)
        self._writers = [w for w in self._writers if w.is_alive()] + [writer]
        atexit.unregister(self._wait_at_exit)
        atexit.register(self._wait_at_exit)
        writer.start()

    def _write(self, local: Path, told: dict[str, Any], other_thread: bool) -> None:
        """In the background: compress, check, rename; a failure is noted and leaves no file."""
        began = time.perf_counter()
        facts = self._status.facts
        error = caught(self._compress, local, told, other_thread)
        if error is not None:
            told["problem"] = f"{type(error).__name__}: {error}"
            self._status.miss(f"trace: not written ({told['problem']})")
        told["write_ms"] = (time.perf_counter() - began) * 1e3
        if facts.get("number") == told["number"]:
            facts.update(told)
        self._status.changed = True
        shutil.rmtree(local, ignore_errors=True)
        self._status.late()

    def _compress(self, local: Path, told: dict[str, Any], other_thread: bool) -> None:
        size, operators, marks = compress(local / "trace.json", self._folder / told["file"])
        told |= {"bytes": size, "operators": operators}
        steps = told["steps"][1] - told["steps"][0] + 1
        if not operators:
            why = "the loop runs in another thread than the one in which recording began" if other_thread else "no reason known"
            self._status.miss(f"trace: no operator was recorded ({why}); its idle time means nothing")
        elif marks < steps:
            self._status.miss(f"trace: {told['file']} has {marks} step marks for {steps} steps")
        if gone := prune(self._folder, self._keep, self._cap):
            self._status.facts["dropped"] = self._status.facts.get("dropped", []) + gone

    def _give_way(self) -> None:
        """The job begins a profiler of its own: end ours first."""
        self._status.miss("trace: cut short, for the job began its own torch.profiler, which has the right of way")
        self._mark = None
        self._given_up = self._window.number
        self._finish()

    def _exported(self) -> None:
        """The job's own profiler has exported a trace."""
        if self._exports is not None:
            self._status.facts["job_traces"] = self._exports.told
            self._status.changed = True

    def stop(self) -> None:
        """End an unfinished capture, and wait for the files."""
        self._close_mark()
        self._finish()
        if self._exports is not None:
            self._exports.end()
        self._wait(STOP_S)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for writer in self._writers:
            writer.join(max(deadline - time.monotonic(), 0.0))

    def _wait_at_exit(self) -> None:
        """The process ends, and its background threads with it."""
        self._wait(WAIT_S)
        if any(writer.is_alive() for writer in self._writers):
            self._status.miss(f"trace: still being written after {WAIT_S:.0f} s; not waited for")
            self._status.late()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: the traces are read by the Kineto reader."""
        return {}

    def _timed(self, fact: str, function: Callable[..., Any], *args: Any) -> None:
        began = time.perf_counter()
        function(*args)
        self._told[fact] = (time.perf_counter() - began) * 1e3
        self._status.facts[fact] = self._told[fact]


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
