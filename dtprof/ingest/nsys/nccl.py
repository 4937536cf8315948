"""Communication operations as NCCL's own NVTX ranges report them, joined with the kernels that they launched.

A range is named after NCCL's function and carries its communicator, bytes, peer or root. Functions between
``ncclGroupStart`` and ``ncclGroupEnd`` are launched by the latter. "Message size" counts what one rank contributes to a
gather, keeps of a reduce-scatter, and sends to each peer of an all-to-all (NCCL, src/collectives.cc).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dtprof.catalogue.collectives import operation
from dtprof.ingest.kineto.comm import Member
from dtprof.ingest.kineto.events import Events
from dtprof.ingest.kineto.spans import kind_code
from dtprof.ingest.nsys.meanings import NCCL_NAME
from dtprof.schema import OPS

_GROUP_START, _GROUP_END = "GroupStart", "GroupEnd"
_COMMUNICATOR = ("communicator",)
_BYTES, _PEER, _ROOT, _RANKS, _RANK = ("message size", "bytes"), ("peer",), ("root",), ("no. of ranks", "nranks"), ("rank",)
_SEQUENCE, _OPERATION, _MEMBERS, _GROUP, _TYPE = ("sequence", "seq"), ("operation",), ("ranks",), ("group",), ("data type",)
_SHORT = {"Bcast": "broadcast", "AllReduce": "all_reduce", "Send": "send", "Recv": "recv"}


@dataclass(frozen=True)
class Communicator:
    """One communicator as this process opened it: size and the process's rank in it; None where not recorded."""

    id: int
    size: int | None = None
    rank: int | None = None


def entry(payload: dict[str, Any], wanted: tuple[str, ...], exact: bool = False) -> Any:
    """The entry whose name contains (or is) one of these, in any case; None where there is none."""
    for name, value in payload.items():
        low = name.lower()
        if any(low == w if exact else w in low for w in wanted):
            return value
    return None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value, 0) if isinstance(value, str) else value
    except ValueError:
        return None


def communicators(payloads: dict[int, dict[str, Any]]) -> dict[int, Communicator]:
    """Communicators by id, with what the ranges that opened them say."""
    out: dict[int, Communicator] = {}
    for payload in payloads.values():
        number = _whole(entry(payload, _COMMUNICATOR))
        if number is None:
            continue
        known = out.get(number, Communicator(number))
        size, rank = _whole(entry(payload, _RANKS)), _whole(entry(payload, _RANK, exact=True))
        out[number] = Communicator(number, known.size if size is None else size, known.rank if rank is None else rank)
    return out


def group_name(communicator: int) -> str:
    """How a communicator is called in the groups table."""
    return f"nccl {communicator & (2**64 - 1):#x}"


def members(payloads: dict[int, dict[str, Any]], known: dict[int, Communicator]) -> Callable[[Events], dict[int, list[Member]]]:
    """Finds, for every communication kernel launched inside NCCL's ranges, the operations behind it."""

    def find(events: Events) -> dict[int, list[Member]]:
        named = [bool(NCCL_NAME.match(text)) for text in events.name.values]
        rows = np.flatnonzero(np.array([*named, False], bool)[events.name.codes] & (events.kind == kind_code("range")))
        out: dict[int, list[Member]] = {}
        if not len(rows):
            return out
        kernels = np.flatnonzero((events.kind == kind_code("comm")) & events.device & (events.launch >= 0))
        for lane in np.unique(events.lane[rows]).tolist():
            units = _units(events, rows[events.lane[rows] == lane], payloads, known)
            mine = kernels[events.lane[events.launch[kernels]] == lane]
            starts = np.array([u[0] for u in units], np.int64)
            at = np.searchsorted(starts, events.ts[events.launch[mine]], "right") - 1
            for number in np.unique(at[at >= 0]).tolist():
                _, end, told = units[number]
                inside = [k for k in mine[at == number].tolist() if events.ts[events.launch[k]] < end]
                out.update(_shared_out(inside, told))
        return out

    return find


Unit = tuple[int, int, list[Member]]


def _units(events: Events, rows: Any, payloads: dict[int, dict[str, Any]], known: dict[int, Communicator]) -> list[Unit]:
    """What launches at once: single functions, and groups of them; (start, end, operations) in time order."""
    units: list[Unit] = []
    depth, begun, held = 0, 0, list[Member]()
    for row in rows.tolist():
        function = events.name.values[events.name.codes[row]].removeprefix("p").removeprefix("nccl")
        start, end = int(events.ts[row]), int(events.ts[row] + events.dur[row])
        payload = payloads.get(int(events.order[row]), {})
        if function == _GROUP_START:
            begun, held = (start, []) if depth == 0 else (begun, held)
            depth += 1
        elif function == _GROUP_END and not _told_operation(payload):
            depth = max(0, depth - 1)
            if depth == 0 and held:
                units.append((begun, end, held))
                held = []
        elif (member := _member(function, row, payload, known)) is not None:
            if depth:
                held.append(member)
            else:
                units.append((start, end, [member]))
    return units


def _told_operation(payload: dict[str, Any]) -> str | None:
    told = entry(payload, _OPERATION, exact=True)
    return told if isinstance(told, str) and told in OPS else None


def _member(function: str, row: int, payload: dict[str, Any], known: dict[int, Communicator]) -> Member | None:
    """The operation of one range; None where it is none (``ncclCommCount``)."""
    op = _told_operation(payload) or _SHORT.get(function) or operation(function)
    if op == "unknown":
        return None
    number = _whole(entry(payload, _COMMUNICATOR))
    opened = known.get(number, Communicator(number)) if number is not None else None
    size = opened.size if opened is not None else None
    peer = _whole(entry(payload, _PEER)) if op in ("send", "recv") else None
    count = _whole(entry(payload, _BYTES))
    sent, got = _sides(op, count, size)
    listed = entry(payload, _MEMBERS, exact=True)
    ranks = tuple(listed) if isinstance(listed, list) and all(isinstance(r, int) for r in listed) else None
    wire = None
    if op == "send" and count is not None and opened is not None and opened.rank is not None and peer is not None:
        wire = 0 if peer == opened.rank else count
    given, dtype = entry(payload, _GROUP, exact=True), entry(payload, _TYPE, exact=True)
    name = given if isinstance(given, str) else None if number is None else group_name(number)
    return Member(
        op, name, None, ranks, size, _whole(entry(payload, _SEQUENCE)), sent, got, wire,
        "unknown" if count is None else "exact", dtype if isinstance(dtype, str) else None, peer, "args", row,
    )  # fmt: skip


def _sides(op: str, count: int | None, n: int | None) -> tuple[int | None, int | None]:
    """Bytes that a rank puts in and gets out, from NCCL's message size."""
    if count is None:
        return None, None
    every = count * n if n is not None else None
    return {
        "all_gather": (count, every), "reduce_scatter": (every, count), "all_to_all": (every, every), "send": (count, None),
        "recv": (None, count), "gather": (count, None), "scatter": (None, count), "barrier": (None, None),
    }.get(op, (count, count))  # fmt: skip


def _shared_out(kernels: list[int], told: list[Member]) -> dict[int, list[Member]]:
    """Which of a group's kernels carries which of its operations: all in one, one in each, or one per communicator."""
    if len(kernels) <= 1:
        return dict.fromkeys(kernels, told)
    if len(kernels) == len(told):
        return {k: [m] for k, m in zip(kernels, told, strict=True)}
    by_group: dict[str | None, list[Member]] = {}
    for member in told:
        by_group.setdefault(member.group_name, []).append(member)
    if len(by_group) == len(kernels):
        return dict(zip(kernels, by_group.values(), strict=True))
    # how they are shared out is not known: the operations stand with the first kernel, the others keep the group
    group = told[0] if len(by_group) == 1 else Member()
    rest = replace(group, op="unknown", bytes_in=None, bytes_out=None, bytes_wire=None, bytes_known="unknown", peer=None)
    return {kernels[0]: told, **{k: [rest] for k in kernels[1:]}}
