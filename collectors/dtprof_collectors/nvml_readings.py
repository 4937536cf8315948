"""What NVML is asked at every tick, and what of it becomes samples.

A reading is one call (or one batch of fields) that gives one or more numbers. One that the device does not support is
asked once; one that fails three times in a row is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dtprof_collectors.nvml_devices import Device

GIVE_UP_AFTER = 3
_ABSENT = {2**32 - 1, 2**64 - 1}  # NVML_VALUE_NOT_AVAILABLE of both widths: nvidia-smi's [N/A]
# from NVML's unit to that of the file; its KB are taken as 1000 bytes, its KiB are 1024
_SCALE = {"power_draw": 1e-3, "pcie_tx": 1e3, "pcie_rx": 1e3, "nvlink_tx_bytes": 1024, "nvlink_rx_bytes": 1024}

# bit of the clock-event mask -> name; NVML's nvmlClocksEventReasons, in nvidia-smi's words
REASONS = {
    0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown", 0x100: "display_clock_setting",
}  # fmt: skip
IDLE = 0x1

# name in the file and in samples -> unit; NVML's own, except that bytes and watts are without prefix
UNITS = {
    "gpu_utilization": "%", "memory_utilization": "%", "memory_used": "bytes", "sm_clock": "MHz", "memory_clock": "MHz",
    "power_draw": "W", "temperature": "C", "ecc_corrected": "errors", "ecc_uncorrected": "errors",
    "nvlink_crc_flit": "errors", "nvlink_crc_data": "errors", "nvlink_replay": "errors", "nvlink_recovery": "errors",
    "pcie_replay": "errors", "pcie_tx": "bytes/s", "pcie_rx": "bytes/s",
}  # fmt: skip
# cumulative bytes in the file -> rate in samples
RATES = {"nvlink_tx_bytes": "nvlink_tx", "nvlink_rx_bytes": "nvlink_rx"}
EVENT_REASONS = "clock_event_reasons"

# NVML field ids of all links together (nvml.h)
_NVLINK_ERRORS = (
    ("nvlink_crc_flit", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    ("nvlink_crc_data", "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
    ("nvlink_replay", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    ("nvlink_recovery", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
)
_NVLINK_TRAFFIC = (
    ("nvlink_tx_bytes", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
    ("nvlink_rx_bytes", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
)
_ALL_LINKS = 2**32 - 1

Numbers = dict[str, float]
Read = Callable[[Any, Device], Numbers]


def _utilization(nvml: Any, device: Device) -> Numbers:
    rates = nvml.nvmlDeviceGetUtilizationRates(device.handle)
    return {"gpu_utilization": rates.gpu, "memory_utilization": rates.memory}


def _throttle(nvml: Any, device: Device) -> Numbers:
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(device.board)
    except nvml.NVMLError_FunctionNotFound:  # drivers before 535 have the older name
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.board)
    return {EVENT_REASONS: mask}


def _ecc(nvml: Any, device: Device) -> Numbers:
    def count(kind: int) -> float:
        return float(nvml.nvmlDeviceGetTotalEccErrors(device.board, kind, nvml.NVML_VOLATILE_ECC))

    return {
        "ecc_corrected": count(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": count(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    }


def _pcie(nvml: Any, device: Device) -> Numbers:
    """NVML looks for 20 ms at each."""
    return {
        "pcie_tx": nvml.nvmlDeviceGetPcieThroughput(device.board, nvml.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_rx": nvml.nvmlDeviceGetPcieThroughput(device.board, nvml.NVML_PCIE_UTIL_RX_BYTES),
    }


def _fields(names: tuple[tuple[str, str], ...], scope: int) -> Read:
    """A batch of field values; those that the device has not are left out, and none at all is not supported."""

    def read(nvml: Any, device: Device) -> Numbers:
        asked = [(name, (getattr(nvml, field), scope)) for name, field in names if hasattr(nvml, field)]
        values = nvml.nvmlDeviceGetFieldValues(device.board, [field for _, field in asked])
        found: Numbers = {}
        for (name, _), value in zip(asked, values, strict=True):
            if value.nvmlReturn == nvml.NVML_SUCCESS:
                found[name] = _of_its_type(nvml, value)
        if not found:
            raise nvml.NVMLError(values[0].nvmlReturn if asked else nvml.NVML_ERROR_NOT_SUPPORTED)
        return found

    return read


def _of_its_type(nvml: Any, value: Any) -> int | float:
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal", nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal", nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }  # fmt: skip
    number: int | float = getattr(value.value, kinds.get(value.valueType, "ullVal"))
    return number


READINGS: dict[str, Read] = {
    "utilization": _utilization,
    "memory": lambda nvml, d: {"memory_used": nvml.nvmlDeviceGetMemoryInfo(d.handle).used},
    "SM clock": lambda nvml, d: {"sm_clock": nvml.nvmlDeviceGetClockInfo(d.board, nvml.NVML_CLOCK_SM)},
    "memory clock": lambda nvml, d: {"memory_clock": nvml.nvmlDeviceGetClockInfo(d.board, nvml.NVML_CLOCK_MEM)},
    "power": lambda nvml, d: {"power_draw": nvml.nvmlDeviceGetPowerUsage(d.board)},
    "temperature": lambda nvml, d: {"temperature": nvml.nvmlDeviceGetTemperature(d.board, nvml.NVML_TEMPERATURE_GPU)},
    "throttle reasons": _throttle,
    "ECC errors": _ecc,
    "NVLink errors": _fields(_NVLINK_ERRORS, 0),
    "NVLink traffic": _fields(_NVLINK_TRAFFIC, _ALL_LINKS),
    "PCIe traffic": _pcie,
    "PCIe replays": lambda nvml, d: {"pcie_replay": nvml.nvmlDeviceGetPcieReplayCounter(d.board)},
}


class Readings:
    """Asks a device for everything it gives. ``unsupported`` and ``failed`` (name -> why) grow as it goes."""

    def __init__(self, nvml: Any, device: Device, readings: Mapping[str, Read] = READINGS) -> None:
        self._nvml, self.device = nvml, device
        self._active = dict(readings)
        self._misses: dict[str, int] = {}
        self.unsupported: list[str] = []
        self.failed: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Is anything left to ask?"""
        return bool(self._active)

    def read(self) -> Numbers:
        """What the device gives now."""
        got: Numbers = {}
        for name, read in list(self._active.items()):
            try:
                numbers = read(self._nvml, self.device)
            except self._nvml.NVMLError as error:
                self._count(name, error)
                continue
            except AttributeError:  # a function that this version of pynvml does not have
                self._drop(name)
                continue
            self._misses[name] = 0
            got |= {key: _SCALE.get(key, 1) * value for key, value in numbers.items() if value not in _ABSENT}
        return got

    def _drop(self, name: str) -> None:
        del self._active[name]
        self.unsupported.append(name)

    def _count(self, name: str, error: Any) -> None:
        nvml = self._nvml
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
            self._drop(name)
            return
        self._misses[name] = self._misses.get(name, 0) + 1
        if self._misses[name] >= GIVE_UP_AFTER or error.value == nvml.NVML_ERROR_NO_PERMISSION:
            del self._active[name]
            self.failed[name] = str(error)
