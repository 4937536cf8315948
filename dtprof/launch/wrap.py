"""Functions of torch with something of ours before and after them, in a way that its compiler does not mind.

Traced from compiled code, a wrapped function is the function itself. Run on its own, the wrapper is not compiled, and what
it calls of ours runs out of the compiler's sight: after a graph break the compiler looks at every function that is
called, and would otherwise compile the profiler.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from dtprof.session.guard import Guard

guard = Guard()
OWNER = "launch"
_compiling: Callable[[], bool] = bool
_disabled: Callable[..., None] | None = None


def around(
    function: Any, before: Callable[[tuple[Any, ...]], None], after: Callable[[], None], *, may_break: bool = False
) -> Any:
    """``function`` with ``before(args)`` and ``after()``; what these raise is noted once and switches all of them off.

    ``may_break``: the function breaks a compiled graph anyway, so that these two are called from compiled code, too.
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not may_break and _compiling():
            return function(*args, **kwargs)
        _out_of_sight(before, args)
        try:
            return function(*args, **kwargs)
        finally:
            _out_of_sight(after)

    leave_uncompiled(wrapped.__code__)
    return functools.wraps(function)(wrapped)


def attend(torch: Any) -> None:
    """Know the compiler; called when torch has been loaded, before anything is wrapped."""
    global _compiling
    _compiling = torch.compiler.is_compiling


def leave_uncompiled(code: CodeType) -> None:
    """Have torch's compiler pass over frames of this code; what they call is looked at as ever."""
    with contextlib.suppress(Exception):
        sys.modules["torch"]._C._dynamo.eval_frame.skip_code(code)


def _call(function: Callable[..., None], *args: Any) -> None:
    if not guard.is_off(OWNER):
        guard.call(OWNER, "step", -1, function, *args)


def _out_of_sight(function: Callable[..., None], *args: Any) -> None:
    global _disabled
    if _disabled is None:
        dynamo = sys.modules.get("torch._dynamo")
        if not hasattr(dynamo, "disable"):
            _call(function, *args)
            return
        _disabled = dynamo.disable(_call)  # type: ignore[union-attr]
    _disabled(function, *args)
