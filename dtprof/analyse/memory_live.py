"""What was live when: allocator events paired into blocks, with the phase, module and stack that allocated each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints
from dtprof.schema import MISSING, PHASES
from dtprof.table import Table

_NEVER = 2**62
_OUTLIVES = {"forward": "activation", "backward": "gradient", "data": "input"}


@dataclass(frozen=True)
class Level:
    """Bytes allocated on one device after every event (``bytes``), at ``ts``; ``before`` the first one; ``added`` only:
    the source counts from the start of the recording."""

    ts: Ints
    bytes: Ints
    before: int
    added: bool


@dataclass(frozen=True)
class Live:
    """Blocks of one device: ``born`` and ``died`` are event positions, ``size`` bytes; labels are texts or None."""

    born: Ints
    died: Ints
    size: Ints
    category: tuple[str | None, ...]
    phase: tuple[str | None, ...]
    owner: tuple[str | None, ...]

    def at(self, position: int) -> NDArray[np.int64]:
        """Blocks that are live after the event at ``position``."""
        return np.flatnonzero((self.born <= position) & (self.died > position))

    def sums(self, rows: NDArray[np.int64]) -> dict[tuple[str | None, str | None, str | None], int]:
        """(owner, phase, category) -> bytes of these blocks."""
        out: dict[tuple[str | None, str | None, str | None], int] = defaultdict(int)
        for i in rows.tolist():
            out[(self.owner[i], self.phase[i], self.category[i])] += int(self.size[i])
        return dict(out)

    def highest(self, category: str) -> dict[str | None, int]:
        """Phase -> most bytes of a category at once."""
        mine = np.flatnonzero(np.array([c == category for c in self.category], bool))
        if not len(mine):
            return {}
        size = self.size[mine]
        events = np.concatenate([self.born[mine], self.died[mine]])
        order = np.argsort(events, kind="stable")
        level = np.cumsum(np.concatenate([size, -size])[order])
        phases = [self.phase[i] for i in np.concatenate([mine, mine])[order].tolist()]
        out: dict[str | None, int] = {}
        for phase, value in zip(phases, level.tolist(), strict=True):
            out[phase] = max(out.get(phase, 0), value)
        return out


def level(memory: Table, device: int, first_size: int | None) -> Level | None:
    """The levels of a device, None where none was recorded. ``first_size`` is the size of its first event."""
    rows = np.flatnonzero(memory.is_("category", "allocated") & (memory["device"] == device) & ~memory.known("stack"))
    if len(rows) == 0:
        return None
    values = memory["bytes"][rows]
    before = int(values[0]) - first_size if first_size is not None else 0
    return Level(memory["ts"][rows], values, max(before, 0), device < 0)


def live(allocations: Table, memory: Table, device: int) -> Live:
    """Pair allocations with their frees on one device."""
    mine = np.flatnonzero(allocations["device"] == device)
    address, size = allocations["address"][mine], allocations["size"][mine]
    born, died = pairs(address, size)
    phase, module = _labels(memory, device, allocations["ts"][mine])
    run = np.cumsum(np.append(0, phase[1:] != phase[:-1])) if len(phase) else phase
    stack = allocations["stack"][mine]
    frames = [innermost(s) for s in allocations.values("stack")]
    names = memory.values("module")
    phases = tuple(PHASES[p] if p >= 0 else None for p in phase[born].tolist())
    freed_in = np.where(died < _NEVER, run[np.minimum(died, len(run) - 1)], -1) if len(run) else died
    category = tuple(
        category_of(p, bool(same), bool(ever))
        for p, same, ever in zip(phases, freed_in == run[born], died < _NEVER, strict=True)
    )
    owner = tuple(
        names[m] if m >= 0 else frames[s] if s >= 0 else None
        for m, s in zip(module[born].tolist(), stack[born].tolist(), strict=True)
    )
    return Live(born, died, size[born], category, phases, owner)


def pairs(address: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Positions of all allocations, and of the free of each (never: 2**62): the next event at its address, if it is one."""
    order = np.argsort(address, kind="stable")
    following = np.full(len(address), -1, np.int64)
    same = address[order][1:] == address[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    born = np.flatnonzero((size > 0) & (address != MISSING))
    after = following[born]
    freed = (after >= 0) & (size[np.maximum(after, 0)] < 0)
    return born, np.where(freed, after, _NEVER)


def category_of(phase: str | None, in_same_phase: bool, freed: bool) -> str | None:
    """What a block is, by where it was made and whether it outlived that: an inference, not a record."""
    if in_same_phase:
        return "temporary" if phase else None
    if phase == "optimizer":
        return "temporary" if freed else "optimizer"
    return _OUTLIVES.get(phase or "")


def innermost(stack: str | None) -> str | None:
    """The innermost frame of a stack that is code of the job or of torch's Python, else the innermost of all."""
    if not stack:
        return None
    frames = stack.split("\n")
    return next((f for f in frames if ".py:" in f), frames[0])


def _labels(memory: Table, device: int, ts: Ints) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Phase and module codes of every event: those of the level after it, where each event has one."""
    rows = np.flatnonzero(memory.is_("category", "allocated") & (memory["device"] == device) & ~memory.known("stack"))
    rows = rows[: len(ts)]
    if len(rows) < len(ts) or not np.array_equal(memory["ts"][rows], ts):
        return np.full(len(ts), -1, np.int8), np.full(len(ts), -1, np.int32)
    return memory["phase"][rows], memory["module"][rows]
