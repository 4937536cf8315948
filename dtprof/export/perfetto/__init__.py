"""One Perfetto trace of the whole run: a track group per rank and device, counters, and flows.

Flows join launch calls with what they launched, and the ranks' parts of every matched operation. Time 0 is the run's
earliest instant on the aligned clock, in ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dtprof.export.chrome_events import Arguments, arguments, matched, series
from dtprof.export.common import Progress, Written, aligned, clock_zero, compressed, label, run_name, silent, unmarked_steps
from dtprof.export.perfetto import proto
from dtprof.export.perfetto.tracks import edges
from dtprof.intervals import Ints
from dtprof.run import Part, Run, write_atomic
from dtprof.schema import EVENT_KINDS, MISSING32, PHASES
from dtprof.table import Table

# numbers of tracks: groups of a part, lanes (with room for overlapping spans) and counters
_GROUP, _LANE, _SPARE, _COUNTER = 1 << 16, 1 << 40, 1 << 12, 1 << 62
# flows of launches carry the part and the call, those of operations this bit
_OPERATION = 1 << 63


class PerfettoExporter:
    """``NAME.pftrace.gz``, for the Perfetto UI and its trace processor."""

    name = "perfetto"

    def export(self, run: Run, folder: Path) -> list[Path]:
        """Write below ``folder`` and return the files."""
        return [w.path for w in self.write(run, folder)]

    def write(self, run: Run, folder: Path, progress: Progress = silent) -> list[Written]:
        """One file."""
        path = folder / f"{run_name(run)}.pftrace.gz"
        count = 0

        def fill(temporary: Path) -> None:
            nonlocal count
            with compressed(temporary) as file:
                file.write(proto.first_packet())
                for done, writer in enumerate(writers(run)):
                    progress(label(writer.part), done, len(run.parts))
                    for data in writer.packets():
                        file.write(data)
                    count += writer.events

        write_atomic(path, fill)
        return [Written(path, count)]


def writers(run: Run) -> Iterator[PartWriter]:
    """A writer for every part; they share the numbers of texts."""
    zero, texts = clock_zero(run), Texts()
    shares: dict[int, dict[int, list[int]]] = {}
    for operation, members in matched(run).items():
        for ordinal, row in members:
            shares.setdefault(ordinal, {}).setdefault(row, []).append(operation)
    for order, part in enumerate(run.parts):
        yield PartWriter(run, part, order, zero, texts, shares.get(part.ordinal, {}))


class Texts:
    """Numbers of names and keys, and those that were not written yet."""

    def __init__(self) -> None:
        self._known: tuple[dict[str, int], ...] = ({}, {}, {})
        self._new: tuple[dict[int, str], ...] = ({}, {}, {})

    def of(self, kind: int, text: str) -> int:
        """Number of a category (kind 0), a name (1) or a key (2)."""
        known = self._known[kind]
        if text not in known:
            known[text] = len(known) + 1
            self._new[kind][known[text]] = text
        return known[text]

    def news(self) -> bytes:
        """The packet that declares what is new."""
        if not any(self._new):
            return b""
        data = proto.interned(*self._new)
        for new in self._new:
            new.clear()
        return data


class PartWriter:
    """Packets of one part."""

    def __init__(self, run: Run, part: Part, order: int, zero: int, texts: Texts, operations: dict[int, list[int]]) -> None:
        self.part, self.events = part, 0
        self._run, self._order, self._zero, self._texts, self._operations = run, order, zero, texts, operations
        self._table: Table = run.table("events", part.ordinal)
        self._lanes: Table = run.table("lanes", part.ordinal)

    def packets(self) -> Iterator[bytes]:
        """Descriptors, slices and counters."""
        yield from self._groups()
        start = aligned(self.part, self._table["ts"], self._zero)
        end = np.asarray(start + self._table["dur"])
        args = arguments(self._run, self.part)
        lane = self._table["lane"]
        order = np.argsort(lane, kind="stable")
        borders = np.flatnonzero(np.diff(lane[order])) + 1
        for rows in np.split(order, borders) if len(order) else []:
            yield from self._slices(int(lane[rows[0]]), rows, start, end, args)
        yield from self._steps()
        yield from self._counters()

    def _uuid(self, device: int) -> int:
        return (self._order + 1) * _GROUP + device + 1

    def _groups(self) -> Iterator[bytes]:
        """A group for the host and one per device, in the order of ranks."""
        devices = sorted({-1, *(int(d) for d in self._lanes["device"].tolist())})
        for device in devices:
            about = "host" if device < 0 else f"GPU {device} {self.part.device or ''}".strip()
            # the trace processor takes equal pids for one process
            pid = (self._order + 1) * 1000 + device + 1
            yield proto.process_track(self._uuid(device), pid, f"{label(self.part)}: {about}")

    def _lane(self, lane: int) -> tuple[int, str, bool]:
        """Device, name and whether it is on a device."""
        at = np.flatnonzero(self._lanes["id"] == lane)
        if not len(at):
            return -1, f"lane {lane}", False
        row = self._lanes.row(int(at[0]))
        device = int(row["device"])
        number = row["stream"] if device >= 0 else row["thread"]
        name = row["name"] or f"{'stream' if device >= 0 else 'thread'} {number}"
        return device, f"{name} ({row['role']})" if row["role"] not in (None, "other") else name, device >= 0

    def _slices(self, lane: int, rows: Ints, start: Ints, end: Ints, args: Arguments) -> Iterator[bytes]:
        device, name, on_device = self._lane(lane)
        uuid = _LANE * (self._order + 1) + (lane + 1) * _SPARE
        tracks: dict[int, bytes] = {}
        openings: dict[tuple[int, int, int], bytes] = {}
        names, kinds = self._table["name"], self._table["kind"]
        for ts, row, depth, begins in edges(rows, start, end):
            if depth not in tracks:
                tracks[depth] = proto.number(11, uuid + depth)
                yield proto.lane_track(uuid + depth, name if not depth else f"{name} (overlapping)", self._uuid(device))
            if not begins:
                yield proto.end(ts, tracks[depth])
                continue
            self.events += 1
            key = (depth, int(kinds[row]), int(names[row]))
            if key not in openings:
                openings[key] = self._opening(tracks[depth], key[1], key[2])
            more = self._annotations(row, args(row, on_device, lane)) + self._flows(row)
            yield self._texts.news() + proto.begin(ts, openings[key], more)

    def _opening(self, track: bytes, kind: int, name: int) -> bytes:
        text = self._table.values("name")[name] if name >= 0 else ""
        return proto.opening(track, self._texts.of(0, EVENT_KINDS[kind]), self._texts.of(1, text))

    def _annotations(self, row: int, values: dict[str, Any]) -> bytes:
        """The arguments of an event, and the step and phase that it belongs to."""
        step, phase = int(self._table["step"][row]), int(self._table["phase"][row])
        tags = {"step": step if step != MISSING32 else None, "phase": PHASES[phase] if phase >= 0 else None}
        out = b""
        for key, value in {**values, **tags}.items():
            if value is not None:
                plain = ",".join(map(str, value)) if isinstance(value, list) else value
                out += proto.annotation(self._texts.of(2, key), plain)
        return out

    def _flows(self, row: int) -> bytes:
        """Flows of launches (numbered by their call) and of operations."""
        out = b""
        if row in self._launching:
            out += proto.flow((self._order + 1) << 32 | row)
        launch = int(self._table["launch"][row])
        if launch >= 0:
            out += proto.flow((self._order + 1) << 32 | launch)
        return out + b"".join(proto.flow(_OPERATION | op) for op in self._operations.get(row, ()))

    @cached_property
    def _launching(self) -> set[int]:
        """Calls that launched something."""
        launch = self._table["launch"]
        return set(launch[launch >= 0].tolist())

    def _steps(self) -> Iterator[bytes]:
        """Steps that no range marks, on a track of their own."""
        numbers, starts, durations = unmarked_steps(self._run, self.part)
        start = aligned(self.part, starts, self._zero)
        uuid = _LANE * (self._order + 1)
        tracks: dict[int, bytes] = {}
        for ts, row, depth, begins in edges(np.arange(len(numbers)), start, start + durations):
            if depth not in tracks:
                tracks[depth] = proto.number(11, uuid + depth)
                yield proto.lane_track(uuid + depth, "steps" if not depth else "steps (overlapping)", self._uuid(-1))
            if begins:
                self.events += 1
                name = self._texts.of(1, f"ProfilerStep#{numbers[row]}")
                opening = proto.opening(tracks[depth], self._texts.of(0, "range"), name)
                yield self._texts.news() + proto.begin(ts, opening)
            else:
                yield proto.end(ts, tracks[depth])

    def _counters(self) -> Iterator[bytes]:
        for number, (name, unit, times, values) in enumerate(series(self._run, self.part, self._zero)):
            uuid = _COUNTER + (self._order + 1) * _GROUP + number
            yield proto.counter_track(uuid, name, self._uuid(-1), unit)
            track = proto.number(11, uuid)
            for ts, value in zip(times, values, strict=True):
                yield proto.counter(ts, track, value)
