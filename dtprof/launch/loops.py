"""Loops of compiled Python code: which instructions lie in which, and what a loop counts with.

Natural loops of the control-flow graph over instructions (Aho, Lam, Sethi, Ullman, "Compilers", 9.6): a jump back to
instruction h makes a loop of h and of all that can reach the jump without passing h. Exception edges are left out.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


@dataclass(frozen=True)
class Loop:
    """``head`` and ``body`` are offsets of instructions; ``targets`` what a for loop assigns, () for a while loop."""

    head: int
    body: frozenset[int]
    targets: tuple[str, ...]

    def holds(self, *offsets: int) -> bool:
        """Do all these instructions lie in the loop?"""
        return all(offset in self.body for offset in offsets)


def loops_of(code: CodeType) -> tuple[Loop, ...]:
    """Loops of a code object, smaller (inner) ones first."""
    # where a call is under way a frame may stand on one of the call's cache entries
    instructions = list(dis.get_instructions(code, show_caches=True))
    before: dict[int, set[int]] = {i.offset: set() for i in instructions}
    jumps_back: dict[int, set[int]] = {}
    for source, target in _edges(instructions):
        before.setdefault(target, set()).add(source)
        if target <= source:
            jumps_back.setdefault(target, set()).add(source)
    index = {i.offset: n for n, i in enumerate(instructions)}
    found = [
        Loop(head, _body(head, ends, before), _targets(instructions, index[head]))
        for head, ends in jumps_back.items()
        if head in index
    ]
    return tuple(sorted(found, key=lambda loop: len(loop.body)))


def _edges(instructions: list[dis.Instruction]) -> Iterator[tuple[int, int]]:
    jumps = {*dis.hasjrel, *dis.hasjabs}
    for here, after in zip(instructions, [*instructions[1:], None], strict=True):
        jump = here.opcode in jumps
        # waiting in a coroutine jumps back, too, and is no loop of the program
        if jump and not here.opname.endswith("NO_INTERRUPT"):
            yield here.offset, here.argval
        always = here.opname in _ENDS or here.opname.startswith(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"))
        if after is not None and not always:
            yield here.offset, after.offset


def _body(head: int, ends: set[int], before: dict[int, set[int]]) -> frozenset[int]:
    body, todo = {head}, list(ends)
    while todo:
        offset = todo.pop()
        if offset not in body:
            body.add(offset)
            todo.extend(before.get(offset, ()))
    return frozenset(body)


def _targets(instructions: list[dis.Instruction], at: int) -> tuple[str, ...]:
    """Names that a for loop assigns at the begin of every pass."""
    while instructions[at].opname == "EXTENDED_ARG":
        at += 1
    if instructions[at].opname != "FOR_ITER":
        return ()
    names = []
    for instruction in instructions[at + 1 :]:
        if instruction.opname in _STORES:
            names.append(str(instruction.argval))
        elif instruction.opname not in ("UNPACK_SEQUENCE", "EXTENDED_ARG", "CACHE"):
            break
    return tuple(names)


def counters(code: CodeType, loop: Loop, sites: list[int]) -> tuple[str, ...]:
    """What tells one pass of ``loop`` from the next: a for loop's targets; else names that every pass may assign.

    Of the latter only those assigned neither in an inner loop nor between the ``sites`` (offsets), where a name may well
    change within one pass.
    """
    if loop.targets:
        return loop.targets
    inner = [other for other in loops_of(code) if other.body < loop.body]
    low, high = min(sites), max(sites)
    return tuple(sorted({
        str(i.argval) for i in dis.get_instructions(code)
        if i.opname in _STORES and i.offset in loop.body and not low <= i.offset <= high
        and not any(other.holds(i.offset) for other in inner)
    }))  # fmt: skip
