"""Which process of which job this is: rank, world size, attempt, host, device, versions."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# where launchers put the rank and the world size, best first
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMI_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


@dataclass(frozen=True)
class Identity:
    """``rank_from`` says where the rank comes from; ``conflict`` names a second source that disagrees."""

    rank: int
    world_size: int
    rank_from: str
    conflict: str
    attempt: int
    host: str
    pid: int
    backend: str | None


def identify() -> Identity:
    """Who this process is now.

    An initialised process group is right; before that RANK, then Open MPI's and PMI's variables, and SLURM_PROCID last,
    because a launcher started by one Slurm task hands the same SLURM_PROCID to all of its children.
    """
    dist = process_group()
    source = next((names for names in _RANKS if _number(names[0]) is not None), None)
    environment = (_number(source[0]) or 0) if source else 0
    backend = None
    if dist is not None:
        rank, size, origin, backend = dist.get_rank(), dist.get_world_size(), "torch.distributed", str(dist.get_backend())
    elif source:
        rank, size, origin = environment, _number(source[1]) or environment + 1, source[0]
    else:
        rank, size, origin = 0, 1, "nothing set"
    conflict = f"{source[0]}={environment} disagrees" if dist is not None and source and environment != rank else ""
    slurm = _number("SLURM_PROCID")
    if not conflict and slurm is not None and slurm != rank:
        conflict = f"SLURM_PROCID={slurm} disagrees"
    attempt = _number("TORCHELASTIC_RESTART_COUNT") or 0
    return Identity(rank, size, origin, conflict, attempt, socket.gethostname(), os.getpid(), backend)


def run_key() -> str:
    """A text that all processes of one run share and that another run does not, as far as the environment tells."""
    given = os.environ.get("DTPROF_RUN_ID")
    if given:
        return given
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic not in ("", "none"):
        return elastic
    parts = [os.environ.get(k, "") for k in ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")]
    return ":".join(parts) if any(parts) else f"{socket.gethostname()}:{os.getpid()}"


def process_group() -> ModuleType | None:
    """``torch.distributed`` once its default group exists; torch is never imported for the question."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist


def device_name() -> str:
    """The device in words; a CUDA context that does not exist yet is not created for it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return "cpu: " + line.partition(":")[2].strip()
    except OSError:
        pass
    return f"cpu: {platform.machine()}"


def versions() -> dict[str, str]:
    """Versions of what shapes a measurement; torch only if the job has loaded it."""
    from dtprof import __version__

    found = {"dtprof": __version__, "python": platform.python_version(), "kernel": platform.release()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found["cuda"] = str(torch.version.cuda)
    return found


def _number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
