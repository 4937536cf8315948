"""Fail open: what goes wrong inside dtprof is logged once, noted, and never reaches the training loop."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("dtprof")


class Guard:
    """Runs hooks of named owners. The first exception of an owner switches that owner off for good."""

    def __init__(self) -> None:
        self.failures: list[dict[str, Any]] = []
        self._off: set[str] = set()

    def is_off(self, owner: str) -> bool:
        """Was this owner switched off?"""
        return owner in self._off

    def call(self, owner: str, hook: str, step: int, function: Callable[..., Any], *args: Any) -> bool:
        """Call ``function(*args)``; True when it returned. ``hook`` and ``step`` say where, for the log and part.json."""
        error = caught(function, *args)
        if error is not None:
            self.fail(owner, hook, step, error)
        return error is None

    def fail(self, owner: str, hook: str, step: int, error: BaseException) -> None:
        """Switch an owner off and say so once; later failures of the same owner are only noted."""
        text = f"{type(error).__name__}: {error}"
        self.failures.append({"name": owner, "hook": hook, "step": step, "error": text})
        if owner not in self._off:
            self._off.add(owner)
            logger.warning(
                "dtprof: %s failed in %s at step %d and is switched off; training goes on (%s)", owner, hook, step, text
            )


def caught(function: Callable[..., Any], *args: Any) -> Exception | None:
    """Call ``function(*args)`` inside the job; what it raised, unless that came from a signal handler of the job."""
    try:
        function(*args)
    except Exception as error:
        if from_signal_handler(error):
            raise
        return error
    return None


def from_signal_handler(error: BaseException) -> bool:
    """Did a signal handler of the job raise this, while our code happened to run? Then it is not ours to swallow."""
    handlers = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = getattr(handler, "__func__", handler)
        code = getattr(function, "__code__", None)
        if code is not None:
            handlers.add(code)
    trace = error.__traceback__
    while trace is not None:
        frame: FrameType = trace.tb_frame
        if frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
