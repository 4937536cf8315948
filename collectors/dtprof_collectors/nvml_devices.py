"""Which device of NVML is this process's own: by UUID, never by a number that CUDA and NVML may count differently.

CUDA_VISIBLE_DEVICES holds numbers, UUIDs (which may be cut short) or MIG devices, in CUDA's order; NVML counts in the order of
the PCI bus and knows nothing of the variable. Source: CUDA C++ Programming Guide, "CUDA Environment Variables", and the
MIG User Guide, "CUDA Device Enumeration".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_OLD_MIG = re.compile(r"^mig-(?P<board>gpu-[0-9a-f-]+)/(?P<gpu>\d+)/(?P<compute>\d+)$")


@dataclass(frozen=True)
class Device:
    """One device: ``handle`` is NVML's; ``board`` that of the GPU, the same unless the device is a slice of it (MIG).

    ``index`` is the GPU's number in NVML; ``ordinal`` the process's own number, missing (-1) where only the UUID is known.
    """

    handle: Any
    board: Any
    uuid: str
    name: str
    index: int
    mig: bool = False
    ordinal: int = -1
    chosen_by: str = ""


def visible_devices(text: str | None) -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES; None is all devices. What follows an entry that names no device is invisible too.

    The same device twice hides all of them, as in CUDA.
    """
    if text is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not (entry.isascii() and entry.isdigit()) and not entry.startswith(("GPU-", "MIG-")):
            break
        entries.append(entry)
    return entries if len(set(entries)) == len(entries) else []


def local_rank(environment: Mapping[str, str]) -> int | None:
    """The number of this process on its host, by the launcher's variable, or None."""
    for name in _LOCAL_RANKS:
        text = environment.get(name, "").strip()
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def every_device(nvml: Any) -> Iterator[Device]:
    """The GPUs in NVML's order; where one is cut into MIG devices, those after it."""
    for index in range(nvml.nvmlDeviceGetCount()):
        board = nvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(nvml.nvmlDeviceGetName(board))
        yield Device(board, board, _text(nvml.nvmlDeviceGetUUID(board)), name, index)
        for handle in _slices(nvml, board):
            yield Device(handle, board, _text(nvml.nvmlDeviceGetUUID(handle)), name, index, mig=True)


def _slices(nvml: Any, board: Any) -> Iterator[Any]:
    """MIG devices of a GPU; a driver or a GPU that knows no MIG has none."""
    try:
        if not nvml.nvmlDeviceGetMigMode(board)[0]:
            return
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(board)
    except nvml.NVMLError:
        return
    for number in range(count):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, number)
        except nvml.NVMLError:
            continue


def device_of_uuid(nvml: Any, uuid: str) -> Device | None:
    """The device with that UUID: with or without its prefix, whole or cut short; None where none or several have it.

    MIG devices may also be named as drivers before 470 did: MIG-GPU-UUID/GPU instance/compute instance.
    """
    wanted = uuid.lower()
    if old := _OLD_MIG.match(wanted):
        return _slice_of(nvml, old["board"], (int(old["gpu"]), int(old["compute"])))
    found = [d for d in every_device(nvml) if d.uuid.lower().startswith(wanted) or _bare(d.uuid).startswith(wanted)]
    whole = [d for d in found if wanted in (d.uuid.lower(), _bare(d.uuid))]
    chosen = whole or found
    return chosen[0] if len(chosen) == 1 else None


def _slice_of(nvml: Any, board: str, instances: tuple[int, int]) -> Device | None:
    boards = {d.index for d in every_device(nvml) if not d.mig and d.uuid.lower().startswith(board)}
    for device in every_device(nvml):
        if device.mig and device.index in boards:
            mine = nvml.nvmlDeviceGetGpuInstanceId(device.handle), nvml.nvmlDeviceGetComputeInstanceId(device.handle)
            if mine == instances:
                return device
    return None


def _bare(uuid: str) -> str:
    return uuid.partition("-")[2].lower()


def device_of_environment(nvml: Any, environment: Mapping[str, str]) -> tuple[Device | None, str]:
    """The device that CUDA would give this process's local rank, or None and why it cannot be told.

    Numbers count only where CUDA's order is NVML's: with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all GPUs are of one model.
    """
    entries = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"))
    boards = [d for d in every_device(nvml) if not d.mig]
    if entries is None:
        entries, said = [str(d.index) for d in boards], "all devices are visible"
    else:
        said = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']}"
    if not entries:
        return None, f"no device is visible ({said})"
    rank = local_rank(environment)
    place = 0 if rank is None or len(entries) == 1 else rank
    if place >= len(entries):
        return None, f"local rank {rank}, and {len(entries)} devices are visible ({said})"
    entry = entries[place]
    if not entry.isdigit():
        device = device_of_uuid(nvml, entry)
        why = f"{entry} is no device of this machine"
    else:
        in_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({d.name for d in boards}) == 1
        device = next((d for d in boards if d.index == int(entry)), None) if in_order else None
        why = f"there is no device {entry}" if in_order else "GPUs differ in model and CUDA_DEVICE_ORDER is not PCI_BUS_ID"
        device = _first_slice(nvml, device) if device else None
    if device is None:
        return None, f"{why} ({said})"
    return replace(device, ordinal=place, chosen_by=said), ""


def _first_slice(nvml: Any, board: Device) -> Device:
    """What CUDA takes where a number names a GPU that is cut up: its first MIG device."""
    return next((d for d in every_device(nvml) if d.mig and d.index == board.index), board)


def device_of_torch(nvml: Any, ordinal: int, uuid: str) -> Device | None:
    """The device that torch uses, by the UUID that CUDA gives it."""
    device = device_of_uuid(nvml, uuid)
    return replace(device, ordinal=ordinal, chosen_by="the UUID of torch's current device") if device else None


def attempt_all(nvml: Any, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The results of calls that NVML answers; the others are left out."""
    found: dict[str, Any] = {}
    for key, call in calls.items():
        try:
            value = call()
        except nvml.NVMLError:
            continue
        found[key] = _text(value) if isinstance(value, bytes) else value
    return found


def describe(nvml: Any, device: Device) -> dict[str, Any]:
    """Facts of the device for part.json; what NVML does not tell is left out."""
    told = attempt_all(
        nvml,
        {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "pci": lambda: _text(nvml.nvmlDeviceGetPciInfo(device.board).busId),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device.board) / 1000,
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(device.board, nvml.NVML_CLOCK_SM),
            "memory_total": lambda: nvml.nvmlDeviceGetMemoryInfo(device.handle).total,
        },
    )
    return {
        "device": device.name, "uuid": device.uuid, "nvml_index": device.index, "ordinal": device.ordinal,
        "chosen_by": device.chosen_by, **({"mig": True} if device.mig else {}), **told,
    }  # fmt: skip


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
