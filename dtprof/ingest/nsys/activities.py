"""CUDA activity of a report: kernels, copies, memsets, graphs, API calls, synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from dtprof.ingest.distinct import distinct, distinct_rows
from dtprof.ingest.nsys.cells import Ints, Kind
from dtprof.ingest.nsys.source import Batch, Source, read
from dtprof.ingest.nsys.spans import CATS, Array, Gathering
from dtprof.schema import MISSING

_WHEN: dict[str, Kind] = {"start": "int", "end": "int"}
_ON_DEVICE: dict[str, Kind] = {
    **_WHEN, "deviceId": "int", "contextId": "int", "streamId": "int", "correlationId": "int", "globalPid": "int",
}  # fmt: skip
_KERNEL: dict[str, Kind] = {
    **_ON_DEVICE, "demangledName": "int", "shortName": "int", "graphNodeId": "int", "registersPerThread": "int",
    "gridX": "int", "gridY": "int", "gridZ": "int", "blockX": "int", "blockY": "int", "blockZ": "int",
    "staticSharedMemory": "int", "dynamicSharedMemory": "int",
}  # fmt: skip
_COPY: dict[str, Kind] = {
    **_ON_DEVICE, "bytes": "int", "copyKind": "int", "srcKind": "int", "dstKind": "int", "graphNodeId": "int",
}  # fmt: skip
_SET: dict[str, Kind] = {**_ON_DEVICE, "bytes": "int", "memKind": "int", "graphNodeId": "int"}
_GRAPH: dict[str, Kind] = {**_ON_DEVICE, "graphId": "int"}
_SYNC: dict[str, Kind] = {**_ON_DEVICE, "syncType": "int", "eventId": "int", "eventSyncId": "int"}
_CALL: dict[str, Kind] = {**_WHEN, "eventClass": "int", "globalTid": "int", "correlationId": "int", "nameId": "int"}
_LOST: dict[str, Kind] = {**_WHEN, "globalTid": "int", "nameId": "int"}

# CUDA's own enumerations (CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind as nsys numbers them), in Kineto's words:
# windows are often cut without the ENUM tables
_COPY_KINDS = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "unified HtoD", "unified DtoH",
    "unified DtoD",
)  # fmt: skip
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_DRIVER_CLASS = 1
_ALL_STREAMS = 2**32 - 1


Converter: TypeAlias = Callable[[Batch, Gathering], None]


def activities(source: Source, out: Gathering) -> None:
    """All device spans and CUDA calls of a report."""
    readers: tuple[tuple[str, Mapping[str, Kind], Converter], ...] = (
        ("CUPTI_ACTIVITY_KIND_RUNTIME", _CALL, _calls),
        ("CUPTI_ACTIVITY_KIND_DRIVER", _CALL, _driver_calls),
        ("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL, _kernels),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", _COPY, _copies),
        ("CUPTI_ACTIVITY_KIND_MEMSET", _SET, _sets),
        ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPH, _graphs),
        ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _SYNC, _syncs),
        ("PROFILER_OVERHEAD", _LOST, _overhead),
        ("CUPTI_ACTIVITY_KIND_OVERHEAD", _LOST, _overhead),
    )
    for table, kinds, convert in readers:
        # never missing, where there is one: then the other is not read
        unread = "shortName" if "demangledName" in source.tables.get(table, ()) else ""
        for batch in read(source, table, **{name: kind for name, kind in kinds.items() if name != unread}):
            convert(batch, out)
    _place_syncs(out)


def _place_syncs(out: Gathering) -> None:
    """Synchronisations state device 0 whatever their context: they lie where the work of their context lies."""
    known = out.places.known
    device_of = {(p.process, p.context): p.device for p in known if not p.on_host and not p.wait}
    for number, place in enumerate(known):
        if place.wait:
            device = device_of.get((place.process, place.context), place.device)
            known[number] = place._replace(device=device, stream=-1 if place.stream == _ALL_STREAMS else place.stream)


def _on_device(batch: Batch, out: Gathering, cat: str, name: Ints, args: dict[str, Array]) -> None:
    where = np.stack([batch.ints(c) for c in ("globalPid", "deviceId", "contextId", "streamId")])
    _add(batch, out, cat, np.full(batch.rows, CATS.index(cat)), name, out.places.streams(where, cat == "cuda_sync"), args)


def _add(batch: Batch, out: Gathering, kind: str, cat: Array, name: Ints, place: Array, args: dict[str, Array]) -> None:
    correlation = batch.ints("correlationId") if "correlationId" in batch.kinds else np.full(batch.rows, MISSING, np.int64)
    columns: dict[str, Array] = {
        "start": batch.ints("start"), "end": batch.ints("end"), "name": name, "cat": cat.astype(np.int8), "place": place,
        "correlation": correlation,
    }  # fmt: skip
    out.add(kind, columns, args)


def _kernels(batch: Batch, out: Gathering) -> None:
    name = batch.ints("demangledName" if batch.has("demangledName") else "shortName")
    args = {
        "grid": pack(batch.ints("gridX"), batch.ints("gridY"), batch.ints("gridZ")),
        "block": pack(batch.ints("blockX"), batch.ints("blockY"), batch.ints("blockZ")),
        "registers per thread": batch.ints("registersPerThread"),
        "graph node id": batch.ints("graphNodeId"),
    }
    if batch.has("dynamicSharedMemory"):
        shared = [batch.ints(c) for c in ("staticSharedMemory", "dynamicSharedMemory")]
        args["shared memory"] = np.add(*(np.maximum(s, 0) for s in shared))
    _on_device(batch, out, "kernel", out.names.of_ids(name), args)


def pack(x: Ints, y: Ints, z: Ints) -> Ints:
    """Three launch dimensions as one number (31, 16 and 16 bits are CUDA's limits); MISSING where one is missing."""
    return np.where((x < 0) | (y < 0) | (z < 0), MISSING, (x << 32) | ((y & 0xFFFF) << 16) | (z & 0xFFFF))


def unpacked(packed: int) -> str:
    """``[x,y,z]`` of a packed number."""
    return f"[{packed >> 32},{packed >> 16 & 0xFFFF},{packed & 0xFFFF}]"


def _copies(batch: Batch, out: Gathering) -> None:
    kind, src, dst = batch.ints("copyKind"), batch.ints("srcKind"), batch.ints("dstKind")
    first, places = distinct_rows(np.stack((kind, src, dst)))
    texts = [out.names.of_text(_copy_name(int(kind[i]), int(src[i]), int(dst[i]))) for i in first.tolist()]
    sizes: dict[str, Array] = {"bytes": batch.ints("bytes"), "graph node id": batch.ints("graphNodeId")}
    _on_device(batch, out, "gpu_memcpy", np.array(texts, np.int64)[places], sizes)


def _copy_name(kind: int, src: int, dst: int) -> str:
    what = _COPY_KINDS[kind] if 0 <= kind < len(_COPY_KINDS) else "Unknown"
    ends = [_MEMORY[e] if 0 <= e < len(_MEMORY) else None for e in (src, dst)]
    return f"Memcpy {what}" + (f" ({ends[0] or 'Unknown'} -> {ends[1] or 'Unknown'})" if any(ends) else "")


def _named(values: Ints, out: Gathering, text: Callable[[int], str]) -> Ints:
    """Numbers of the names that these values have."""
    found, places = distinct(values)
    return np.array([out.names.of_text(text(value)) for value in found.tolist()], np.int64)[places]


def _sets(batch: Batch, out: Gathering) -> None:
    name = _named(
        batch.ints("memKind"), out, lambda kind: f"Memset ({_MEMORY[kind]})" if 0 <= kind < len(_MEMORY) else "Memset"
    )
    _on_device(batch, out, "gpu_memset", name, {"bytes": batch.ints("bytes"), "graph node id": batch.ints("graphNodeId")})


def _graphs(batch: Batch, out: Gathering) -> None:
    graph = batch.ints("graphId")
    name = _named(graph, out, lambda number: f"CUDA graph {number}" if number != MISSING else "CUDA graph")
    _on_device(batch, out, "kernel", name, {"graph id": graph})


def _syncs(batch: Batch, out: Gathering) -> None:
    name = _named(batch.ints("syncType"), out, lambda kind: _SYNCS[kind if 0 < kind < len(_SYNCS) else 0])
    _on_device(batch, out, "cuda_sync", name, {"event": batch.ints("eventId"), "event_sync": batch.ints("eventSyncId")})


def _calls(batch: Batch, out: Gathering) -> None:
    driver = batch.ints("eventClass") == _DRIVER_CLASS
    _on_host(batch, out, "cuda_runtime", np.where(driver, CATS.index("cuda_driver"), CATS.index("cuda_runtime")))


def _driver_calls(batch: Batch, out: Gathering) -> None:
    _on_host(batch, out, "cuda_driver", np.full(batch.rows, CATS.index("cuda_driver")))


def _overhead(batch: Batch, out: Gathering) -> None:
    _on_host(batch, out, "overhead", np.full(batch.rows, CATS.index("overhead")))


def _on_host(batch: Batch, out: Gathering, kind: str, cat: Array) -> None:
    _add(batch, out, kind, cat, out.names.of_ids(batch.ints("nameId")), out.places.threads(batch.ints("globalTid")), {})
