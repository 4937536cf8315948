"""Who recorded a report and where: session start, host, environment, devices, processes, threads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dtprof.ingest.nsys.source import Source, records

_ENVIRONMENT = re.compile(r'^(\w+)="?(.*?)"?$', re.S)
# events before this (2001) are counted from the session's start, later ones are Unix times already (ts-normalize)
LEAST_UNIX_NS = 10**18
# where launchers put the rank and the world size, best first (as the training side reads them)
_RANKS = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", "PMI_SIZE"),
    ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"),
)  # fmt: skip
_KEPT = {name for pair in _RANKS for name in pair} | {"LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"}


@dataclass
class Session:
    """``start_ns`` is Unix ns (None: not recorded); ``last_ns`` the end of the recording since then.

    ``threads`` are names by (process, thread), ``processes`` by process key, ``devices`` by (process id or 0 for any, CUDA
    ordinal), ``gpus`` the hardware GPU that each of them is; ``mpi`` are MPI ranks by process key.
    """

    start_ns: int | None = None
    last_ns: int | None = None
    host: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    devices: dict[tuple[int, int], str] = field(default_factory=dict)
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    mpi: dict[int, int] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)

    def launched(self) -> int | None:
        """World size that the recorded command line states (``torchrun --nnodes 2 --nproc-per-node 8``), or None."""
        given = {}
        words = iter(self.command)
        for word in words:
            key, equals, value = word.lstrip("-").partition("=")
            if word.startswith("--") and key.replace("-", "_") in ("nnodes", "nproc_per_node"):
                given[key.replace("-", "_")] = value if equals else next(words, "")
        each, nodes = given.get("nproc_per_node", ""), given.get("nnodes", "1")
        return int(each) * int(nodes) if each.isdecimal() and nodes.isdecimal() else None

    def rank(self) -> tuple[int, int | None, str] | None:
        """(rank, world size, variable) by the environment of the recorded command, or None."""
        for rank, size in _RANKS:
            given = self.environment.get(rank, "")
            if given.isdecimal() and len(given) < 10:
                world = self.environment.get(size, "")
                return int(given), int(world) if world.isdecimal() and int(world) > int(given) else None, rank
        return None


def session_of(source: Source) -> Session:
    """All that the report's own tables say about the recording; what they lack stays empty."""
    out = Session()
    for row in records(source, "TARGET_INFO_SESSION_START_TIME", utcEpochNs="int"):
        out.start_ns = row["utcEpochNs"] if (row["utcEpochNs"] or 0) > 0 else None
    for row in records(source, "ANALYSIS_DETAILS", duration="int"):
        out.last_ns = row["duration"]
    for row in records(source, "TARGET_INFO_SYSTEM_ENV", name="text", value="text"):
        if row["name"] == "Hostname" and row["value"]:
            out.host = row["value"]
    _settings(source, out)
    for row in records(source, "PROCESSES", globalPid="int", name="text"):
        if row["globalPid"] is not None and row["name"]:
            out.processes[row["globalPid"] >> 24] = row["name"]
    _threads(source, out)
    _devices(source, out)
    for row in records(source, "MPI_RANKS", globalTid="int", rank="int"):
        if row["globalTid"] is not None and row["rank"] is not None:
            out.mpi[row["globalTid"] >> 24] = row["rank"]
    return out


def _settings(source: Source, out: Session) -> None:
    for row in records(source, "META_DATA_CAPTURE", name="text", value="text"):
        name, value = row["name"] or "", row["value"] or ""
        if name.endswith(":ENVIRONMENT_VARIABLE") and (found := _ENVIRONMENT.match(value)) and found[1] in _KEPT:
            out.environment[found[1]] = found[2]
        elif name.startswith("PROCESS_0:") and name.removeprefix("PROCESS_0:").startswith(("COMMAND", "ARGUMENT_")):
            out.command.append(value)
        elif name == "DEVICE_DISPLAY_NAME" and value:
            out.host = out.host or value
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for row in records(source, table, name="text", value="text"):
            if row["name"] in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION") and row["value"]:
                out.versions[row["name"].removeprefix("EXPORT_").lower()] = row["value"]


def _threads(source: Source, out: Session) -> None:
    named = [r for r in records(source, "ThreadNames", nameId="int", globalTid="int") if None not in r.values()]
    wanted = {row["nameId"] for row in named}
    texts = {}
    if wanted:
        texts = {r["id"]: r["value"] for r in records(source, "StringIds", id="int", value="text") if r["id"] in wanted}
    for row in named:
        if text := texts.get(row["nameId"]):
            out.threads[row["globalTid"] >> 24, row["globalTid"] & 0xFFFFFF] = text


def _devices(source: Source, out: Session) -> None:
    """Names of CUDA devices, and the hardware GPU that each is: a process numbers only those that it may use."""
    gpus = {}
    for row in records(source, "TARGET_INFO_GPU", id="int", name="text", cuDevice="int"):
        if row["id"] is not None and row["name"]:
            gpus[row["id"]] = row["name"]
            ordinal = row["cuDevice"] if row["cuDevice"] is not None else row["id"]
            out.devices.setdefault((0, ordinal), row["name"])
            out.gpus.setdefault((0, ordinal), row["id"])
    for row in records(source, "TARGET_INFO_CUDA_DEVICE", gpuId="int", cudaId="int", pid="int"):
        if None not in (row["gpuId"], row["cudaId"]):
            out.gpus[row["pid"] or 0, row["cudaId"]] = row["gpuId"]
            if row["gpuId"] in gpus:
                out.devices[row["pid"] or 0, row["cudaId"]] = gpus[row["gpuId"]]
