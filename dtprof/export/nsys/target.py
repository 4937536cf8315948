"""Who and where: processes, threads, devices, session and export data as nsys tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from dtprof import __version__
from dtprof.export.nsys.schema import ENUM_ROWS, SCHEMA_VERSION
from dtprof.export.nsys.sheet import Sheet
from dtprof.export.nsys.source import VM, Source


def sheets(source: Source) -> list[Sheet]:
    """All of them."""
    process = f"{source.run.manifest.job or 'python'} (rank {source.part.rank})"
    return [
        Sheet.of("PROCESSES", [(source.global_pid, source.pid, process)]),
        _threads(source),
        *_devices(source),
        *_session(source),
        *(Sheet.of(table, rows) for table, rows in ENUM_ROWS.items()),
    ]


def _threads(source: Source) -> Sheet:
    names = dict(zip(source.lanes["id"].tolist(), source.lanes.text("name"), strict=True))
    rows = [
        (source.strings.of(names.get(lane) or f"thread {thread}"), 0, source.global_pid | thread)
        for lane, thread in sorted(source.threads.items())
    ]
    return Sheet.of("ThreadNames", rows)


def _devices(source: Source) -> list[Sheet]:
    """Devices, contexts and streams that work was recorded on."""
    on = source.lanes["device"] >= 0
    devices = sorted({int(d) for d in source.lanes["device"][on].tolist()})
    rows = np.unique(np.stack([source.device, source.context, source.stream], axis=1)[source.device >= 0], axis=0).tolist()
    contexts = sorted({(d, c) for d, c, _ in rows})
    name = source.part.device or "unknown device"
    return [
        Sheet.of("TARGET_INFO_GPU", [(source.global_vm, d, name, "", 1) for d in devices]),
        Sheet.of("TARGET_INFO_CUDA_DEVICE", [(d, d, source.pid) for d in devices]),
        Sheet.of("TARGET_INFO_CUDA_CONTEXT_INFO", [(7, 0, VM, source.pid, d, c, None, 0) for d, c in contexts]),
        Sheet.of("TARGET_INFO_CUDA_STREAM", [(s, 0, VM, source.pid, c, 0, 1) for _, c, s in rows]),
    ]


def _session(source: Source) -> list[Sheet]:
    """The session begins at the run's zero on every rank, so that reports of one run lie on one clock."""
    began = datetime.fromtimestamp(source.zero / 1e9, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
    stop = int(source.end.max()) if len(source.end) else 0
    part = source.part
    version = [("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION)]
    version += [
        (f"EXPORT_SCHEMA_VERSION_{n}", v) for n, v in zip(("MAJOR", "MINOR", "MICRO"), SCHEMA_VERSION.split("."), strict=True)
    ]
    export = [("EXPORT_PRODUCT_NAME", "dtprof"), ("EXPORT_PRODUCT_VERSION", __version__), *version]
    environment = {"RANK": part.rank, "WORLD_SIZE": part.world_size or source.run.world_size}
    capture: list[tuple[str, Any]] = [("CAPTURE_EVENT_TYPE", "NvtxEvents"), ("CAPTURE_EVENT_TYPE", "Cuda")]
    capture += [("DEVICE_DISPLAY_NAME", part.host or "unknown"), ("PROCESS_0:PID", str(source.pid))]
    capture += [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{k}="{v}"') for k, v in environment.items() if v is not None]
    system = [("Hostname", part.host or "unknown"), ("Rank", str(part.rank))]
    return [
        Sheet.of("TARGET_INFO_SESSION_START_TIME", [(source.zero, began, began, source.zero)]),
        Sheet.of("TARGET_INFO_SYSTEM_ENV", [(source.global_vm, "dtprof", k, i, v) for i, (k, v) in enumerate(system)]),
        Sheet.of("ANALYSIS_DETAILS", [(source.global_vm, stop, 0, stop)]),
        Sheet.of("META_DATA_CAPTURE", capture),
        Sheet.of("META_DATA_EXPORT", export),
        Sheet.of("EXPORT_META_DATA", export),
    ]
