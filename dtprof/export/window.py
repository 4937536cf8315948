"""A run cut to some of its ranks and steps: again a run, with every reference between rows kept right."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dtprof.errors import InputError
from dtprof.run import Run
from dtprof.schema import MISSING32
from dtprof.table import Table

# columns of part tables that name an event; rows of a table in the second list go with their event
_REFERENCES = {"events": ("parent", "launch"), "comm": ("record",), "deps": ()}
_BOUND = {"comm": ("event",), "kernel_args": ("event",), "deps": ("src", "dst")}
_TIMED = {"samples": "ts", "memory": "ts", "allocations": "ts"}


@dataclass(frozen=True)
class Span:
    """The steps ``first`` to ``end - 1``."""

    first: int
    end: int


def parse_steps(text: str) -> Span:
    """``A:B``, the steps A to B - 1; InputError otherwise."""
    first, colon, end = text.partition(":")
    if not colon or not first.strip().isdecimal() or not end.strip().isdecimal() or int(first) >= int(end) or len(text) > 24:
        raise InputError(f"--steps {text}: not a range of steps", "write A:B with A below B, as 5:8 for steps 5, 6 and 7")
    return Span(int(first), int(end))


def cut(run: Run, ranks: Collection[int] | None = None, steps: Span | None = None) -> Run:
    """The run with these ranks and steps only; InputError where nothing of it is left."""
    run.table("collectives")
    parts = [p for p in run.parts if ranks is None or p.rank in ranks]
    if not parts:
        known = ", ".join(map(str, run.ranks)) or "none that is known"
        raise InputError(f"{run.path}: no rank {', '.join(map(str, sorted(ranks or ())))}", f"its ranks are {known}")
    if steps is not None:
        numbers = sorted({int(s) for p in parts for s in run.table("steps", p.ordinal)["step"].tolist()})
        if not any(steps.first <= n < steps.end for n in numbers):
            known = f"its steps are {numbers[0]} to {numbers[-1]}" if numbers else "no steps are marked in it"
            raise InputError(f"{run.path}: no step of {steps.first}:{steps.end}", known)
    if steps is None and len(parts) == len(run.parts):
        return run
    manifest = type(run.manifest)(**{f: getattr(run.manifest, f) for f in run.manifest.__struct_fields__})
    manifest.parts = parts
    return Run(manifest, _CutStore(run, {p.ordinal for p in parts}, steps), run.path, run.format)


def cut_time(run: Run, start: int, end: int) -> Run:
    """The run between two instants, ns on the aligned clock: events and steps that lie in it, whole or in part."""
    run.table("collectives")
    return Run(run.manifest, _TimeStore(run, start, end), run.path, run.format)


class _CutStore:
    """Tables of another run, cut on first use."""

    def __init__(self, run: Run, parts: set[int], steps: Span | None) -> None:
        self._run, self._parts, self._steps = run, parts, steps
        self._rows: dict[int, NDArray[np.bool_]] = {}

    def load(self, name: str, part: int | None) -> Table | None:
        if part is None:
            return self._run_table(name)
        table = self._run.table(name, part)
        if self._steps is None or not len(table) or name in ("lanes", "groups", "quality"):
            return table
        return self._part_table(name, part, table, self._steps)

    def _part_table(self, name: str, part: int, table: Table, steps: Span) -> Table:
        kept = self._kept(part)
        if name == "events":
            return _renumbered(table.take(kept), name, kept)
        if name in _BOUND:
            whole = np.all([kept[table[c]] for c in _BOUND[name]], axis=0)
            return _renumbered(table.take(whole), name, kept)
        if name in _TIMED:
            lo, hi = self._time(part)
            return table.take((table[_TIMED[name]] >= lo) & (table[_TIMED[name]] < hi))
        return table.take((table["step"] >= steps.first) & (table["step"] < steps.end)) if "step" in table.stored else table

    def _kept(self, part: int) -> NDArray[np.bool_]:
        """Events of the steps; those without a step by time."""
        if part not in self._rows:
            events = self._run.table("events", part)
            lo, hi = self._time(part)
            assert self._steps is not None
            step = events["step"]
            inside = (step >= self._steps.first) & (step < self._steps.end)
            untold = (step == MISSING32) & (events["ts"] >= lo) & (events["ts"] < hi)
            self._rows[part] = inside | untold
        return self._rows[part]

    def _time(self, part: int) -> tuple[int, int]:
        """Host time of the steps in this part; an empty span where it has none of them."""
        steps = self._run.table("steps", part)
        assert self._steps is not None
        mine = (steps["step"] >= self._steps.first) & (steps["step"] < self._steps.end)
        if not mine.any():
            return 0, 0
        start, dur = steps["host_ts"][mine], steps["host_dur"][mine]
        return int(start.min()), int((start + dur).max())

    def _run_table(self, name: str) -> Table | None:
        """Operations and participations of the parts and steps; ids stay what they were."""
        table = self._run.table(name)
        shares = self._run.table("participations")
        if not len(shares):
            return table
        mine = np.isin(shares["part"], list(self._parts))
        if self._steps is not None:
            for part in self._parts:
                of = mine & (shares["part"] == part)
                mine[of] = self._kept(part)[shares["event"][of]]
        if name == "collectives":
            return table.take(np.isin(table["id"], shares["collective"][mine]))
        return self._renumber_shares(shares.take(mine))

    def _renumber_shares(self, shares: Table) -> Table:
        if self._steps is None:
            return shares
        event, row = shares["event"].copy(), shares["row"].copy()
        for part in self._parts:
            of = shares["part"] == part
            kept = self._kept(part)
            comm = self._run.table("comm", part)
            event[of] = _places(kept)[event[of]]
            row[of] = _places(kept[comm["event"]])[row[of]]
        return shares.with_columns(event=event, row=row)


class _TimeStore(_CutStore):
    """Tables of another run, cut to a time."""

    def __init__(self, run: Run, start: int, end: int) -> None:
        super().__init__(run, {p.ordinal for p in run.parts}, Span(0, 0))
        self._start, self._end = start, end
        self._offsets = {p.ordinal: p.clock_offset_ns for p in run.parts}

    def _part_table(self, name: str, part: int, table: Table, steps: Span) -> Table:
        if name == "steps":
            lo, hi = self._time(part)
            return table.take((table["host_ts"] < hi) & (table["host_ts"] + np.maximum(table["host_dur"], 0) > lo))
        if name in ("events", *_BOUND, *_TIMED):
            return super()._part_table(name, part, table, steps)
        return table

    def _kept(self, part: int) -> NDArray[np.bool_]:
        """Events of which some part lies in the time."""
        if part not in self._rows:
            events = self._run.table("events", part)
            lo, hi = self._time(part)
            stops = events["ts"] + np.maximum(events["dur"], 1)
            self._rows[part] = np.asarray((events["ts"] < hi) & (stops > lo))
        return self._rows[part]

    def _time(self, part: int) -> tuple[int, int]:
        return self._start - self._offsets[part], self._end - self._offsets[part]


def _places(kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """New row of every old one; MISSING32 where it is gone."""
    return np.where(kept, np.cumsum(kept) - 1, MISSING32).astype(np.int32)


def _renumbered(table: Table, name: str, kept: NDArray[np.bool_]) -> Table:
    places = _places(kept)
    changed = {}
    for column in (*_REFERENCES.get(name, ()), *_BOUND.get(name, ())):
        old = table[column]
        changed[column] = np.where(old >= 0, places[np.maximum(old, 0)], MISSING32).astype(np.int32)
    return table.with_columns(**changed) if changed else table
