"""Forward hooks on every module for a step or two: what each leaves allocated, or ranges that name it in a trace.

Nothing is hooked where torch.compile is in use: a new hook on a compiled module would have it compiled again.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from dtprof.session.guard import Guard
from dtprof.session.marks import annotate
from dtprof_collectors.memory_state import living, path_of, roots

MOST_MODULES = 20_000


def compiled() -> bool:
    """Has torch.compile compiled anything in this process?"""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return bool(counters and counters.get("frames"))


def named_modules() -> list[tuple[str, Any]]:
    """(path, module) of every live module, the outermost with its class name, each once; script modules left out."""
    (found,) = living(("torch.nn", "Module"))
    out: dict[int, tuple[str, Any]] = {}
    for top in roots(found):
        for name, module in top.named_modules():
            if len(out) < MOST_MODULES and hasattr(module, "_forward_hooks_always_called"):
                out.setdefault(id(module), (path_of(name) or type(module).__name__, module))
    return list(out.values())


class Hooks(ABC):
    """Hooks around the forward pass of every module, until ``remove``; what they raise is kept from the job."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self.guard = Guard()

    def install(self) -> None:
        """Put them on every module that is alive."""
        for path, module in named_modules():
            self._handles.append(module.register_forward_pre_hook(self._before(path)))
            self._handles.append(module.register_forward_hook(self._after(path), always_call=True))

    def remove(self) -> None:
        """Take them away."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not self.guard.is_off("memory"):
                self.guard.call("memory", "forward", -1, self.enter, path)

        return hook

    def _after(self, path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not self.guard.is_off("memory"):
                self.guard.call("memory", "forward", -1, self.leave, path)

        return hook

    @abstractmethod
    def enter(self, path: str) -> None:
        """Module ``path`` begins its forward pass."""

    @abstractmethod
    def leave(self, path: str) -> None:
        """Module ``path`` ends it."""


class Ranges(Hooks):
    """A range ``module#layer=PATH`` around every forward pass, for the tracer that listens."""

    def enter(self, path: str) -> None:
        """Open the range."""
        annotate("module", layer=path).__enter__()

    def leave(self, path: str) -> None:
        """Close it."""
        annotate("module", layer=path).__exit__(None, None, None)


class Growth(Hooks):
    """Bytes that each module's own forward pass leaves allocated, without what its children leave.

    The sum over one pass of an outermost module; of several passes (micro-batches) the largest. Passes without gradients
    and those that a backward pass repeats (activation checkpointing) are not counted. ``read`` gives the bytes allocated now.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        super().__init__()
        self._read = read
        self._open: list[tuple[str, int, int]] = []
        self._pass: dict[str, int] = defaultdict(int)
        self.largest: dict[str, int] = {}

    def enter(self, path: str) -> None:
        """Remember what is allocated now; children add what they leave."""
        self._open.append((path, self._read(), 0))

    def leave(self, path: str) -> None:
        """Own growth: all growth since ``enter`` less the children's."""
        if not self._open or self._open[-1][0] != path:
            self._open.clear()
            return
        _, before, of_children = self._open.pop()
        grown = self._read() - before
        if counts():
            self._pass[path] += grown - of_children
        if self._open:
            parent, at, others = self._open[-1]
            self._open[-1] = (parent, at, others + grown)
        else:
            for name, count in self._pass.items():
                self.largest[name] = max(self.largest.get(name, 0), count)
            self._pass.clear()


def counts() -> bool:
    """Does what a forward pass leaves now wait for a backward pass?"""
    import torch

    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
