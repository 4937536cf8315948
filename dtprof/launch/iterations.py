"""When a new iteration of the training loop has begun, told from where its optimizers are stepped.

With one optimizer every step is an iteration. With several, an iteration is one pass of the innermost loop that holds
the steps of all of them. That a pass has ended is known where control must have gone back to the loop's head: a step
earlier in the code than the one before, or the same step again outside any inner loop. Where it may have stayed inside
(``for _ in range(3): opt_g.step()``, or a step that is taken every second time), what the loop counts with decides.

Where no such loop is found, an iteration begins when an optimizer is stepped twice in a row, or the first one again.

Frames are looked at and never kept: a frame that is held keeps the tensors of its variables alive.
"""

from __future__ import annotations

import inspect
from types import CodeType, FrameType
from typing import Any

from dtprof.launch.loops import Loop, counters, loops_of

# a frame as (id of its code, offset): code objects hash and compare by all that they hold
Site = tuple[int, int]
Path = tuple[Site, ...]
MAX_PATHS, MAX_DEPTH = 64, 200


class Iterations:
    """Fed with every optimizer step; ``begins`` says whether it belongs to a new iteration."""

    def __init__(self) -> None:
        self._given_up = False
        self._paths: dict[Path, set[int]] = {}
        self._codes: dict[int, CodeType] = {}
        self._loops: dict[int, tuple[Loop, ...]] = {}
        self._loop: tuple[int, Loop, tuple[str, ...]] | None = None
        self._last: Path = ()
        self._last_optimizer = self._leader = -1
        self._values: tuple[Any, ...] | None = None

    def begins(self, optimizer: int, frame: FrameType) -> bool:
        """Does this step of the optimizer with that number, called from ``frame``, begin an iteration?"""
        frames = _stack(frame)
        path = tuple((id(f.f_code), f.f_lasti) for f in frames)
        before, self._last = self._last, path
        before_optimizer, self._last_optimizer = self._last_optimizer, optimizer
        first = not before
        if first:
            self._leader = optimizer
        known = self._paths.setdefault(path, set())
        if optimizer not in known and len(self._paths) <= MAX_PATHS and not self._given_up:
            known.add(optimizer)
            self._codes |= {id(f.f_code): f.f_code for f in frames}
            self._loop, self._values = self._find_loop(), None
        if self._loop is None:
            return first or optimizer in (self._leader, before_optimizer)
        passed = first or self._passed(before, path)
        values = self._read(frames)
        changed = values is not None and self._values is not None and values != self._values
        self._values = values
        return passed or changed

    def give_up(self) -> None:
        """The loop that was found is none of iterations: from now on the order of the optimizers has to do."""
        self._given_up, self._loop = True, None

    def _find_loop(self) -> tuple[int, Loop, tuple[str, ...]] | None:
        """(depth, loop, counters): the innermost loop around the steps of all optimizers, or None."""
        paths = list(self._paths)
        depth = min(map(len, paths)) - 1
        while depth > 0 and any(path[:depth] != paths[0][:depth] or path[depth][0] != paths[0][depth][0] for path in paths):
            depth -= 1
        if any(path[depth][0] != paths[0][depth][0] for path in paths):
            return None
        # a loop over the optimizers themselves steps them all in one place, and is no iteration
        skip = any(len(optimizers) > 1 for optimizers in self._paths.values())
        for level in range(depth, -1, -1):
            code = paths[0][level][0]
            sites = [path[level][1] for path in paths]
            for loop in self._loops_of(code):
                if loop.holds(*sites):
                    if not skip:
                        return level, loop, counters(self._codes[code], loop, sites)
                    skip = False
        return None

    def _loops_of(self, code: int) -> tuple[Loop, ...]:
        if code not in self._loops:
            self._loops[code] = loops_of(self._codes[code]) if code in self._codes else ()
        return self._loops[code]

    def _passed(self, before: Path, path: Path) -> bool:
        """Must control have passed the loop's head since the step before?"""
        if self._loop is None:
            return False
        level, loop, _ = self._loop
        if before[:level] != path[:level] or len(before) <= level or not loop.holds(before[level][1], path[level][1]):
            return True
        for depth in range(level, max(len(before), len(path))):
            if depth >= len(before) or depth >= len(path) or before[depth][0] != path[depth][0]:
                return True
            code, came, now = path[depth][0], before[depth][1], path[depth][1]
            if any(inner.holds(came, now) and (depth > level or inner.body < loop.body) for inner in self._loops_of(code)):
                return False
            if came != now:
                return now < came
        return True

    def _read(self, frames: list[FrameType]) -> tuple[Any, ...] | None:
        """What the loop counts with, now: numbers and texts by value, other things by identity."""
        if self._loop is None or self._loop[0] >= len(frames):
            return None
        level, loop, names = self._loop
        found = _variables(frames[level], names)
        if not loop.targets:
            return tuple(value if type(value) is int else None for value in found)
        return tuple(value if isinstance(value, int | str) else id(value) for value in found)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Frames of the job's own code and of its frameworks, outermost first; torch's innermost ones left out."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "dtprof"):
        frame = frame.f_back
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_DEPTH:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _variables(frame: FrameType, names: tuple[str, ...]) -> list[Any]:
    """Values of a running frame's variables.

    Up to Python 3.12 reading a function's variables makes a copy of all of them that the frame keeps; it is emptied, so
    that no tensor lives longer. Where the function reads its own ``locals()``, the copy may be the job's: it is left alone.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        scope = frame.f_locals
        return [scope.get(name, frame.f_globals.get(name)) for name in names]
    if {"locals", "vars", "dir", "eval", "exec"} & set(code.co_names):
        return []
    copy = frame.f_locals
    values = [copy.get(name) for name in names]
    if isinstance(copy, dict):
        copy.clear()
    return values
