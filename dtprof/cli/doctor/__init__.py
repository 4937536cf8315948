"""``dtprof doctor``: what can be measured on this machine, what is missing, and the command that adds it. Never fails."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dtprof.cli.doctor import machine, probes, software, topology
from dtprof.cli.doctor.item import Item, guarded
from dtprof.plugins import attempt

# what the base install needs and the extras bring
PACKAGES = (
    "dtprof", "torch", "numpy", "pyarrow", "msgspec", "isal", "rich", "nvidia-ml-py", "nvtx", "streamlit", "pandas",
    "lightning", "transformers", "accelerate", "deepspeed",
)  # fmt: skip


class DoctorCommand:
    """The verb ``doctor``."""

    name = "doctor"
    summary = "What can be measured on this machine, what is missing, and how to get it."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "--out", metavar="DIR", default="runs", help="the folder that runs are written into (default: runs)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look, and say it; whatever is missing, that is no failure."""
        found = examine(Path(args.out))
        if args.json:
            sys.stdout.write(json.dumps(found, indent=1) + "\n")
        else:
            from dtprof.cli.doctor.show import show

            show(found)
        return 0


def examine(runs: Path) -> dict[str, Any]:
    """The whole diagnosis as one JSON object."""
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(_or_error, probes.torch), pool.submit(_or_error, probes.nvml)
        torch, nvml = (future.result() for future in asked)
    items: list[Item] = []
    for section, name, check in (
        (software.TRAINING, "torch", lambda: software.training(torch, nvml)),
        (software.COUNTERS, "NVML", lambda: software.counters(nvml)),
        (machine.SYSTEM, "schedstat", machine.schedstat),
        (machine.SYSTEM, "perf events", machine.perf),
        (machine.SYSTEM, "ptrace", machine.ptrace),
        (machine.SYSTEM, "/dev/shm", machine.shared_memory),
        (machine.DISK, "runs", lambda: machine.disk(runs)),
        (software.TOOLS, "tools", software.tools),
    ):
        items += guarded(section, name, check)
    told, error = attempt(lambda: (software.conflicts(torch, nvml, os.environ), topology.of_machine(nvml)))
    if error:
        items.append(Item(machine.SYSTEM, "topology", "unknown", f"the check failed: {error}", ""))
    conflicts, machine_is = told or ([], {})
    return {
        "schema": 1,
        "host": socket.gethostname(),
        "versions": versions(),
        "checks": [_document(item) for item in items],
        "conflicts": [{"what": c.what, "effect": c.effect, "get": c.get} for c in conflicts],
        "can_measure": [item.gives for item in items if item.state in ("ok", "limited") and item.gives],
        "topology": machine_is,
    }


def _or_error(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    found, error = attempt(call)
    return {"error": error, "kind": "failed"} if error else dict(found)


def _document(item: Item) -> dict[str, Any]:
    return {
        "section": item.section, "name": item.name, "state": item.state, "found": item.found, "gives": item.gives,
        "get": item.get,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Python, the system, and those packages that are installed, without importing any."""
    from dtprof import __version__
    from dtprof.cli.doctor.item import installed

    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}", "dtprof": __version__}
    found |= {name: version for name in PACKAGES if name not in found and (version := installed(name))}
    return found
