"""What all exporters share: file names, one clock over the ranks, progress, and what was written."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dtprof.intervals import Ints
from dtprof.run import Part, Run

# name of what is written, done, of how many
Progress = Callable[[str, int, int], None]


def silent(name: str, done: int, of: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Written:
    """One file (or folder of one format) that an exporter left; ``rows`` are table rows or trace events."""

    path: Path
    rows: int

    @property
    def size(self) -> int:
        """Bytes; of a folder those of its files."""
        if self.path.is_dir():
            return sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())
        return self.path.stat().st_size


@contextlib.contextmanager
def compressed(path: Path) -> Iterator[gzip.GzipFile]:
    """A gzip file to write to; equal content gives equal bytes."""
    with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=3, mtime=0) as file:
        yield file


def run_name(run: Run) -> str:
    """A file name for the run: letters, digits, ``._-`` of its folder's name; ``run`` where nothing is left."""
    name = Path(run.path).name
    for ending in (".gz", ".json", ".sqlite"):
        name = name.removesuffix(ending)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:80] or "run"


def part_names(run: Run) -> dict[int, str]:
    """File name stem of every part, by ordinal: unique, zero-padded, so that the order of names is that of ranks."""
    names: dict[int, str] = {}
    for part in run.parts:
        who = f"rank{part.rank:05d}" if part.rank is not None else f"part{part.ordinal:05d}"
        if part.rank is not None and sum(p.rank == part.rank for p in run.parts) > 1:
            who += f"_attempt{part.attempt:03d}_window{part.window:03d}_part{part.ordinal:05d}"
        names[part.ordinal] = f"{run_name(run)}_{who}"
    return names


def label(part: Part) -> str:
    """What people call the part."""
    who = f"rank {part.rank}" if part.rank is not None else f"part {part.ordinal}"
    if part.attempt:
        who += f" attempt {part.attempt}"
    return f"{who} window {part.window}" if part.window else who


_TIMES = (("events", "ts"), ("steps", "host_ts"), ("samples", "ts"), ("memory", "ts"), ("allocations", "ts"))


def clock_zero(run: Run) -> int:
    """The earliest instant of the run on the aligned clock, in ns: time 0 of every file that is written."""
    starts: list[int] = []
    for part in run.parts:
        run.table("collectives")  # aligned clocks come with the matching of operations
        for table, column in _TIMES:
            found = run.table(table, part.ordinal)
            known: Ints = found[column][found.known(column)]
            if len(known):
                starts.append(int(known.min()) + part.clock_offset_ns)
    return min(starts, default=0)


def aligned(part: Part, times: Ints, zero: int) -> Ints:
    """Times of a part on the run's clock, from ``zero`` on; missing ones stay far below 0."""
    return np.asarray(times + (part.clock_offset_ns - zero), np.int64)


def unmarked_steps(run: Run, part: Part) -> tuple[Ints, Ints, Ints]:
    """Steps that no event of the part marks: their numbers, and starts and durations on the part's clock in ns."""
    steps = run.table("steps", part.ordinal)
    marked = {name for name in run.table("events", part.ordinal).values("name") if name.startswith("ProfilerStep#")}
    told = steps.known("host_ts") & steps.known("host_dur") & ~steps.is_("kind", "restart")
    told &= np.array([f"ProfilerStep#{n}" not in marked for n in steps["step"].tolist()], bool)
    rows = np.flatnonzero(told)
    return np.asarray(steps["step"][rows], np.int64), steps["host_ts"][rows], steps["host_dur"][rows]
