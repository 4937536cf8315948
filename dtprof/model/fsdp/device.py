"""FSDP2 on a device: the compute stream takes the place of the thread, and the host only says how early a gather can begin.

What torch's streams wait for (_fsdp_param_group.py, torch 2.13): a gather begins after the copy-out of an earlier unit, in the
forward pass of the one before the unit that asks for it (its own copy-out may overlap the next gather), in the backward pass of
the unit itself; reductions are waited for when the next unit has been computed, and at the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dtprof.intervals import Ints
from dtprof.model.fsdp.marks import Mark, Sent
from dtprof.model.fsdp.observe import (
    FsdpStep,
    Marked,
    SeenFsdp,
    held_of,
    marked,
    origins_of,
    taken_of,
    with_aheads,
    with_keeps,
)
from dtprof.model.fsdp.program import Item, Op, Program, Unit
from dtprof.model.typical import typical_error, typical_step
from dtprof.run import Part, Run

# one communicator moves one operation at a time, in order
WORKERS = 1
_PASSES = (("pre_forward", False), ("pre_backward", True))


@dataclass(frozen=True)
class _Entry:
    """Something that happens to the compute stream at ``ts``, which goes on at ``until``."""

    ts: int
    until: int
    item: Item
    sent: tuple[Op, Sent] | None = None


def observe_device(run: Run, depth: int | None = None) -> SeenFsdp | str:
    """The FSDP2 steps of a run with device work, as programs of its compute streams, or why there are none to be had.

    ``depth``: as they would be with so many units asked for ahead.
    """
    told = marked(run)
    if isinstance(told, str):
        return told
    parts, marks, units = told
    steps: dict[int, FsdpStep] = {}
    freed: set[int] = set()
    for step in origins_of(run, parts):
        if not all(step in marks[p.ordinal][0] for p in parts):
            continue
        made = _step(run, parts, marks, units, step, depth)
        if isinstance(made, str):
            return made
        steps[step] = made
        for item in made.programs[0].items:
            if item.backward:
                freed.update(item.gathers)
    if not steps:
        return "no captured step has the ranges of FSDP2 and device work on all ranks"
    traced = [max(s.ends) - min(s.begins) for s in steps.values()]
    typical, untraced = typical_step(run, parts, float(np.median(traced)))
    return SeenFsdp(
        tuple(int(p.rank or 0) for p in parts), units, frozenset(freed), False, (1, 1), steps, typical, untraced,
        typical_error(run, parts, traced), WORKERS, lambda wanted: observe_device(run, wanted),
    )  # fmt: skip


def _step(
    run: Run, parts: Sequence[Part], marks: Marked, units: Sequence[Unit], step: int, depth: int | None
) -> FsdpStep | str:
    readings = [_Reading(run, p, units, marks[p.ordinal][0][step], step, depth) for p in parts]
    if not all(r.usable for r in readings):
        return f"step {step} has no computing on the device of some rank"
    origin = min(r.begin + p.clock_offset_ns for r, p in zip(readings, parts, strict=True))
    programs, issued, begins, ends = [], [], [], []
    for part, reading in zip(parts, readings, strict=True):
        shift = part.clock_offset_ns - origin
        program, sent = reading.through()
        programs.append(program)
        begins.append(float(reading.begin + shift))
        ends.append(float(reading.end + shift))
        issued.append([(op, float(s.handed + shift), float(s.end + shift)) for op, s in sent])
    if any([op for op, _, _ in mine] != [op for op, _, _ in issued[0]] for mine in issued):
        return f"in step {step} the ranks do not issue the same operations in the same order"
    taken = tuple(taken_of(one) for one in zip(*issued, strict=True))
    return FsdpStep(tuple(programs), tuple(begins), tuple(ends), taken)


class _Reading:
    """One rank's step as a program of its compute stream."""

    def __init__(
        self, run: Run, part: Part, units: Sequence[Unit], marks: Sequence[Mark], step: int, depth: int | None
    ) -> None:
        self.units, self.depth = units, depth
        self.began: dict[int, int] = {}
        self.number = {u.name: i for i, u in enumerate(units)}
        self.marks = [m for m in marks if m.unit in self.number]
        events = run.table("events", part.ordinal)
        self.ts, self.dur, self.launch = (np.asarray(events[c]) for c in ("ts", "dur", "launch"))
        mine = (events["step"] == step) & (self.launch >= 0)
        self.rows: Ints = np.flatnonzero(mine & events.is_("kind", "kernel", "memcpy", "memset", "comm"))
        kernels = np.flatnonzero(mine & events.is_("kind", "kernel"))
        lanes = np.asarray(events["lane"])
        busy = {lane: int(self.dur[kernels][lanes[kernels] == lane].sum()) for lane in np.unique(lanes[kernels]).tolist()}
        busiest = max(busy, key=lambda lane: busy[lane], default=-1)
        own = kernels[lanes[kernels] == busiest]
        own = own[np.argsort(self.ts[own], kind="stable")]
        self.launched, self.start, self.over = self.ts[self.launch[own]], self.ts[own], self.ts[own] + self.dur[own]
        self.usable = len(own) > 0
        self.begin = int(self.start[0]) if self.usable else 0
        self.end = int(self.over.max()) if self.usable else 0

    def through(self) -> tuple[Program, list[tuple[Op, Sent]]]:
        """The program, and its operations in their order."""
        entries = self._gathers() + self._enters() + self._reductions()
        items: list[Item] = []
        sent: list[tuple[Op, Sent]] = []
        at = self.begin
        for entry in sorted(entries, key=lambda e: (e.ts, e.item.place == "settle")):
            if entry.ts > at:
                items.append(Item("work", ns=float(entry.ts - at)))
                at = entry.ts
            items.append(entry.item)
            at = max(at, entry.until)
            if entry.sent is not None:
                sent.append(entry.sent)
        if self.end > at:
            items.append(Item("work", ns=float(self.end - at)))
        made = with_keeps(with_aheads(items))
        return Program(tuple(made), {}, held_of(made)), sent

    def _next(self, host: int) -> int:
        """The first kernel of the compute stream that was launched at a host instant or later."""
        return int(np.searchsorted(np.maximum.accumulate(self.launched), host, "left"))

    def _at(self, host: int) -> int:
        """Where the compute stream is when the work launched before a host instant is done."""
        place = self._next(host)
        return int(self.start[place]) if place < len(self.start) else self.end

    def _copying(self, mark: Mark) -> tuple[int, int, int] | None:
        """(end of the kernel before, start and end of a unit's copy-out) of a range that enters the unit."""
        copies = [m for m in self.marks if m.what == "all_gather_copy_out" and m.unit == mark.unit]
        inside = next((m for m in copies if mark.begin <= m.begin < mark.end), None)
        if inside is None:
            return None
        first, last = self._next(inside.begin), self._next(inside.end)
        if first == last:
            return None
        before = int(self.over[first - 1]) if first else int(self.start[first])
        return before, int(self.start[first]), int(self.over[last - 1])

    def _enters(self) -> list[_Entry]:
        out: list[_Entry] = []
        coming: dict[str, Sent] = {}
        for mark in self.marks:
            unit, backward = self.number[mark.unit], "backward" in mark.what
            if mark.what == "all_gather" and mark.sent:
                coming[mark.unit] = mark.sent[0]
            elif mark.what in ("pre_forward", "pre_backward"):
                copying, gather = self._copying(mark), self._own(mark) or coming.get(mark.unit)
                if copying is None or gather is None:
                    at = self._at(mark.end)
                    out.append(_Entry(at, at, Item("enter", unit, backward)))
                    continue
                before, starts, after = copying
                before = min(max(before, self._issued(gather, unit, backward)), starts)
                ns = float(after - max(before, min(gather.end, copying[1])))
                out.append(_Entry(before, after, Item("enter", unit, backward, ns)))
            elif mark.what in ("post_forward", "post_backward_reshard"):
                at = self._before(mark.begin)
                out.append(_Entry(at, at, Item("leave", unit, backward)))
        return out

    def _own(self, mark: Mark) -> Sent | None:
        """The gather that a range which enters a unit makes itself."""
        own = (m for m in self.marks if m.what == "all_gather" and m.unit == mark.unit and m.sent)
        return next((m.sent[0] for m in own if mark.begin <= m.begin < mark.end), None)

    def _before(self, host: int) -> int:
        """The end of what the compute stream was given before a host instant."""
        place = self._next(host)
        return int(self.over[place - 1]) if place else self.begin

    def _gathers(self) -> list[_Entry]:
        """Gathers, at the instant at which they began, or could begin with more units asked for ahead."""
        out = []
        for mark in self.marks:
            if mark.what != "all_gather" or not mark.sent:
                continue
            unit, sent = self.number[mark.unit], mark.sent[0]
            backward = self._backward(mark)
            inside = self.rows[(self.ts[self.launch[self.rows]] >= mark.begin) & (self.ts[self.launch[self.rows]] < mark.end)]
            self.began[sent.row] = int(self.ts[inside].min()) if len(inside) else int(self.ts[sent.event])
            at = self._issued(sent, unit, backward)
            op = Op("gather", unit, sent.bytes, sent.op)
            item = Item("ahead", unit, backward, gathers=(unit,))
            out.append(_Entry(at, at, item, (op, replace(sent, handed=at))))
        return out

    def _issued(self, sent: Sent, unit: int, backward: bool) -> int:
        """When a gather began, its copying in included; or could begin, where more units are asked for ahead.

        In the forward pass one that begins as another ends had been asked for before: the host's launch and the streams' waits
        say when.
        """
        began = self.began[sent.row]
        if not backward:
            began = min(began, max(int(self.ts[self.launch[sent.event]]), self._copied(unit, 2, "pre_forward")))
        return began if self.depth is None else min(began, self._earliest(unit, backward, self.depth, began))

    def _copied(self, unit: int, before: int, what: str) -> int:
        """When the unit so many before another one had been copied out; the begin of the step where there is none."""
        entered = [m for m in self.marks if m.what == what]
        place = next((i for i, m in enumerate(entered) if self.number[m.unit] == unit), 0) - before
        copied = self._copying(entered[place]) if place >= 0 else None
        return copied[2] if copied else self.begin

    def _backward(self, mark: Mark) -> bool:
        """Does a gather belong to the backward pass? It has begun when the first unit has been entered again."""
        first = next((m.begin for m in self.marks if m.what == "pre_backward"), None)
        return first is not None and mark.begin >= first

    def _earliest(self, unit: int, backward: bool, depth: int, otherwise: int) -> int:
        """When a gather can begin if it is asked for ``depth`` units ahead; those of a unit that holds others stay."""
        what = _PASSES[backward][0]
        entered = [m for m in self.marks if m.what == what and self.units[self.number[m.unit]].inner]
        places = [i for i, m in enumerate(entered) if self.number[m.unit] == unit]
        if not places or depth < 1 or not self.units[unit].inner:
            return otherwise
        asked = max(places[0] - depth, 0)
        free = asked if backward else asked - 1
        copied = self._copying(entered[free]) if free >= 0 else None
        return max(entered[asked].end, copied[2] if copied else self.begin)

    def _reductions(self) -> list[_Entry]:
        """Reductions at their begin; and where the compute stream waits for those before."""
        out: list[_Entry] = []
        earlier = 0
        for mark in self.marks:
            if mark.what == "post_backward_rs_wait" and earlier:
                out.append(self._settling(mark.begin, earlier))
            if mark.what == "post_backward_reduce":
                for sent in mark.sent:
                    at = int(self.ts[sent.event])
                    op = Op("reduce", self.number[mark.unit], sent.bytes, sent.op)
                    item = Item("reduce", op.unit, True, bytes=sent.bytes, op=sent.op)
                    out.append(_Entry(at, at, item, (op, replace(sent, handed=at))))
                    earlier = max(earlier, sent.end)
        if earlier:
            out.append(self._settling(max(m.end for m in self.marks), earlier))
        return out

    def _settling(self, host: int, over: int) -> _Entry:
        """The compute stream stands still from what it had been given until the reductions are over, if it did."""
        place = self._next(host)
        before = self._before(host)
        goes_on = int(self.start[place]) if place < len(self.start) else self.end
        return _Entry(before, max(min(over, goes_on), before), Item("settle"))
