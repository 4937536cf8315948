"""The format ``nccl_inspector``: files of NCCL's Inspector plug-in, one per process, as ``dtprof.open_run`` takes them.

A line tells the rank in its communicator. The job's rank of a process is its rank in the largest communicator that it is
in; members of the smaller ones follow from that. Unless the plug-in traced events, an operation is taken to have ended when
its line was written: durations are measured, their places in time are not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtprof.errors import NotATrace
from dtprof.run import Manifest, Part, Run
from dtprof_collectors.flight_recorder_tables import Group, Process, Quality, Recorded, run_of
from dtprof_collectors.nccl_inspector import Operation, operation_of, operations

_HEAD_BYTES = 64 << 10
_TAKE = "give the folder NCCL_INSPECTOR_DUMP_DIR, with one file per process"
Who = tuple[str | None, int | None, str]


class NcclInspectorReader:
    """The reader of NCCL Inspector files."""

    name = "nccl_inspector"

    def sniff(self, path: Path) -> bool:
        """A file whose first whole line is one of the plug-in's, or a folder that holds one."""
        return bool(_files(path))

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a file or a folder of them."""
        by_process: dict[Who, list[Operation]] = defaultdict(list)
        quality: Quality = []
        for file in _files(path):
            found, bad = operations(file)
            for one in found:
                by_process[one.host, one.pid, "" if one.pid is not None else file.name].append(one)
            if bad:
                quality.append((file.name, "lines that are no operation", bad, "those operations are missing"))
        if not by_process:
            raise NotATrace(f"{path}: no operation of NCCL's Inspector", _TAKE)
        ranks = {who: _rank(found) for who, found in by_process.items()}
        groups = _groups(by_process, ranks)
        processes = [_process(who, found, ranks[who], groups) for who, found in by_process.items()]
        processes[0].quality += quality
        return run_of(
            path, "nccl_inspector", processes, Manifest(world_size=max(o.n_ranks for f in by_process.values() for o in f))
        )


def _files(path: Path) -> list[Path]:
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [file for file in files if file.is_file() and _is_inspector(file)]
    except OSError:
        return []


def _is_inspector(file: Path) -> bool:
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    for line in head.split(b"\n")[:20]:
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if operation_of(row) is not None:
            return True
    return False


def _rank(found: Sequence[Operation]) -> int | None:
    """Rank in the largest communicator; None where it is in two of that size under different ranks."""
    largest = max(o.n_ranks for o in found)
    ranks = {o.rank for o in found if o.n_ranks == largest}
    return ranks.pop() if len(ranks) == 1 and min(ranks, default=-1) >= 0 else None


def _groups(by_process: Mapping[Who, Sequence[Operation]], ranks: Mapping[Who, int | None]) -> dict[str, Group]:
    """Communicators by id; members are known where every one of them has a file."""
    places: dict[str, dict[int, int | None]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for who, found in by_process.items():
        for one in found:
            places[one.communicator][one.rank] = ranks[who]
            sizes[one.communicator] = one.n_ranks
    groups = {}
    for name, size in sizes.items():
        members = [places[name].get(place) for place in range(size)] if size <= len(places[name]) else [None]
        known = [m for m in members if m is not None]
        ranks_of = tuple(sorted(known)) if len(known) == len(members) == len(set(known)) else None
        groups[name] = Group(name, f"communicator {name}", ranks_of, size)
    return groups


def _process(who: Who, found: Sequence[Operation], rank: int | None, groups: Mapping[str, Group]) -> Process:
    host, pid, file = who
    source = file or f"{host or 'host'}-pid{pid}"
    part = Part(
        ordinal=0, rank=rank, host=host, pid=pid, backend="nccl", source=source, world_size=max(o.n_ranks for o in found),
        rank_from="rank in the largest communicator" if rank is not None else "",
    )  # fmt: skip
    quality: Quality = []
    untraced = sum(not o.traced for o in found)
    if untraced:
        what = "operations whose place in time is when their line was written"
        quality.append((source, what, untraced, "durations are measured, starts are not"))
    for timer, count in Counter(o.timed_by for o in found).items():
        if timer.endswith("cpu"):
            what = f"operations timed by {timer}"
            quality.append((source, what, count, "the host's view: longer than on the device"))
    return Process(part, [_recorded(o, groups[o.communicator]) for o in found], quality)


def _recorded(o: Operation, group: Group) -> Recorded:
    bytes_in = o.side if o.op == "all_gather" else o.size
    bytes_out = o.side if o.op == "reduce_scatter" else o.size
    return Recorded(
        op=o.op, group=group, seq=o.seq, ts=o.start, dur=o.dur, state="completed", bytes_in=bytes_in, bytes_out=bytes_out,
        name=f"nccl:{o.name}",
    )  # fmt: skip
