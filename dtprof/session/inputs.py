"""Waiting for input: the time that the training loop spends inside ``next()`` of its data loader.

    for batch in dtprof.loader(DataLoader(…)):
        ...

``timed_input(next, iterator)`` is the same for code that has no loader to wrap: it calls, and books the time on the step
that is running. Only the thread that calls ``step()`` is booked, and nested calls once: a prefetching thread waits for
nobody. The range ``data`` lies around every call, for every tracer that listens.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, TypeVar

from dtprof.session.marks import annotate

R = TypeVar("R")


class InputClock:
    """Input waiting of one session: ns and calls since the last ``take``; ``thread`` is the one that is booked."""

    __slots__ = ("_inside", "calls", "ns", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.ns = self.calls = 0
        self._inside = False

    def call(self, function: Callable[..., R], args: tuple[Any, ...]) -> R:
        """``function(*args)``, timed; whatever it raises passes, StopIteration too, and its time counts."""
        if self._inside or get_ident() != self.thread:
            return function(*args)
        self._inside = True
        began = time.perf_counter_ns()
        try:
            with annotate("data"):
                return function(*args)
        finally:
            self.ns += time.perf_counter_ns() - began
            self.calls += 1
            self._inside = False

    def take(self) -> tuple[int, int]:
        """(ns, calls) since the last time, and begin anew; the caller's thread is the loop's."""
        taken = self.ns, self.calls
        self.ns = self.calls = 0
        self.thread = get_ident()
        return taken


_clock: InputClock | None = None


def listen(clock: InputClock | None) -> None:
    """From now on book on this clock; None: on none."""
    global _clock
    _clock = clock


def timed_input(function: Callable[..., R], /, *args: Any) -> R:
    """Call ``function(*args)`` and book its time as input waiting of the running step; a plain call without a session."""
    clock = _clock
    return function(*args) if clock is None else clock.call(function, args)


def loader(iterable: Iterable[Any]) -> Any:
    """``iterable`` with the time inside its ``iter()`` and ``next()`` booked as input waiting.

    It stays what it is in every other respect: length, indexing, attributes (also set ones), truth, and iterating again.
    """
    kind = type(iterable)
    special = tuple(name for name in _FORWARDED if hasattr(kind, name))
    wrapped: Any = _wrapper(special)
    return wrapped(iterable)


class _Loader:
    """Forwards everything to what it wraps; ``iter()`` and ``next()`` are timed."""

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "_dtprof_wrapped", wrapped)

    def __iter__(self) -> Iterator[Any]:
        wrapped = object.__getattribute__(self, "_dtprof_wrapped")
        iterator = timed_input(iter, wrapped)
        return self if iterator is wrapped else loader(iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_dtprof_wrapped"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_dtprof_wrapped"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_dtprof_wrapped"), name)

    def __repr__(self) -> str:
        return f"dtprof.loader({object.__getattribute__(self, '_dtprof_wrapped')!r})"

    def __reduce__(self) -> Any:
        return loader, (object.__getattribute__(self, "_dtprof_wrapped"),)


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        return getattr(object.__getattribute__(self, "_dtprof_wrapped"), name)(*args)

    return call


def _next(self: Any) -> Any:
    return timed_input(next, object.__getattribute__(self, "_dtprof_wrapped"))


# special methods are looked up on the type: a wrapper has those that what it wraps has
_PLAIN = ("__len__", "__getitem__", "__contains__", "__bool__", "__length_hint__", "__enter__", "__exit__")
_FORWARDED = {"__next__": _next, **{name: _forward(name) for name in _PLAIN}}


@functools.cache
def _wrapper(special: tuple[str, ...]) -> type:
    return type("Loader", (_Loader,), {name: _FORWARDED[name] for name in special})
