"""Writes the tables of one process by hand: lanes, calls, device work, communication and steps, in microseconds.

Events may be added in any order and refer to each other by the handle that adding them returns; ``tables`` sorts them
and turns handles into rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtprof.ingest.match import match
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

US = 1000
T0 = 1_700_000_000_000_000_000  # ns; an instant whose nanoseconds a float64 cannot hold
CALL = 5  # us that a launch call takes

REFERENCES = {"events": ("parent", "launch"), "comm": ("event", "record"), "kernel_args": ("event",), "deps": ("src", "dst")}


@dataclass(frozen=True)
class Shape:
    """A run, its tables, and what is true of it by construction."""

    run: Run
    tables: dict[tuple[str, int | None], Table]
    truth: dict[str, Any]


class PartBuilder:
    """One process of a hand-made run."""

    def __init__(self, ordinal: int, rank: int | None, **identity: Any) -> None:
        self.part = Part(ordinal=ordinal, rank=rank, **{"host": "a", "rank_from": "by hand", **identity})
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.correlation = 10

    def add(self, table: str, **row: Any) -> int:
        """Add a row; returns its number in the order of adding."""
        rows = self.rows.setdefault(table, [])
        rows.append(row)
        return len(rows) - 1

    def thread(self, role: str = "training", thread: int = 1, name: str = "python") -> int:
        """A host lane."""
        return self._lane(device=-1, thread=thread, role=role, name=name)

    def stream(self, stream: int = 7, role: str = "compute", device: int = 0) -> int:
        """A device lane."""
        return self._lane(device=device, context=1, stream=stream, role=role, name=f"stream {stream}")

    def _lane(self, **row: Any) -> int:
        return self.add("lanes", id=len(self.rows.get("lanes", [])), process=self.part.pid, **row)

    def span(self, lane: int, kind: str, name: str, start: int, end: int, **more: Any) -> int:
        """An event from ``start`` to ``end`` us."""
        return self.add("events", lane=lane, kind=kind, name=name, ts=T0 + start * US, dur=(end - start) * US, **more)

    def launched(self, at: tuple[int, int], kind: str, name: str, start: int, end: int, call_ts: int, **more: Any) -> int:
        """A device operation on stream ``at[1]`` and its launch call, from ``call_ts`` on, on thread ``at[0]``."""
        self.correlation += 1
        step = more.get("step")
        call = self.span(at[0], "runtime", "cudaLaunchKernel", call_ts, call_ts + CALL, correlation=self.correlation, step=step)
        return self.span(at[1], kind, name, start, end, correlation=self.correlation, launch=call, **more)

    def step(self, number: int, start: int, end: int, **more: Any) -> None:
        """A host step."""
        row = {"complete": True, "kind": "train", "marked": "marked", "captured": True, **more}
        self.add("steps", step=number, host_ts=T0 + start * US, host_dur=(end - start) * US, **row)

    def group(self, name: str, ranks: tuple[int, ...] | None, **more: Any) -> int:
        """A process group; returns its id."""
        size = len(ranks) if ranks else None
        number = len(self.rows.get("groups", []))
        self.add("groups", **{"id": number, "name": name, "ranks": ranks, "size": size, "backend": "nccl", **more})
        return number

    def comm(self, event: int, op: str, group: int, seq: int | None, size: int | None, **more: Any) -> None:
        """This process's part in an operation: ``size`` bytes in and out."""
        row = {"bytes_in": size, "bytes_out": size, "bytes_known": "exact", "dtype": "float", "known_by": "args", **more}
        self.add("comm", event=event, op=op, group=group, seq=seq, **row)

    def tables(self) -> dict[tuple[str, int | None], Table]:
        """The tables of this process: events by time, references as rows."""
        events = self.rows.get("events", [])
        order = sorted(range(len(events)), key=lambda i: (events[i]["ts"], -events[i]["dur"], i))
        place = {handle: row for row, handle in enumerate(order)}
        rows = {**self.rows, "events": [events[i] for i in order]}
        for table, columns in REFERENCES.items():
            rows[table] = [
                {**row, **{c: place[row[c]] for c in columns if row.get(c) is not None}} for row in rows.get(table, [])
            ]
        return {(name, self.part.ordinal): Table.from_rows(name, found) for name, found in rows.items() if found}


def shape(builders: list[PartBuilder], truth: dict[str, Any], kind: Any = "kineto", **manifest: Any) -> Shape:
    """A run of these processes."""
    tables = {key: table for builder in builders for key, table in builder.tables().items()}
    run = Run(Manifest(parts=[b.part for b in builders], **manifest), MemoryStore(tables), "by hand", kind)
    return Shape(run, tables, truth)


def account(total: int, **us: int) -> dict[str, int]:
    """Accounting of a step of ``total`` us from the keys that are not 0, in us; they must sum to the step."""
    if sum(us.values()) != total:
        raise ValueError(f"{us} sums to {sum(us.values())}, not to {total}")
    return {f"{key}_ns": value * US for key, value in us.items()}


def matched(shape: Shape) -> Run:
    """The run with operations matched across its ranks, as every reader hands it over."""
    joined = {(name, None): table for name, table in match(shape.run).items()}
    return Run(shape.run.manifest, MemoryStore({**shape.tables, **joined}), shape.run.path, shape.run.format)
