"""What a rank does in one step of FSDP2, as places where something may be gathered, and what a plan makes of them.

The order in which a unit is gathered, awaited, freed and reduced is that of torch/distributed/fsdp/_fully_shard
(_fsdp_state.py and _fsdp_param_group.py, torch 2.13): a unit that is not there is gathered as it is entered; after that the
units to prefetch are asked for; leaving the forward pass frees it where ``reshard_after_forward`` says so; in the backward pass
the unit that was left before is gathered ahead unless others are named, and gradients are reduced as a unit is left.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Place = Literal["work", "enter", "ahead", "leave", "reduce", "settle", "other"]
Doing = Literal["work", "issue", "wait", "open", "close"]
OpKind = Literal["gather", "reduce", "other"]


@dataclass(frozen=True)
class Unit:
    """One unit of sharding: its modules' name as torch gives it (empty for the root), bytes of its whole parameters as they
    travel, how many layers it holds; ``inner``: it holds no other unit.
    """

    name: str
    bytes: int
    layers: int
    inner: bool


@dataclass(frozen=True)
class Item:
    """One place of a rank's step, in order.

    ``work`` lasts ``ns``. ``enter``: a unit is about to be used, ``ns`` is copying it out. ``ahead``: others may be gathered;
    ``gathers`` are the units that were asked for there (for ``enter`` itself, if it was). ``leave``: it may be freed;
    ``keeps``: after a backward pass it was not. ``reduce`` and ``other`` are collectives of ``bytes``, handed over by a call of
    ``ns``, which the thread waits for; on a device nothing waits for ``reduce`` before ``settle``.
    """

    place: Place
    unit: int = -1
    backward: bool = False
    ns: float = 0.0
    gathers: tuple[int, ...] = ()
    keeps: bool = False
    bytes: int = 0
    op: str = ""


@dataclass(frozen=True)
class Op:
    """A collective: what for, of which unit, its bytes, and the operation that the backend makes of it."""

    kind: OpKind
    unit: int
    bytes: int
    op: str


@dataclass(frozen=True)
class Act:
    """One thing that a rank's thread does: works for ``ns``, issues an operation by a call of ``ns`` or waits for one, opens or
    closes a range.
    """

    doing: Doing
    ns: float = 0.0
    op: int = -1
    name: str = ""


@dataclass(frozen=True)
class Program:
    """A step of one rank. ``pack``: ns before the gather of a unit is handed over, and of the call that does so; ``held``:
    units that are there as the step begins.
    """

    items: tuple[Item, ...]
    pack: dict[int, tuple[float, float]]
    held: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plan:
    """How units are gathered. ``forward`` and ``backward``: units ahead that are asked for (None: as measured; backward 0 is
    torch's own, one). ``reshard``: frees after forward, None as measured. ``waits``: whoever asks for a gather waits for it;
    ``settles``: reductions are waited for later.
    """

    forward: int | None = None
    backward: int | None = None
    reshard: bool | None = None
    waits: bool = True
    settles: bool = False


@dataclass
class Expanded:
    """A program under a plan: its acts and operations; ``peak``: most bytes of gathered parameters held at once."""

    acts: list[Act] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    peak: int = 0


def expand(program: Program, units: Sequence[Unit], freed: frozenset[int], plan: Plan) -> Expanded:
    """What a rank does under a plan; ``freed``: units that the measured run frees after their forward pass."""
    return _Expansion(program, units, freed, plan).through()


class _Expansion:
    def __init__(self, program: Program, units: Sequence[Unit], freed: frozenset[int], plan: Plan) -> None:
        self.program, self.units, self.plan = program, units, plan
        self.freed = freed if plan.reshard is None else frozenset(range(len(units))) if plan.reshard else frozenset()
        self.there: set[int] = set(program.held)
        self.coming: dict[int, int] = {}
        self.copies = _copies(program)
        self.order = [i.unit for i in program.items if i.place == "enter" and not i.backward]
        self.left: list[int] = []
        self.out = Expanded()
        self.inside = ""
        self.unsettled: list[int] = []

    def through(self) -> Expanded:
        for item in self.program.items:
            self._phase(item)
            if item.place == "work":
                self._work(item.ns)
            elif item.place == "enter":
                self._enter(item)
            elif item.place == "ahead":
                self._ahead(item)
            elif item.place == "leave":
                self._leave(item)
            elif item.place == "settle":
                self._settle()
            else:
                self._blocking(item)
        self._close()
        return self.out

    def _work(self, ns: float) -> None:
        if ns > 0:
            self.out.acts.append(Act("work", ns))

    def _phase(self, item: Item) -> None:
        """Ranges forward and backward around what belongs to a pass."""
        if item.place in ("work", "other", "settle"):
            return
        now = "backward" if item.backward else "forward"
        if now != self.inside:
            self._close()
            self.out.acts.append(Act("open", name=now))
            self.inside = now

    def _close(self) -> None:
        if self.inside:
            self.out.acts.append(Act("close", name=self.inside))

    def _enter(self, item: Item) -> None:
        unit = item.unit
        name = self._named("pre_backward" if item.backward else "pre_forward", unit)
        self.out.acts.append(Act("open", name=name))
        if unit not in self.there:
            if unit not in self.coming and self.units[unit].bytes:
                self._gather(unit)
            if unit in self.coming:
                copying = self._named("all_gather_copy_out", unit)
                self.out.acts.append(Act("open", name=copying))
                self.out.acts.append(Act("wait", op=self.coming.pop(unit)))
                self._work(self.copies.get(unit, 0.0))
                self.out.acts.append(Act("close", name=copying))
            self.there.add(unit)
        self.out.acts.append(Act("close", name=name))

    def _ahead(self, item: Item) -> None:
        wanted = [u for u in self._wanted(item) if u not in self.there and u not in self.coming and self.units[u].bytes]
        for unit in wanted:
            name = f"FSDP::{'backward' if item.backward else 'forward'}_prefetch for {self.units[unit].name}"
            self.out.acts.append(Act("open", name=name))
            self._gather(unit)
            self.out.acts.append(Act("close", name=name))

    def _wanted(self, item: Item) -> list[int]:
        """Units to ask for at a place: as measured, the next so many inner units, or the one that was left before."""
        depth = self.plan.backward if item.backward else self.plan.forward
        if depth is None:
            return list(item.gathers)
        inner = [u for u in self.order if self.units[u].inner]
        if item.backward and (depth == 0 or not self.units[item.unit].inner):
            place = self.left.index(item.unit) if item.unit in self.left else 0
            return self.left[max(place - 1, 0) : place]
        if item.unit not in inner:
            return []
        place = inner.index(item.unit)
        return inner[max(place - depth, 0) : place][::-1] if item.backward else inner[place + 1 : place + 1 + depth]

    def _leave(self, item: Item) -> None:
        name = self._named("post_backward_reshard" if item.backward else "post_forward", item.unit)
        self.out.acts += [Act("open", name=name), Act("close", name=name)]
        if not item.backward:
            self.left.append(item.unit)
        if (not item.keeps) if item.backward else item.unit in self.freed:
            self.there.discard(item.unit)

    def _gather(self, unit: int) -> None:
        name = self._named("all_gather", unit)
        self.out.acts.append(Act("open", name=name))
        before, call = self.program.pack.get(unit, (0.0, 0.0))
        self._work(before)
        self.coming[unit] = self._issue(Op("gather", unit, self.units[unit].bytes, "all_gather"), call)
        if self.plan.waits:
            self.out.acts.append(Act("wait", op=self.coming[unit]))
        self.out.acts.append(Act("close", name=name))
        held = sum(self.units[u].bytes for u in self.there | set(self.coming))
        self.out.peak = max(self.out.peak, held)

    def _settle(self) -> None:
        self.out.acts += [Act("wait", op=number) for number in self.unsettled]
        self.unsettled = []

    def _blocking(self, item: Item) -> None:
        name = self._named("post_backward_reduce", item.unit) if item.place == "reduce" else item.op
        self.out.acts.append(Act("open", name=name))
        kind: OpKind = "reduce" if item.place == "reduce" else "other"
        number = self._issue(Op(kind, item.unit, item.bytes, item.op), item.ns)
        if self.plan.settles and kind == "reduce":
            self.unsettled.append(number)
        else:
            self.out.acts.append(Act("wait", op=number))
        self.out.acts.append(Act("close", name=name))

    def _issue(self, op: Op, call: float = 0.0) -> int:
        self.out.ops.append(op)
        self.out.acts.append(Act("issue", call, len(self.out.ops) - 1))
        return len(self.out.ops) - 1

    def _named(self, what: str, unit: int) -> str:
        name = self.units[unit].name
        return f"FSDP::{what} ({name})" if name else f"FSDP::{what}"


def _copies(program: Program) -> dict[int, float]:
    """ns of copying a unit out: the mean of what was seen in the step."""
    seen: dict[int, list[float]] = defaultdict(list)
    for item in program.items:
        if item.place == "enter" and item.ns > 0:
            seen[item.unit].append(item.ns)
    return {unit: sum(values) / len(values) for unit, values in seen.items()}


# -- wrapping: several units as one


def wrapped(program: Program, units: Sequence[Unit], groups: Sequence[Sequence[int]]) -> Program:
    """The program with the units of every group as one; ``groups`` are the new units in order, by old numbers.

    The group is entered where its first member was, and left, with its gradients, where its last one was; what its members
    take to hand over and to copy out is taken together.
    """
    of = {unit: number for number, group in enumerate(groups) for unit in group}
    copies = _copies(program)
    passes = _passes(program.items)
    first: set[int] = set()
    last: set[int] = set()
    seen: dict[tuple[str, int, int], int] = {}
    for place, item in enumerate(program.items):
        key = item.place, passes[place], of.get(item.unit, -1)
        if item.unit >= 0 and key not in seen:
            first.add(place)
        seen[key] = place
    last.update(seen.values())
    out: list[Item] = []
    for place, item in enumerate(program.items):
        if item.unit < 0:
            out.append(item)
            continue
        group = of[item.unit]
        early = item.place in ("enter", "ahead")
        if place not in (first if early else last):
            continue
        ns = sum(copies.get(u, 0.0) for u in groups[group]) if item.place == "enter" else item.ns
        size = sum(units[u].bytes for u in groups[group]) if item.place == "reduce" else item.bytes
        share = item.bytes / units[item.unit].bytes if item.place == "reduce" and units[item.unit].bytes else 1.0
        gathers = tuple(dict.fromkeys(of[u] for u in item.gathers if of[u] != group or item.place == "enter"))
        out.append(replace(item, unit=group, ns=ns, gathers=gathers, bytes=round(size * share)))
    pack = {n: _together([program.pack[u] for u in group if u in program.pack]) for n, group in enumerate(groups)}
    held = frozenset(of[u] for u in program.held)
    return Program(tuple(out), pack, held)


def _together(packs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Copying adds up, and one call does for all."""
    return sum(before for before, _ in packs), max((call for _, call in packs), default=0.0)


def _passes(items: Sequence[Item]) -> list[int]:
    """The number of the pass of each item: it grows where forward turns to backward and back."""
    out, number, backward = [], 0, False
    for item in items:
        if item.unit >= 0 and item.backward != backward:
            number, backward = number + 1, item.backward
        out.append(number)
    return out


def groups_of(units: Sequence[Unit], layers: int) -> list[list[int]] | str:
    """Inner units of one kind that follow each other, ``layers`` layers together; all others alone. A text says why not."""
    alike = [
        re.sub(r"\d+", "#", u.name.partition(",")[0]) if u.inner and u.bytes else f"alone {i}" for i, u in enumerate(units)
    ]
    out: list[list[int]] = []
    held = 0
    for number, unit in enumerate(units):
        several = alike.count(alike[number]) > 1
        if several and unit.layers > layers:
            return f"a unit holds {unit.layers} layers, and where one of them ends was not measured: profile with smaller units"
        joins = several and out and alike[out[-1][0]] == alike[number] and held + unit.layers <= layers
        if joins:
            out[-1].append(number)
            held += unit.layers
        else:
            out.append([number])
            held = unit.layers
    if len(out) == len(units) and not any(alike.count(a) > 1 for a in alike):
        return "the job has no two units of one kind that could be wrapped together"
    return out


def joined(units: Sequence[Unit], group: Sequence[int]) -> Unit:
    """Several units as one."""
    mine = [units[u] for u in group]
    name = ", ".join(u.name for u in mine)
    return Unit(name, sum(u.bytes for u in mine), sum(u.layers for u in mine), all(u.inner for u in mine))
