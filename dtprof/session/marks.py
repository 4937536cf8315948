"""``annotate``: one range for everyone who listens, and next to nothing where nobody does.

    with dtprof.annotate("forward", microbatch=2): ...
    @dtprof.annotate("backward")
    def backward(loss): ...

While torch.profiler records, the range is a ``record_function`` whose name carries the tags in the form of
``dtprof.ranges``. Where ``nvtx`` is installed and a tool is attached (it sets NVTX_INJECTION64_PATH or
NSYS_PROFILING_SESSION_ID; DTPROF_NVTX=1 forces it), the range is in the NVTX domain ``dtprof``, its category the phase
(or the name), its payload the step, micro-batch or bucket, whichever is given first in that order. While a session runs,
ranges that are phases (by name or tag) are timed.
Objects are cached by name and tags, may be kept and used again, nested, and shared between threads. In code that
torch.compile compiles a range is nothing, and breaks no graph.

Where nobody listens, entering and leaving are C functions that do nothing: ``Annotation`` gets its own ones back as soon as
a session begins, or ``annotate`` finds torch.profiler recording. (So an object that is kept notices a profiler that was
begun outside a session only after the next call of ``annotate``, anywhere.)
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns as _now
from types import SimpleNamespace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from dtprof.ranges import TAGS, format_range
from dtprof.session import nvtx_domain
from dtprof.session.guard import Guard
from dtprof.session.phases import TIMED, Event, PhaseClock

P = ParamSpec("P")
R = TypeVar("R")


class Tags(TypedDict, total=False):
    """Tags of a range; phases are named in ``dtprof.schema.PHASES``."""

    step: int | None
    phase: str | None
    microbatch: int | None
    stage: int | None
    layer: str | None
    bucket: int | None
    expert: int | None


_CACHE_SIZE = 4096
# until torch is loaded, every range looks for it
_NO_TRACER: Any = SimpleNamespace(_is_profiler_enabled=True)
_named: dict[str, Annotation] = {}
_tagged: dict[Any, Annotation] = {}
_open = threading.local()
_tracer: Any = _NO_TRACER
_domain: Any = None
_domain_sought = False
_clock: PhaseClock | None = None
_hear: Callable[[Event], None] | None = None
_compiling: Callable[[], bool] = bool
_NOTHING = contextlib.nullcontext()
_do_nothing: Any = "".format
_guard = Guard()


def annotate(name: str, **tags: Unpack[Tags]) -> Annotation:
    """A range, as context manager or decorator; phases are named in ``dtprof.schema.PHASES``."""
    if _compiling():
        return _NOTHING  # type: ignore[return-value]  # torch.compile knows nullcontext, and an Annotation it does not
    if not tags and not _tracer._is_profiler_enabled:
        try:
            return _named[name]
        except KeyError:
            pass
    return _find(name, tags)


def _find(name: str, tags: Tags) -> Annotation:
    if _tracer._is_profiler_enabled:
        _wake()
    cache: dict[Any, Annotation] = _tagged if tags else _named
    key: Any = (name, *tags.items()) if tags else name
    found = cache.get(key)
    if found is None:
        if len(cache) >= _CACHE_SIZE:
            cache.clear()
        found = cache[key] = Annotation(name, **tags)
    return found


class Annotation:
    """One named range; entering it opens a range for everyone who listens at that moment."""

    __slots__ = ("_attributes", "_phase", "_tags", "_was_open", "name", "text")

    def __init__(self, name: str, **tags: Unpack[Tags]) -> None:
        unknown = set(tags) - set(TAGS)
        if unknown:
            raise TypeError(f"annotate() has no tag {min(unknown)!r}; it has {', '.join(TAGS)}")
        self.name = name
        self._tags: dict[str, Any] = {key: tags.get(key) for key in TAGS}
        self.text = format_range(name, self._tags)
        phase = tags.get("phase") or name
        self._phase = phase if phase in TIMED else None
        self._attributes: Any = None
        self._was_open = False

    def __enter__(self) -> Annotation:
        hear = _hear
        if hear is not None:
            hear((self._phase, True, get_ident(), _now()))
        if _domain is not None or _tracer._is_profiler_enabled:
            _guard.call("annotate", "enter", -1, self._begin)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        hear = _hear
        if hear is not None:
            hear((self._phase, False, get_ident(), _now()))
        if self._was_open:
            stack = getattr(_open, "stack", None)
            if stack and stack[-1][0] is self:
                _guard.call("annotate", "exit", -1, _end, *stack.pop()[1:])

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Use as a decorator."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            if _compiling():
                return function(*args, **kwargs)
            if _tracer._is_profiler_enabled:
                _wake()
            with self:
                return function(*args, **kwargs)

        return inside

    def _begin(self) -> None:
        if _tracer is _NO_TRACER:
            look_for_listeners()
        record = None
        if _is_traced() and not _guard.is_off("annotate"):
            record = _tracer.record_function(self.text)
            record.__enter__()
        if _domain is not None and not _guard.is_off("annotate"):
            if self._attributes is None:
                self._attributes = _nvtx_attributes(self.name, self._tags)
            _domain.push_range(self._attributes)
        if record is not None or _domain is not None:
            if not hasattr(_open, "stack"):
                _open.stack = []
            _open.stack.append((self, record, _domain))
            self._was_open = True


def _end(record: Any, domain: Any) -> None:
    if domain is not None:
        domain.pop_range()
    if record is not None:
        record.__exit__(None, None, None)


def _is_traced() -> bool:
    return _tracer is not _NO_TRACER and _tracer._is_profiler_enabled


_OWN = (Annotation.__enter__, Annotation.__exit__)


def _wake() -> None:
    """From now on ranges look for listeners as they are entered."""
    _use(*_OWN)


def _rest() -> None:
    """From now on ranges do nothing, if there is nobody who could listen."""
    if _clock is None and _domain is None and not _tracer._is_profiler_enabled:
        _use(_do_nothing, _do_nothing)


def _use(enter: Any, leave: Any) -> None:
    if Annotation.__enter__ is not enter:
        for name, function in (("__enter__", enter), ("__exit__", leave)):
            setattr(Annotation, name, function)


def _nvtx_attributes(name: str, tags: dict[str, Any]) -> Any:
    # a step number would make every message new, and NVTX keeps messages for ever: it travels as the payload
    message = format_range(name, {**tags, "step": None})
    payload = next((tags[k] for k in ("step", "microbatch", "bucket") if tags[k] is not None), None)
    return _domain.get_event_attributes(message=message, category=tags["phase"] or name, payload=payload)


def listen(clock: PhaseClock | None) -> None:
    """From now on time phases with this clock; None: with none."""
    _book(clock)
    look_for_listeners()
    if clock is not None:
        _wake()


def _book(clock: PhaseClock | None) -> None:
    global _clock, _hear
    _clock, _hear = clock, None if clock is None else clock.events.append


def look_for_listeners() -> None:
    """Find torch's profiler and compiler where torch is loaded by now, and NVTX where a tool is attached."""
    global _tracer, _domain, _domain_sought, _compiling
    profiler = sys.modules.get("torch.autograd.profiler")
    if hasattr(profiler, "_is_profiler_enabled") and hasattr(profiler, "record_function"):
        _tracer = profiler
        _compiling = getattr(sys.modules.get("torch.compiler"), "is_dynamo_compiling", bool)
    if not _domain_sought:
        _domain_sought = True
        _domain = nvtx_domain.domain()
    _rest()


def price_ns() -> tuple[float, float]:
    """Price of one range while a session times phases and no tracer listens, in ns: best and median of nine batches of 250.

    Zeros while a tracer listens. Books nothing on the session's clock.
    """
    look_for_listeners()
    if _domain is not None or _is_traced():
        return 0.0, 0.0
    session, batches = _clock, []
    _book(PhaseClock())
    _wake()
    try:
        for _ in range(9):
            start = _now()
            for _ in range(250):
                with annotate("forward"):
                    pass
            batches.append((_now() - start) / 250)
    finally:
        listen(session)
    return min(batches), statistics.median(batches)
