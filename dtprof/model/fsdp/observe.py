"""What a measured run shows of its FSDP2 steps: units, what each rank does between them, and what the operations took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.model.fsdp.marks import Mark, Sent, marks_of
from dtprof.model.fsdp.program import Item, Op, Program, Unit
from dtprof.model.fsdp.running import WORKERS
from dtprof.model.typical import typical_error, typical_step
from dtprof.run import Part, Run
from dtprof.schema import POINT_TO_POINT

# by part: ranges of each step, and collectives of each step that lie in none of them
Marked = dict[int, tuple[dict[int, list[Mark]], dict[int, list[Sent]]]]
_ENTER, _AHEAD = ("pre_forward", "pre_backward"), ("forward_prefetch", "backward_prefetch")
_LEAVE = ("post_forward", "post_backward_reshard")


@dataclass(frozen=True)
class Taken:
    """One collective as it was measured, ns from the step's origin: handed over by the last rank, over for the last one;
    ``early``: how long before that it was over for each rank.
    """

    op: Op
    handed: float
    end: float
    early: tuple[float, ...]


@dataclass(frozen=True)
class FsdpStep:
    """One step: each rank's program, when it began and ended, ns from the common origin; the operations in order."""

    programs: tuple[Program, ...]
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    taken: tuple[Taken, ...]


@dataclass(frozen=True)
class SeenFsdp:
    """The FSDP2 steps of a run. ``units`` in the order of the forward pass; ``freed``: those that are freed after it;
    ``waits``: whoever asks for a gather waits for it, as on gloo unless asynchronous ones are asked for; ``ahead``: most units
    asked for ahead in forward and in backward; ``error_ns``: standard error of the typical step; ``workers``: operations in
    flight at a time. On a device ``at_depth`` gives the same steps with so many units gathered ahead.
    """

    ranks: tuple[int, ...]
    units: tuple[Unit, ...]
    freed: frozenset[int]
    waits: bool
    ahead: tuple[int, int]
    steps: dict[int, FsdpStep]
    typical_ns: float
    untraced: int
    error_ns: float
    workers: int = WORKERS
    at_depth: Callable[[int], SeenFsdp | str] | None = None

    @property
    def on_device(self) -> bool:
        """Are the programs those of a compute stream?"""
        return self.at_depth is not None


def observe(run: Run) -> SeenFsdp | str:
    """The FSDP2 steps of a CPU run, or why there are none to be had."""
    told = marked(run)
    if isinstance(told, str):
        return told
    parts, marks, units = told
    steps, freed, stayed, ahead = {}, set[int](), list[bool](), [0, 0]
    for step, origin in origins_of(run, parts).items():
        if not all(step in marks[p.ordinal][0] for p in parts):
            continue
        made = _step(run, parts, marks, units, step, origin)
        if isinstance(made, str):
            return made
        steps[step] = made
        stayed += [m.end >= m.sent[0].end for m in marks[parts[0].ordinal][0][step] if m.what == "all_gather" and m.sent]
        for item in made.programs[0].items:
            if item.backward and item.gathers and item.place in ("enter", "ahead"):
                freed.update(item.gathers)
            if item.place == "ahead":
                ahead[item.backward] = max(ahead[item.backward], len(item.gathers))
    if not steps:
        return "no captured step has the ranges of FSDP2 on all ranks"
    traced = [max(s.ends) for s in steps.values()]
    typical, untraced = typical_step(run, parts, float(np.median(traced)))
    return SeenFsdp(
        tuple(int(p.rank or 0) for p in parts), units, frozenset(freed), sum(stayed) > len(stayed) / 2, (ahead[0], ahead[1]),
        steps, typical, untraced, typical_error(run, parts, traced),
    )  # fmt: skip


def marked(run: Run) -> tuple[list[Part], Marked, tuple[Unit, ...]] | str:
    """The parts with a rank, what FSDP's ranges say of each, and the units; or why there are none to be had."""
    parts = [p for p in run.parts if p.rank is not None]
    marks = {p.ordinal: marks_of(run, p) for p in parts}
    if not any(found for found, _ in marks.values()):
        return (
            "no range of FSDP2 was recorded: FSDP1 and other strategies are not modelled, and a capture must hold a whole step"
        )
    if why := partial_ranks(run, parts, marks):
        return why
    units = units_of(marks)
    return units if isinstance(units, str) else (parts, marks, units)


def partial_ranks(run: Run, parts: Sequence[Part], marks: Marked) -> str:
    """Why the ranks that are there cannot be taken for the whole job; empty where they can."""
    for part in parts:
        found, outside = marks[part.ordinal]
        groups = run.table("groups", part.ordinal)
        sizes = dict(zip(groups["id"].tolist(), groups["size"].tolist(), strict=True))
        for mark in (m for ms in found.values() for m in ms if m.what == "all_gather"):
            n = sizes.get(mark.sent[0].group, -1) if mark.sent else -1
            if n > len(parts):
                return f"{len(parts)} of {n} ranks are in the run: who waits for whom cannot be told; bring the traces of all"
            if 0 < n < len(parts):
                return f"parameters are sharded over {n} of {len(parts)} ranks (HSDP): groups side by side are not modelled"
        if any(s.op in POINT_TO_POINT for sent in outside.values() for s in sent):
            return "the job sends and receives beside FSDP2, as a pipeline does: that is not modelled"
    return ""


def units_of(marks: Marked) -> tuple[Unit, ...] | str:
    """Units by their first use in a forward pass; their bytes are those of their gathers."""
    order: dict[str, None] = {}
    sizes: dict[str, int] = {}
    outer: set[str] = set()
    for found, _ in marks.values():
        for mine in found.values():
            inside: list[str] = []
            for mark in mine:
                if mark.what == "pre_forward":
                    order.setdefault(mark.unit)
                    outer.update(inside)
                    inside.append(mark.unit)
                elif mark.what == "post_forward" and mark.unit in inside:
                    inside.remove(mark.unit)
                if mark.what == "all_gather" and mark.sent:
                    sizes[mark.unit] = max(sizes.get(mark.unit, 0), mark.sent[0].bytes)
    if not sizes:
        return "no unit was gathered: one rank holds all parameters, or the captured steps lack their operations"
    return tuple(Unit(n, sizes.get(n, 0), len(n.split(", ")), n not in outer) for n in order)


def origins_of(run: Run, parts: Sequence[Part]) -> dict[int, int]:
    """First begin over the ranks of every captured training step that all have, on the run's clock."""
    found: dict[int, list[int]] = defaultdict(list)
    for part in parts:
        steps = run.table("steps", part.ordinal)
        kinds = steps.text("kind")
        for row, (step, ts, captured) in enumerate(
            zip(*(steps[c].tolist() for c in ("step", "host_ts", "captured")), strict=True)
        ):
            if captured and kinds[row] in (None, "train"):
                found[step].append(ts + part.clock_offset_ns)
    return {step: min(begins) for step, begins in sorted(found.items()) if len(begins) == len(parts)}


def _step(
    run: Run,
    parts: Sequence[Part],
    marks: Marked,
    units: Sequence[Unit],
    step: int,
    origin: int,
) -> FsdpStep | str:
    shifts = [part.clock_offset_ns - origin for part in parts]
    programs, begins, ends, issued = [], [], [], []
    for part, shift in zip(parts, shifts, strict=True):
        found, outside = marks[part.ordinal]
        steps = run.table("steps", part.ordinal)
        row = int(np.flatnonzero(steps["step"] == step)[0])
        begin = int(steps["host_ts"][row])
        end = begin + int(steps["host_dur"][row])
        program, sent = _Reading(units, found[step], outside.get(step, []), begin, end).through()
        programs.append(program)
        begins.append(float(begin + shift))
        ends.append(float(end + shift))
        issued.append([(op, float(s.handed + shift), float(s.end + shift)) for op, s in sent])
    if any([op for op, _, _ in mine] != [op for op, _, _ in issued[0]] for mine in issued):
        return f"in step {step} the ranks do not issue the same operations in the same order"
    taken = tuple(taken_of(one) for one in zip(*issued, strict=True))
    return FsdpStep(tuple(programs), tuple(begins), tuple(ends), taken)


def taken_of(ranks: Sequence[tuple[Op, float, float]]) -> Taken:
    """One operation from its (handing over, end) on every rank."""
    end = max(over for _, _, over in ranks)
    return Taken(ranks[0][0], max(handed for _, handed, _ in ranks), end, tuple(end - over for _, _, over in ranks))


class _Reading:
    """One rank's step as a program: what is between two places is the thread's own work."""

    def __init__(self, units: Sequence[Unit], marks: Sequence[Mark], others: Sequence[Sent], begin: int, end: int) -> None:
        self.number = {u.name: i for i, u in enumerate(units)}
        self.marks = [m for m in marks if m.unit in self.number]
        self.others = list(others)
        self.at, self.end = begin, end
        self.items: list[Item] = []
        self.sent: list[tuple[Op, Sent]] = []
        self.packs: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.coming: dict[str, Sent] = {}

    def through(self) -> tuple[Program, list[tuple[Op, Sent]]]:
        for mark, parts in nested(self.marks):
            while self.others and self.others[0].handed < mark.begin:
                self._other(self.others.pop(0))
            self._place(mark, parts)
        for sent in self.others:
            self._other(sent)
        self._until(self.end)
        items = with_keeps(with_aheads(self.items))
        pack = {unit: (float(np.mean(seen, axis=0)[0]), float(np.mean(seen, axis=0)[1])) for unit, seen in self.packs.items()}
        return Program(tuple(items), pack, held_of(items)), self.sent

    def _until(self, ts: int) -> None:
        if ts > self.at:
            self.items.append(Item("work", ns=float(ts - self.at)))
            self.at = ts

    def _other(self, sent: Sent) -> None:
        self._until(sent.handed)
        self.items.append(Item("other", ns=_call(sent), bytes=sent.bytes, op=sent.op))
        self.sent.append((Op("other", -1, sent.bytes, sent.op), sent))
        self.at = max(self.at, sent.end)

    def _place(self, mark: Mark, parts: Sequence[Mark]) -> None:
        unit, backward = self.number[mark.unit], "backward" in mark.what
        if mark.what in _ENTER:
            self._enter(mark, parts, unit, backward)
        elif mark.what in _AHEAD:
            self._ahead(parts, backward)
        elif mark.what in _LEAVE:
            self._until(mark.begin)
            self.items.append(Item("leave", unit, backward))
        elif mark.what == "post_backward_reduce":
            for sent in mark.sent:
                self._until(sent.handed)
                self.items.append(Item("reduce", unit, True, _call(sent), bytes=sent.bytes, op=sent.op))
                self.sent.append((Op("reduce", unit, sent.bytes, sent.op), sent))
                self.at = max(self.at, sent.end)

    def _enter(self, mark: Mark, parts: Sequence[Mark], unit: int, backward: bool) -> None:
        """Being gathered here, or awaited here; what follows the operation's end is copying out."""
        self._until(mark.begin)
        own = next((m for m in parts if m.what == "all_gather" and m.unit == mark.unit and m.sent), None)
        if own is not None:
            self._until(own.begin)
            self._gather(own)
        copying = next((m for m in parts if m.what == "all_gather_copy_out" and m.unit == mark.unit), None)
        ns = 0.0
        if copying is not None and mark.unit in self.coming:
            over = self.coming.pop(mark.unit).end
            if own is None:
                self._until(copying.begin)
            ns = float(copying.end - max(self.at, min(over, copying.end)))
            self.at = copying.end
        self.items.append(Item("enter", unit, backward, ns, () if own is None else (unit,)))
        for ahead in (m for m in parts if m.what in _AHEAD):
            self._ahead([m for m in parts if ahead.begin <= m.begin < ahead.end], backward)

    def _ahead(self, parts: Sequence[Mark], backward: bool) -> None:
        gathers = [m for m in parts if m.what == "all_gather" and m.sent and m.unit in self.number]
        for gather in gathers:
            self._until(gather.begin)
            self._gather(gather)
        last = next((i for i in reversed(self.items) if i.place == "enter"), None)
        if last is not None and gathers:
            asked = tuple(self.number[g.unit] for g in gathers)
            self.items.append(Item("ahead", last.unit, backward, gathers=asked))

    def _gather(self, mark: Mark) -> None:
        sent, unit = mark.sent[0], self.number[mark.unit]
        self.packs[unit].append((float(max(sent.handed - mark.begin, 0)), _call(sent)))
        self.sent.append((Op("gather", unit, sent.bytes, sent.op), sent))
        self.coming[mark.unit] = sent
        self.at = max(self.at, sent.end if mark.end >= sent.end else sent.returned)


def _call(sent: Sent) -> float:
    """ns of the call that handed an operation over."""
    return float(max(sent.returned - sent.handed, 0))


def nested(marks: Sequence[Mark]) -> list[tuple[Mark, list[Mark]]]:
    """Outermost ranges, each with those inside it."""
    out: list[tuple[Mark, list[Mark]]] = []
    for mark in marks:
        if out and mark.begin < out[-1][0].end:
            out[-1][1].append(mark)
        else:
            out.append((mark, []))
    return out


def with_aheads(items: Sequence[Item]) -> list[Item]:
    """One place for prefetching after every entrance, whether or not something was asked for there."""
    out: list[Item] = []
    for place, item in enumerate(items):
        if item.place == "ahead" and out and out[-1].place == "ahead" and out[-1].unit == item.unit:
            out[-1] = Item("ahead", item.unit, item.backward, gathers=out[-1].gathers + item.gathers)
            continue
        out.append(item)
        if item.place != "enter":
            continue
        following = next((i for i in items[place + 1 :] if i.place != "work"), None)
        if following is None or following.place != "ahead":
            out.append(Item("ahead", item.unit, item.backward))
    return out


def with_keeps(items: Sequence[Item]) -> list[Item]:
    """Backward passes after which a unit was still there: it is used again in the step, and was not gathered for it."""
    out = list(items)
    for place, item in enumerate(items):
        if item.place != "leave" or not item.backward:
            continue
        rest = items[place + 1 :]
        used = next((n for n, i in enumerate(rest) if i.place == "enter" and i.unit == item.unit), None)
        if used is not None and not any(item.unit in i.gathers for i in rest[: used + 1]):
            out[place] = Item("leave", item.unit, True, keeps=True)
    return out


def held_of(items: Sequence[Item]) -> frozenset[int]:
    """Units that are used before they are gathered: they were there as the step began."""
    gathered: set[int] = set()
    held: set[int] = set()
    for item in items:
        gathered.update(item.gathers)
        if item.place == "enter" and item.unit not in gathered:
            held.add(item.unit)
    return frozenset(held)
