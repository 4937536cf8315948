"""What this machine consists of, from /sys and /proc: sockets, cores, NUMA nodes, limits of the control group, adapters.

Source: Linux, Documentation/admin-guide/cputopology.rst, cgroup-v2.rst, cgroup-v1/.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtprof.session.ports import ROOT, ports, text_of


def of_machine(nvml: Mapping[str, Any], root: Path = ROOT) -> dict[str, Any]:
    """Everything as one JSON object; what the system does not say is None or an empty list."""
    return {
        "cpu": cpu(root),
        "memory_bytes": _memory(root),
        "limits": limits(root),
        "numa": numa(root),
        "gpus": list(nvml.get("gpus") or []),
        "gpu_pairs": list(nvml.get("pairs") or []),
        "network": ports(root),
    }


def _whole(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def cpu(root: Path) -> dict[str, Any]:
    """Sockets, cores, threads, those that this process may use, and the model."""
    places = [p / "topology" for p in (root / "sys/devices/system/cpu").glob("cpu[0-9]*")]
    cores = {(_whole(p / "physical_package_id"), _whole(p / "core_id")) for p in places} - {(None, None)}
    model = None
    for line in (text_of(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "model": model,
        "sockets": len({socket for socket, _ in cores}) or None,
        "cores": len(cores) or None,
        "threads": len(places) or os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _memory(root: Path) -> int | None:
    for line in (text_of(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def numa(root: Path) -> list[dict[str, Any]]:
    """NUMA nodes with their processors and memory."""
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        total = next((line.split() for line in (text_of(folder / "meminfo") or "").splitlines() if "MemTotal" in line), None)
        nodes.append({
            "node": int(folder.name[4:]),
            "cpus": text_of(folder / "cpulist"),
            "memory_bytes": int(total[3]) * 1024 if total else None,
        })  # fmt: skip
    return sorted(nodes, key=lambda node: node["node"])


def limits(root: Path) -> dict[str, float | int | None]:
    """What the control group allows: ``cores`` (a fraction is possible) and ``memory_bytes``; None is no limit."""
    groups = dict(_groups(root))
    cores: list[float] = []
    memory: list[int] = []
    for folder in _up(root / "sys/fs/cgroup", groups.get("", "/")):
        quota = (text_of(folder / "cpu.max") or "").split()
        if len(quota) == 2 and quota[0].isdigit():
            cores.append(int(quota[0]) / int(quota[1]))
        memory += [found] if (found := _whole(folder / "memory.max")) is not None else []
    for controller in ("cpu", "cpu,cpuacct"):
        for folder in _up(root / "sys/fs/cgroup" / controller, groups.get("cpu", "/")):
            took, period = _whole(folder / "cpu.cfs_quota_us"), _whole(folder / "cpu.cfs_period_us")
            if took and took > 0 and period:
                cores.append(took / period)
    for folder in _up(root / "sys/fs/cgroup/memory", groups.get("memory", "/")):
        found = _whole(folder / "memory.limit_in_bytes")
        memory += [found] if found is not None and found < 1 << 60 else []
    return {"cores": min(cores, default=None), "memory_bytes": min(memory, default=None)}


def _groups(root: Path) -> list[tuple[str, str]]:
    """(controller, path) of this process; the controller of version 2 is empty."""
    out = []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        out += [(name, path) for name in controllers.split(",")]
    return out


def _up(base: Path, path: str) -> list[Path]:
    """The folder of a control group and those above it; in a container the path may not exist, and the base is its own."""
    folder = base / path.lstrip("/")
    found = []
    while folder != base and base in folder.parents:
        found.append(folder)
        folder = folder.parent
    return [*found, base]
