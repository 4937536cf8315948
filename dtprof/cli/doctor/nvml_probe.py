"""Asks NVML about GPUs and how they are connected, in a process of its own: a driver in trouble hangs its callers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# counters that the collector nvml takes, and a call that shows whether the device gives them
_READINGS = {
    "utilization": "nvmlDeviceGetUtilizationRates",
    "memory": "nvmlDeviceGetMemoryInfo",
    "power": "nvmlDeviceGetPowerUsage",
    "throttle reasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "PCIe replays": "nvmlDeviceGetPcieReplayCounter",
}
# nvmlGpuTopologyLevel_t, in the words of nvidia-smi topo
_LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MOST_LINKS = 36


def main() -> None:
    """Print one JSON object on the last line: ``error`` and its class, or driver, GPUs and pairs."""
    try:
        import pynvml as nvml
    except ImportError:
        return say({"error": "nvidia-ml-py is not installed", "kind": "package"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return say({"error": str(error), "kind": "driver" if absent else "nvml"})
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    gpus = [about(nvml, i, handle) for i, handle in enumerate(handles)]
    say({
        "driver": tried(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda": cuda_version(tried(nvml, nvml.nvmlSystemGetCudaDriverVersion)),
        "gpus": gpus,
        "pairs": pairs(nvml, handles, gpus),
    })  # fmt: skip


def say(found: dict[str, Any]) -> None:
    """The answer, on a line of its own."""
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def tried(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, texts decoded, or None."""
    try:
        value = call(*args)
    except nvml.NVMLError:
        return None
    return value.decode() if isinstance(value, bytes) else value


def cuda_version(number: int | None) -> str | None:
    """NVML's 12040 is 12.4."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def about(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    """One GPU: names, where it is on the bus, its links, and which counters it refuses."""
    pci = tried(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    bus = pci.busId.decode() if pci is not None and isinstance(pci.busId, bytes) else getattr(pci, "busId", None)
    mig = tried(nvml, nvml.nvmlDeviceGetMigMode, handle)
    memory = tried(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    refused = {}
    for name, function in _READINGS.items():
        try:
            getattr(nvml, function)(handle)
        except nvml.NVMLError as error:
            refused[name] = str(error)
    links = [tried(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(_MOST_LINKS)]
    return {
        "index": index,
        "name": tried(nvml, nvml.nvmlDeviceGetName, handle),
        "uuid": tried(nvml, nvml.nvmlDeviceGetUUID, handle),
        "bus": bus,
        "numa_node": numa_node(bus),
        "memory": getattr(memory, "total", None),
        "mig": bool(mig and mig[0]),
        "nvlinks": links.count(1),
        "refused": refused,
    }


def numa_node(bus: str | None) -> int | None:
    """NUMA node of a PCI device, from /sys; None where the system does not say."""
    if bus is None:
        return None
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pairs(nvml: Any, handles: list[Any], gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How every two GPUs are connected: by NVLink, else by the lowest common ancestor on the bus."""
    out = []
    for a, one in enumerate(handles):
        for b in range(a + 1, len(handles)):
            linked = tried(nvml, nvml.nvmlDeviceGetP2PStatus, one, handles[b], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            level = tried(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, one, handles[b])
            nvlink = linked == 0 and gpus[a]["nvlinks"] > 0
            out.append({"gpus": [a, b], "by": "NVLink" if nvlink else _LEVELS.get(level, "unknown")})
    return out


if __name__ == "__main__":
    main()
