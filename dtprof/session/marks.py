"""``annotate``: one range for every tracer that listens, and next to nothing where none does.

    with dtprof.annotate("forward", microbatch=2): ...
    @dtprof.annotate("backward")
    def backward(loss): ...

While torch.profiler records, the range is a ``record_function`` whose name carries the tags in the form of
``dtprof.ranges``. Where ``nvtx`` is installed and a tool is attached (it sets NVTX_INJECTION64_PATH or
NSYS_PROFILING_SESSION_ID; DTPROF_NVTX=1 forces it), the range is in the NVTX domain ``dtprof``, its category the phase
(or the name), its payload the step, micro-batch or bucket, whichever is given first in that order.
Objects are cached by name and tags, may be kept and used again, nested, and shared between threads. In code that
torch.compile compiles a range is nothing, and breaks no graph.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dtprof.ranges import format_range
from dtprof.session.guard import Guard

P = ParamSpec("P")
R = TypeVar("R")

_CACHE_SIZE = 4096
_cache: dict[Any, Annotation] = {}
_open = threading.local()
_torch: Any = None
_domain: Any = None
_domain_sought = False
_compiling: Callable[[], bool] = bool
_NOTHING = contextlib.nullcontext()
_guard = Guard()
idle_calls = 0


def annotate(
    name: str,
    *,
    step: int | None = None,
    phase: str | None = None,
    microbatch: int | None = None,
    stage: int | None = None,
    layer: str | None = None,
    bucket: int | None = None,
    expert: int | None = None,
) -> Annotation:
    """A range, as context manager or decorator; phases are named in ``dtprof.schema.PHASES``."""
    if _compiling():
        return _NOTHING  # type: ignore[return-value]  # torch.compile knows nullcontext, and an Annotation it does not
    key: Any = (name, step, phase, microbatch, stage, layer, bucket, expert)
    found = _cache.get(key)
    if found is None:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        found = _cache[key] = Annotation(*key)
    return found


class Annotation:
    """One named range; entering it opens a range in each tracer that listens at that moment."""

    __slots__ = ("_attributes", "_tags", "_was_open", "name", "text")

    def __init__(self, name: str, *tags: Any) -> None:
        self.name = name
        self._tags = dict(zip(("step", "phase", "microbatch", "stage", "layer", "bucket", "expert"), tags, strict=True))
        self.text = format_range(name, self._tags)
        self._attributes: Any = None
        self._was_open = False

    def __enter__(self) -> Annotation:
        global idle_calls
        if _domain_sought and _domain is None and _torch is not None and not _torch._is_profiler_enabled:
            idle_calls += 1
        else:
            self._listen()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._was_open:
            self._close()

    def _listen(self) -> None:
        global idle_calls
        look_for_listeners()
        if _domain is None and (_torch is None or not _torch._is_profiler_enabled):
            idle_calls += 1
        elif not _guard.is_off("annotate"):
            _guard.call("annotate", "enter", -1, self._begin)

    def _close(self) -> None:
        stack = getattr(_open, "stack", None)
        if stack and stack[-1][0] is self:
            _guard.call("annotate", "exit", -1, _end, stack.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Use as a decorator."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside

    def _begin(self) -> None:
        record = None
        if _torch is not None and _torch._is_profiler_enabled:
            record = _torch.record_function(self.text)
            record.__enter__()
        if _domain is not None:
            if self._attributes is None:
                self._attributes = _nvtx_attributes(self.name, self._tags)
            _domain.push_range(self._attributes)
        if not hasattr(_open, "stack"):
            _open.stack = []
        _open.stack.append((self, record, _domain))
        self._was_open = True


def _end(entry: tuple[Annotation, Any, Any]) -> None:
    _, record, domain = entry
    if domain is not None:
        domain.pop_range()
    if record is not None:
        record.__exit__(None, None, None)


def _nvtx_attributes(name: str, tags: dict[str, Any]) -> Any:
    # a step number would make every message new, and NVTX keeps messages for ever: it travels as the payload
    message = format_range(name, {**tags, "step": None})
    payload = next((tags[k] for k in ("step", "microbatch", "bucket") if tags[k] is not None), None)
    return _domain.get_event_attributes(message=message, category=tags["phase"] or name, payload=payload)


def look_for_listeners() -> None:
    """Find torch's profiler and compiler where torch is loaded by now, and NVTX where a tool is attached."""
    global _torch, _domain, _domain_sought, _compiling
    profiler = sys.modules.get("torch.autograd.profiler")
    if hasattr(profiler, "_is_profiler_enabled") and hasattr(profiler, "record_function"):
        _torch = profiler
        _compiling = getattr(sys.modules.get("torch.compiler"), "is_compiling", bool)
    if not _domain_sought:
        _domain_sought = True
        _domain = _nvtx_domain()


def _nvtx_domain() -> Any:
    if not any(os.environ.get(k) for k in ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "DTPROF_NVTX")):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.get_domain("dtprof") if nvtx.enabled() else None


def idle_price_ns() -> tuple[float, float]:
    """Price of one call that finds no listener, in ns: best and worst of eight batches of 250; zeros while one listens."""
    global idle_calls
    if _domain is not None or (_torch is not None and _torch._is_profiler_enabled):
        return 0.0, 0.0
    before, batches = idle_calls, []
    for _ in range(8):
        start = time.perf_counter_ns()
        for _ in range(250):
            with annotate("dtprof.calibrate"):
                pass
        batches.append((time.perf_counter_ns() - start) / 250)
    idle_calls = before
    return min(batches), max(batches)
