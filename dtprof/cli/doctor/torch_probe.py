"""Asks torch what it can do here, in a process of its own: importing it takes seconds, and a broken one may end its process."""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Print one JSON object on the last line."""
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    found: dict[str, Any] = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    found["hip"] = getattr(torch.version, "hip", None)
    found["distributed"] = dist.is_available()
    for backend in ("nccl", "gloo", "mpi", "ucc"):
        available = getattr(dist, f"is_{backend}_available", None)
        found[backend] = bool(found["distributed"] and available and available())
    found["profiler"] = bool(torch.profiler.kineto_available())
    found["activities"] = sorted(str(a).rpartition(".")[2] for a in torch.profiler.supported_activities())
    found["threads"] = torch.get_num_threads()
    found["devices"] = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            found["devices"].append({
                "name": about.name, "memory": about.total_memory, "capability": f"{about.major}.{about.minor}",
                "uuid": str(getattr(about, "uuid", "")),
            })  # fmt: skip
    if found["nccl"]:
        with contextlib.suppress(Exception):
            found["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
