"""What NCCL says of itself under NCCL_DEBUG=INFO: version, communicators, rings, trees, and how ranks are connected.

A line is ``HOST:PID:TID [DEVICE] NCCL INFO text``, behind whatever a launcher puts before it. Lines of several ranks may be
mixed, and two may run into one. Wording differs between NCCL versions: what is not known is passed over.

Raw file
    nccl_debug.log      the first 4 MiB of this process's NCCL_DEBUG_FILE, copied when the session ends
Facts in part.json: those of ``Process.facts``. Without NCCL_DEBUG_FILE the lines go to the job's own output, which is not
ours to read.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "nccl_debug.log"
CAP_BYTES = 4 << 20
MOST_WARNINGS = 20
MOST_RANKS = 2**20
HEAD = re.compile(
    r"(?P<host>[^\s:\[\]]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<device>\d+|-1)\] (?:[^\s]+ )?NCCL (?P<level>INFO|WARN) ?"
)
_VERSION = re.compile(r"NCCL version ([\w.+-]+)")
_COMM = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+)")
_ID = re.compile(r"commId (0x[0-9a-f]+)")
_NODES = re.compile(r"nNodes (\d+)")
_CHANNELS = re.compile(r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels")
_EDGE = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[(?:send|receive)\])? via (\S+)")
_RING = re.compile(r"Channel \d+/\d+ :((?:\s+\d+)+)\s*$")
_NETWORK = re.compile(r"Using network (.+?)\s*$")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled)|GDRDMA", re.I)


@dataclass
class Process:
    """One process of the log; ``rank`` is that in its largest communicator."""

    host: str
    pid: int
    device: int
    version: str = ""
    communicators: dict[str, dict[str, Any]] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    rings: set[str] = field(default_factory=set)
    trees: bool = False
    transports: Counter[str] = field(default_factory=Counter)
    peers: dict[int, str] = field(default_factory=dict)
    network: str = ""
    gdr: bool | None = None
    warnings: Counter[str] = field(default_factory=Counter)
    lines: int = 0

    @property
    def rank(self) -> int | None:
        """Rank in the largest communicator, or None."""
        largest = max(self.communicators.values(), key=lambda c: c["n_ranks"], default=None)
        return largest["rank"] if largest else None

    def facts(self) -> dict[str, Any]:
        """What was found, as JSON can hold it; what was not said is left out."""
        found = {
            "version": self.version, "communicators": list(self.communicators.values()), "channels": self.channels,
            "rings": len(self.rings), "trees": self.trees, "transports": dict(self.transports),
            "peers": {str(rank): way for rank, way in sorted(self.peers.items())}, "network": self.network,
            "gpu_direct_rdma": self.gdr, "warnings": list(self.warnings),
        }  # fmt: skip
        return {key: value for key, value in found.items() if value not in ("", {}, [], None, 0)}


def parse(lines: Iterable[str]) -> list[Process]:
    """The processes of a log, in the order in which they appear."""
    every = [(line, list(HEAD.finditer(line))) for line in lines]
    hosts = _Hosts(head for _, heads in every for head in heads)
    found: dict[tuple[str, int], Process] = {}
    version = ""
    for line, heads in every:
        stated = _VERSION.search(line)
        version = stated[1] if stated and not heads else version
        for head, text in _messages(line, heads, hosts):
            key = hosts.of(head), int(head["pid"])
            process = found.setdefault(key, Process(*key, int(head["device"])))
            process.lines += 1
            if head["level"] == "WARN":
                _warn(process, text)
            else:
                _take(process, text)
    for process in found.values():
        process.version = process.version or version
    return list(found.values())


class _Hosts:
    """Host names as most lines of a process have them: where lines ran into one, a name begins with what was before it."""

    def __init__(self, heads: Iterable[re.Match[str]]) -> None:
        self._seen: dict[str, Counter[str]] = {}
        for head in heads:
            self._seen.setdefault(head["pid"], Counter())[head["host"]] += 1

    def of(self, head: re.Match[str]) -> str:
        seen = self._seen[head["pid"]]
        return max((host for host in seen if head["host"].endswith(host)), key=lambda host: (seen[host], len(host)))


def _messages(line: str, heads: Sequence[re.Match[str]], hosts: _Hosts) -> Iterator[tuple[re.Match[str], str]]:
    """Heads and texts of a line, into which another one may have run."""
    for place, head in enumerate(heads):
        after = heads[place + 1] if place + 1 < len(heads) else None
        end = after.end("host") - len(hosts.of(after)) if after else len(line)
        yield head, line[head.end() : end].strip()


def _warn(process: Process, text: str) -> None:
    plain = re.sub(r"^\S+\.(?:cc|h|c):\d+ (?:NCCL WARN )?", "", text)[:200]
    if plain in process.warnings or len(process.warnings) < MOST_WARNINGS:
        process.warnings[plain] += 1


def _take(process: Process, text: str) -> None:
    if said := _VERSION.search(text):
        process.version = said[1]
    if said := _COMM.search(text):
        _communicator(process, said, text)
    if said := _CHANNELS.search(text):
        names = ("coll", "collnet", "nvls", "p2p")
        process.channels = {name: int(n) for name, n in zip(names, said.groups(), strict=True) if n is not None}
    if said := _EDGE.search(text):
        way = transport(said[3])
        process.transports[way] += 1
        if int(said[1]) == process.rank:
            process.peers[int(said[2])] = way
    elif said := _RING.search(text):
        process.rings.add(" ".join(said[1].split()))
    if said := _NETWORK.search(text):
        process.network = said[1]
    if said := _GDR.search(text):
        process.gdr = bool(process.gdr) or (said[1] or "Enabled").lower() == "enabled"
    process.trees = process.trees or text.startswith("Trees [")


def _communicator(process: Process, said: re.Match[str], text: str) -> None:
    if not int(said[2]) < int(said[3]) <= MOST_RANKS:
        return
    known = process.communicators.setdefault(said[1], {"rank": int(said[2]), "n_ranks": int(said[3])})
    if identity := _ID.search(text):
        known["id"] = identity[1]
    if nodes := _NODES.search(text):
        known["n_nodes"] = int(nodes[1])


def transport(via: str) -> str:
    """``NET/IB/2/GDRDMA`` is NET/IB/GDRDMA: without the numbers of adapters and without what is no way of its own."""
    words = [w for w in via.split("/") if not re.fullmatch(r"-?\d+(\(-?\d+\))?", w) and w not in ("read", "Shared", "comm")]
    return "/".join(dict.fromkeys(words))


def quality_of(process: Process, source: str) -> list[tuple[str, str, int, str]]:
    """Warnings, and ways that move device data through the host."""
    rows = [(source, f"NCCL warns: {text}", count, "as said") for text, count in process.warnings.items()]
    sockets = sum(n for way, n in process.transports.items() if way.startswith("NET/Socket"))
    if sockets:
        rows.append((source, "channels between hosts that use TCP sockets", sockets, "data passes through the host's memory"))
    staged = process.transports.get("NET/IB", 0)
    if staged:
        rows.append((source, "InfiniBand channels without GPU Direct RDMA", staged, "data passes through the host's memory"))
    return rows


def read_log(path: Path, most: int = 256 << 20) -> list[Process]:
    """The processes of a log file, of its first ``most`` bytes."""
    with path.open("rb") as file:
        return parse(file.read(most).decode("utf-8", "replace").splitlines())


def debug_file(environment: Mapping[str, str], host: str, pid: int) -> Path | None:
    """NCCL_DEBUG_FILE with %h and %p filled in, as NCCL does; None where the lines go to the job's output."""
    text = environment.get("NCCL_DEBUG_FILE", "")
    if not text or text in ("stdout", "stderr"):
        return None
    return Path(text.replace("%h", host.partition(".")[0]).replace("%p", str(pid)))


class NcclDebugCollector:
    """Takes the topology that NCCL printed into the run."""

    name = "nccl_debug"

    def __init__(self) -> None:
        self._context: Context | None = None

    def start(self, context: Context) -> None:
        """Note the file; NCCL writes into it as communicators are made."""
        self._context = context
        context.status.idle = True
        file = debug_file(os.environ, socket.gethostname(), os.getpid())
        self._file = file.absolute() if file else None

    def on_step(self, step: int) -> None:
        """Nothing: NCCL writes by itself."""

    def stop(self) -> None:
        """Copy the beginning of the file, where the topology is, and note what it says of this process."""
        context, self._context = self._context, None
        if context is None or self._file is None or not self._file.is_file():
            return
        with self._file.open("rb") as file:
            (context.folder / FILE).write_bytes(file.read(CAP_BYTES))
        for process in read_log(context.folder / FILE):
            if process.pid == os.getpid():
                context.status.facts.update(process.facts())

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``quality``: warnings, and ways that pass through the host's memory."""
        path = folder / FILE
        if not path.exists():
            return {}
        rows = [row for process in read_log(path) for row in quality_of(process, FILE)]
        return {"quality": quality_rows(rows)} if rows else {}
