"""Communication of a Kineto file: which operation, group and bytes stand behind every communication span.

Order of trust: the kernel's own arguments, the record that encloses its launch, the names of the enclosing ranges,
and last the kernel's name, which may be generic or wrong (an all-to-all runs as SendRecv).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dtprof.catalogue.collectives import dtype_bytes, operation
from dtprof.ingest.kineto.raw import RawTrace, Sparse
from dtprof.ingest.kineto.spans import Rows, kind_code
from dtprof.intervals import Ints
from dtprof.schema import MISSING
from dtprof.table import Strings, Table

_RECORD = "record_param_comms"
_RANGE = re.compile(r"^(?:nccl|gloo|mpi|ucc|xccl|hccl):")
_OPERATOR = re.compile(r"^(?:c10d|symm_mem|_c10d_functional|_C_custom_ar|deep_ep)::")
_MESSAGE = re.compile(r"^c10d::(?:send|recv_)$")
_COALESCED = re.compile(r"^\w+:coalesced$")


@dataclass(frozen=True)
class Member:
    """One operation behind an event; None is not known."""

    op: str = "unknown"
    group_name: str | None = None
    group_description: str | None = None
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    seq: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    bytes_wire: int | None = None
    bytes_known: str = "unknown"
    dtype: str | None = None
    peer: int | None = None
    known_by: str = "name"
    record: int | None = None


@dataclass
class Arguments:
    """Arguments of single spans, looked up by row."""

    raw: RawTrace
    _maps: dict[str, dict[int, Any]] = field(default_factory=dict)

    def get(self, row: int, key: str) -> Any:
        """The argument of a span (row in file order), or None."""
        if key not in self._maps:
            self._maps[key] = dict(_items(self.raw.args.get(key)))
        return self._maps[key].get(row)


def _items(column: Sparse | None) -> Iterator[tuple[int, Any]]:
    if column is None:
        return
    if isinstance(column.values, Strings):
        codes, values = column.values.codes.tolist(), column.values.values
        for row, code in zip(column.rows.tolist(), codes, strict=True):
            if code >= 0:
                yield row, values[code]
        return
    for row, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
        if value != MISSING:
            yield row, value


@lru_cache(maxsize=4096)
def rank_list(text: str | None, size: int | None, start: int | None, stride: int | None) -> tuple[int, ...] | None:
    """Members of a group from its printed list; a list that was cut off is rebuilt from start and stride, else None."""
    if text and "..." not in text:
        try:
            ranks = tuple(int(r) for r in json.loads(text))
        except (ValueError, TypeError):
            ranks = ()
        if ranks and (size is None or len(ranks) == size):
            return ranks
    if size and start is not None and stride is not None and stride > 0:
        return tuple(range(start, start + size * stride, stride))
    return None


@lru_cache(maxsize=4096)
def _split_bytes(text: str | None, own: int | None, total: int | None) -> tuple[int | None, bool]:
    """(bytes to the other ranks, whether they are exact) of an all-to-all with this printed split."""
    if text is None or total is None:
        return None, text is None
    try:
        parts = [int(p) for p in json.loads(text)] if "..." not in text else []
    except (ValueError, TypeError):
        parts = []
    if not parts or own is None or own >= len(parts) or sum(parts) == 0:
        return None, False
    return total - total * parts[own] // sum(parts), True


def from_arguments(args: Arguments, row: int, groups: dict[str, tuple[int, ...]]) -> Member | None:
    """What the arguments of a kernel or record say; None where it has none."""
    name = args.get(row, "Collective name")
    if name is None:
        return None
    op = operation(name)
    size, dtype = args.get(row, "Group size"), args.get(row, "dtype")
    pg = args.get(row, "Process Group Name")
    ranks = rank_list(
        args.get(row, "Process Group Ranks"), size, args.get(row, "Global rank start"), args.get(row, "Global rank stride")
    )
    ranks = ranks or (groups.get(pg) if pg is not None else None)
    width = dtype_bytes(dtype)
    counts = args.get(row, "In msg nelems"), args.get(row, "Out msg nelems")
    bytes_in, bytes_out = (c * width if c is not None and c >= 0 and width else None for c in counts)
    wire, exact = None, True
    if op == "all_to_all":
        rank = args.get(row, "Rank")
        own = ranks.index(rank) if ranks and rank in ranks else None
        wire, exact = _split_bytes(args.get(row, "In split size"), own, bytes_in)
    peer = args.get(row, "Dst Rank" if op == "send" else "Src Rank") if op in ("send", "recv") else None
    known = "unknown" if bytes_in is None and bytes_out is None else "exact" if exact else "upper_bound"
    return Member(
        op, pg, args.get(row, "Process Group Description"), ranks, size, args.get(row, "Seq"), bytes_in, bytes_out, wire,
        known, dtype, peer, "args", row,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _volume(dims: str | None, types: str | None) -> tuple[int | None, str | None]:
    """Bytes and element type of the first tensor (or tensor list) in printed input shapes."""
    try:
        shapes, names = ast.literal_eval(dims or ""), ast.literal_eval(types or "")
    except (ValueError, SyntaxError):
        return None, None
    for shape, name in zip(shapes, names, strict=False):
        width = dtype_bytes(name)
        if width and isinstance(shape, list):
            lists = shape if shape and isinstance(shape[0], list) else [shape]
            return sum(int(np.prod(s, dtype=np.int64)) for s in lists) * width, name
    return None, None


def from_record(args: Arguments, row: int, name: str) -> Member:
    """What a range or operator that names the operation says by its name and its input shapes."""
    op = operation(name)
    volume, dtype = _volume(args.get(row, "Input Dims"), args.get(row, "Input type"))
    bytes_out = volume if op in ("all_reduce", "all_to_all", "broadcast", "reduce", "send", "recv") else None
    known = "unknown" if volume is None else "exact"
    return Member(op, bytes_in=volume, bytes_out=bytes_out, bytes_known=known, dtype=dtype, known_by="record", record=row)


def is_record(name: str) -> bool:
    """Does an operator or range of this name stand for a communication operation?"""
    return bool(_RANGE.match(name) or _OPERATOR.match(name)) and operation(name) != "unknown"


@dataclass
class CommBuilder:
    """Turns the communication spans of one file into comm and groups rows. Rows are event rows (ascending ts)."""

    args: Arguments
    order: Ints  # event row -> span row of the raw trace
    name: Strings
    kind: Any
    ts: Ints
    dur: Ints
    parent: Rows
    launch: Rows
    lane: Rows
    host: Any
    pg_ranks: dict[str, tuple[int, ...]]
    world_size: int | None
    told: dict[int, list[Member]] = field(default_factory=dict)  # by event row, as the library itself reports it
    claimed: set[int] = field(default_factory=set)

    def name_of(self, row: int) -> str:
        """Name of an event."""
        code = int(self.name.codes[row])
        return self.name.values[code] if code >= 0 else ""

    def chain(self, row: int) -> Iterator[int]:
        """The events that enclose ``row``, innermost first."""
        while (row := int(self.parent[row])) >= 0:
            yield row

    def members(self, event: int) -> list[Member]:
        """All operations behind one communication event."""
        own = from_arguments(self.args, int(self.order[event]), self.pg_ranks)
        if self.host[event]:
            named = replace(from_record(self.args, int(self.order[event]), self.name_of(event)), record=event)
            return [own or (replace(named, peer=self._peer(event)) if named.op in ("send", "recv") else named)]
        launch = int(self.launch[event])
        found = self._records(launch) if launch >= 0 else []
        if event in self.told:
            found = with_library(found, self.told[event])
        by_name = operation(self.name_of(event))
        if own is not None:
            record = found[0].record if found else None
            op = own.op if own.op != "unknown" else found[0].op if found and found[0].op != "unknown" else by_name
            if len(found) <= 1 or own.op not in ("unknown", "send_recv"):
                return [replace(own, op=op, record=record)]
        if not found:
            return [Member(op=by_name)]
        return [replace(m, op=by_name) if m.op == "unknown" else m for m in found]

    def _peer(self, event: int) -> int | None:
        """The rank in its group that a host's send or receive names: in the arguments of the call that it begins inside of."""
        call = event - 1
        if call < 0 or self.lane[call] != self.lane[event] or not _MESSAGE.match(self.name_of(call)):
            return None
        try:
            return int(json.loads(self.args.get(int(self.order[call]), "Concrete Inputs") or "")[2])
        except (ValueError, IndexError, TypeError):
            return None

    def _records(self, launch: int) -> list[Member]:
        named: Member | None = None
        for row in self.chain(launch):
            name, span = self.name_of(row), int(self.order[row])
            if name == _RECORD:
                self.claimed.add(row)
                told = from_arguments(self.args, span, self.pg_ranks)
                if told is None:
                    continue
                return [_fill(replace(told, record=row), named)]
            if _COALESCED.match(name):
                return self._coalesced(row) or [Member(known_by="record", record=row)]
            if _RANGE.match(name) or _OPERATOR.match(name):
                told = replace(from_record(self.args, span, name), record=row)
                named = told if named is None or (named.op == "unknown" and told.op != "unknown") else _fill(named, told)
        return [named] if named is not None else []

    def _coalesced(self, around: int) -> list[Member]:
        """Records inside a coalesced launch, or, for batched point-to-point, those closed just before it."""
        if not hasattr(self, "_by_lane"):
            self._by_lane = self._records_by_lane()
        start, end = int(self.ts[around]), int(self.ts[around] + self.dur[around])
        lane = self._by_lane.get(int(self.lane[around]), [])
        inside = [r for r in lane if start <= self.ts[r] < end]
        if not inside:
            inside = [r for r in lane if self.ts[r] < start and r not in self.claimed]
        self.claimed.update(inside)
        told = [(r, from_arguments(self.args, int(self.order[r]), self.pg_ranks)) for r in inside]
        return [replace(m, record=r) for r, m in told if m is not None]

    def _records_by_lane(self) -> dict[int, list[int]]:
        code = self.name.values.index(_RECORD) if _RECORD in self.name.values else -2
        launching = {r for lane in np.flatnonzero(self.launch >= 0).tolist() for r in self.chain(int(self.launch[lane]))}
        out: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.name.codes == code).tolist():
            if row not in launching or self._inside_coalesced(row):
                out.setdefault(int(self.lane[row]), []).append(row)
        return out

    def _inside_coalesced(self, row: int) -> bool:
        return any(_COALESCED.match(self.name_of(r)) for r in self.chain(row))

    def tables(self) -> tuple[Table, Table]:
        """The comm and groups tables."""
        events = np.flatnonzero(self.kind == kind_code("comm")).tolist()
        groups: dict[tuple[Any, ...], int] = {}
        group_rows: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for event in events:
            found = self.members(event)
            batch = len(rows) if len(found) > 1 else None
            rows.extend(self._row(event, m, batch, groups, group_rows) for m in found)
        return Table.from_rows("comm", rows), Table.from_rows("groups", group_rows)

    def _row(
        self, event: int, m: Member, batch: int | None, groups: dict[tuple[Any, ...], int], group_rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        group = None
        if m.ranks is not None or m.group_name is not None or m.size is not None:
            key = (m.ranks, m.group_name if m.ranks is None else None, m.size)
            group = groups.setdefault(key, len(groups))
            if group == len(group_rows):
                size = len(m.ranks) if m.ranks is not None else m.size
                group_rows.append(
                    {"id": group, "name": m.group_name, "description": m.group_description, "ranks": m.ranks, "size": size}
                )
        return {
            "event": event, "record": m.record, "op": m.op, "group": group, "seq": m.seq, "batch": batch,
            "bytes_in": m.bytes_in, "bytes_out": m.bytes_out, "bytes_wire": m.bytes_wire, "bytes_known": m.bytes_known,
            "dtype": m.dtype, "peer": m.peer, "known_by": m.known_by,
        }  # fmt: skip


def with_library(found: list[Member], told: list[Member]) -> list[Member]:
    """Records of the framework completed by what the library says: group and bytes, and the operations where it has none.

    A collective that the library carries out as sends and receives (an all-to-all) stays one: its bytes are their sums.
    """
    named = found[0] if found else None
    if named is None or named.op in ("unknown", "send_recv"):
        return told
    if len(found) > 1 and len(found) == len(told):
        return [_completed(f, t) for f, t in zip(found, told, strict=True)]
    if len(found) > 1:
        return found
    return [_completed(named, _summed(told))]


def _summed(told: list[Member]) -> Member:
    """Parts of one operation as one: bytes added up where all are known."""
    if len(told) == 1:
        return told[0]
    sums: list[int | None] = []
    for key in ("bytes_in", "bytes_out"):
        parts = [getattr(m, key) for m in told if getattr(m, key) is not None]
        sums.append(sum(parts) if parts else None)
    wires = [m.bytes_wire for m in told if m.op == "send"]
    wire = sum(w for w in wires if w is not None) if wires and None not in wires else None
    same = all((m.group_name, m.size) == (told[0].group_name, told[0].size) for m in told)
    first = told[0] if same else Member()
    exact = all(m.bytes_known == "exact" for m in told)
    return replace(
        first, op="unknown", bytes_in=sums[0], bytes_out=sums[1], bytes_wire=wire, bytes_known="exact" if exact else "unknown",
        peer=None,
    )  # fmt: skip


def _completed(record: Member, told: Member) -> Member:
    """``record`` with group, sequence and bytes from ``told`` where it has none."""
    if record.ranks is None and record.group_name is None:
        record = replace(record, group_name=told.group_name, group_description=told.group_description, ranks=told.ranks)
    size = record.size if record.size is not None else told.size
    seq = record.seq if record.seq is not None else told.seq
    if record.bytes_in is None and record.bytes_out is None:
        record = replace(
            record, bytes_in=told.bytes_in, bytes_out=told.bytes_out, bytes_wire=told.bytes_wire, bytes_known=told.bytes_known
        )
    peer = record.peer if record.peer is not None else told.peer
    return replace(record, size=size, seq=seq, peer=peer, dtype=record.dtype or told.dtype)


def _fill(first: Member, second: Member | None) -> Member:
    """``first``, with op and bytes from ``second`` where it has none."""
    if second is None:
        return first
    op = first.op if first.op != "unknown" else second.op
    if first.bytes_in is None and first.bytes_out is None:
        first = replace(
            first, bytes_in=second.bytes_in, bytes_out=second.bytes_out, bytes_known=second.bytes_known, dtype=second.dtype
        )
    return replace(first, op=op)
