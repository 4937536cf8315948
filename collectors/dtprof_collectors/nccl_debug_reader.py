"""The format ``nccl_debug``: a job's log with the lines of NCCL_DEBUG=INFO, as ``dtprof.open_run`` takes it.

Such a log has neither steps nor operations. The Run names the processes (``Part.extra["nccl"]``), the communicators (``groups``
of the manifest) and the version; warnings and slow ways are rows of ``quality``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtprof.errors import NotATrace
from dtprof.run import Manifest, Part, Run
from dtprof_collectors import flight_recorder_tables as recorded
from dtprof_collectors.nccl_debug import HEAD, Process, quality_of, read_log

_HEAD_BYTES = 1 << 20
_NOTHING = "it describes the topology and no operations"


class NcclDebugReader:
    """The reader of logs with NCCL's lines."""

    name = "nccl_debug"

    def sniff(self, path: Path) -> bool:
        """A text with a line of NCCL's in its first MiB, or a folder that holds one."""
        return bool(_files(path))

    def read(self, path: Path, options: Mapping[str, Any]) -> Run:
        """Open a log, or a folder with one per process (NCCL_DEBUG_FILE=…%h.%p)."""
        processes: list[tuple[str, Process]] = []
        for file in _files(path):
            processes += [(file.name, process) for process in read_log(file)]
        if not processes:
            raise NotATrace(f"{path}: no line of NCCL's", "record with NCCL_DEBUG=INFO")
        manifest = Manifest(
            versions={"nccl": version} if (version := processes[0][1].version) else {},
            world_size=max((c["n_ranks"] for _, p in processes for c in p.communicators.values()), default=None),
            groups=_groups([process for _, process in processes]),
        )
        return recorded.run_of(path, "nccl_debug", [_process(source, process) for source, process in processes], manifest)


def _files(path: Path) -> list[Path]:
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [file for file in files if file.is_file() and _has_lines(file)]
    except OSError:
        return []


def _has_lines(file: Path) -> bool:
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    return b" NCCL INFO " in head and b"\x00" not in head[:4096] and HEAD.search(head.decode("utf-8", "replace")) is not None


def _groups(processes: list[Process]) -> list[dict[str, Any]]:
    """Communicators, each once, with the job's ranks of those members that the log has."""
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        for communicator in process.communicators.values():
            name = str(communicator.get("id", f"{communicator['n_ranks']} ranks"))
            group = found.setdefault(name, {"name": name, "size": communicator["n_ranks"], "backend": "nccl", "ranks": []})
            if process.rank is not None and process.rank not in group["ranks"]:
                group["ranks"] = sorted([*group["ranks"], process.rank])
    return list(found.values())


def _process(source: str, process: Process) -> recorded.Process:
    part = Part(
        ordinal=0, rank=process.rank, host=process.host, pid=process.pid, device=f"cuda:{process.device}", backend="nccl",
        source=f"{source}: pid {process.pid}", extra={"nccl": process.facts()},
        rank_from="rank in the largest communicator" if process.rank is not None else "",
    )  # fmt: skip
    rows = [*quality_of(process, source), (source, "a log of NCCL's", process.lines, _NOTHING)]
    return recorded.Process(part, [], rows)
