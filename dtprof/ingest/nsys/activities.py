"""CUDA activity of a report: kernels, copies, memsets, graphs, API calls, synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dtprof.ingest.distinct import distinct_rows
from dtprof.ingest.nsys.cells import Ints, Kind
from dtprof.ingest.nsys.source import Batch, Source, read
from dtprof.ingest.nsys.spans import CATS, Names, Spans, joined, process_of, thread_of
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


def activities(source: Source, names: Names) -> list[Spans]:
    """All device spans and CUDA calls of a report, one ``Spans`` a table."""
    readers: tuple[tuple[str, Mapping[str, Kind], Callable[[Batch, Names], Spans]], ...] = (
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
    found = [joined(_pieces(source, table, kinds, convert, names)) for table, kinds, convert in readers]
    tables = [spans for spans in found if spans is not None]
    _place_syncs(tables)
    return tables


def _place_syncs(tables: list[Spans]) -> None:
    """Synchronisations state device 0 whatever their context: they lie where the work of their context lies."""
    device_of: dict[tuple[int, int], int] = {}
    for spans in tables:
        if len(spans) and CATS[int(spans.cat[0])] in ("kernel", "gpu_memcpy", "gpu_memset"):
            keys = np.stack((spans.process, spans.args["context"], spans.args["device"]))
            for process, context, device in keys[:, distinct_rows(keys)[0]].T.tolist():
                device_of[process, context] = device
    for spans in tables:
        if len(spans) and CATS[int(spans.cat[0])] == "cuda_sync":
            given = zip(spans.process.tolist(), spans.args["context"].tolist(), spans.args["device"].tolist(), strict=True)
            spans.args["device"] = np.array([device_of.get((p, c), d) for p, c, d in given], np.int64)
            stream = spans.args["stream"]
            spans.args["stream"] = np.where(stream == _ALL_STREAMS, -1, stream)


def _pieces(
    source: Source, table: str, kinds: Mapping[str, Kind], convert: Callable[[Batch, Names], Spans], names: Names
) -> Iterator[Spans]:
    for batch in read(source, table, **kinds):
        yield convert(batch, names)


def _cat(name: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    return np.full(count, CATS.index(name), np.int8)


def _on_device(batch: Batch, cat: str, name: Ints, **args: Ints) -> Spans:
    where = {"device": batch.ints("deviceId"), "context": batch.ints("contextId"), "stream": batch.ints("streamId")}
    process = process_of(batch.ints("globalPid"))
    nowhere = np.full(batch.rows, MISSING, np.int64)
    return Spans(
        process, batch.ints("start"), batch.ints("end"), name, _cat(cat, batch.rows), nowhere, batch.ints("correlationId"),
        {**where, **args},
    )  # fmt: skip


def _kernels(batch: Batch, names: Names) -> Spans:
    name = batch.ints("demangledName")
    name = names.of_ids(np.where(name == MISSING, batch.ints("shortName"), name))
    shared = [np.where(s == MISSING, 0, s) for s in (batch.ints("staticSharedMemory"), batch.ints("dynamicSharedMemory"))]
    args = {
        "grid": pack(batch.ints("gridX"), batch.ints("gridY"), batch.ints("gridZ")),
        "block": pack(batch.ints("blockX"), batch.ints("blockY"), batch.ints("blockZ")),
        "registers per thread": batch.ints("registersPerThread"),
        "graph node id": batch.ints("graphNodeId"),
    }
    if batch.has("dynamicSharedMemory"):
        args["shared memory"] = shared[0] + shared[1]
    return _on_device(batch, "kernel", name, **args)


def pack(x: Ints, y: Ints, z: Ints) -> Ints:
    """Three launch dimensions as one number (31, 16 and 16 bits are CUDA's limits); MISSING where one is missing."""
    return np.where((x < 0) | (y < 0) | (z < 0), MISSING, (x << 32) | ((y & 0xFFFF) << 16) | (z & 0xFFFF))


def unpacked(packed: int) -> str:
    """``[x,y,z]`` of a packed number."""
    return f"[{packed >> 32},{packed >> 16 & 0xFFFF},{packed & 0xFFFF}]"


def _copies(batch: Batch, names: Names) -> Spans:
    kind, src, dst = batch.ints("copyKind"), batch.ints("srcKind"), batch.ints("dstKind")
    first, places = distinct_rows(np.stack((kind, src, dst)))
    texts = [names.of_text(_copy_name(int(kind[i]), int(src[i]), int(dst[i]))) for i in first.tolist()]
    name = np.array(texts, np.int64)[places]
    sizes = {"bytes": batch.ints("bytes"), "graph node id": batch.ints("graphNodeId")}
    return _on_device(batch, "gpu_memcpy", name, **sizes)


def _copy_name(kind: int, src: int, dst: int) -> str:
    what = _COPY_KINDS[kind] if 0 <= kind < len(_COPY_KINDS) else "Unknown"
    ends = [_MEMORY[e] if 0 <= e < len(_MEMORY) else None for e in (src, dst)]
    return f"Memcpy {what}" + (f" ({ends[0] or 'Unknown'} -> {ends[1] or 'Unknown'})" if any(ends) else "")


def _sets(batch: Batch, names: Names) -> Spans:
    kind = batch.ints("memKind")
    texts = {
        k: names.of_text(f"Memset ({_MEMORY[k]})" if 0 <= k < len(_MEMORY) else "Memset") for k in np.unique(kind).tolist()
    }
    name = np.array([texts[k] for k in kind.tolist()], np.int64)
    sizes = {"bytes": batch.ints("bytes"), "graph node id": batch.ints("graphNodeId")}
    return _on_device(batch, "gpu_memset", name, **sizes)


def _graphs(batch: Batch, names: Names) -> Spans:
    graph = batch.ints("graphId")
    texts = {g: names.of_text(f"CUDA graph {g}" if g != MISSING else "CUDA graph") for g in np.unique(graph).tolist()}
    return _on_device(batch, "kernel", np.array([texts[g] for g in graph.tolist()], np.int64), **{"graph id": graph})


def _syncs(batch: Batch, names: Names) -> Spans:
    kind = batch.ints("syncType")
    texts = np.array([names.of_text(text) for text in _SYNCS], np.int64)
    name = texts[np.where((kind > 0) & (kind < len(_SYNCS)), kind, 0)]
    return _on_device(batch, "cuda_sync", name, event=batch.ints("eventId"), event_sync=batch.ints("eventSyncId"))


def _on_host(batch: Batch, cat: Ints | np.ndarray[tuple[int], np.dtype[np.int8]], names: Names) -> Spans:
    thread = batch.ints("globalTid")
    correlation = batch.ints("correlationId") if "correlationId" in batch.kinds else np.full(batch.rows, MISSING, np.int64)
    return Spans(
        process_of(thread), batch.ints("start"), batch.ints("end"), names.of_ids(batch.ints("nameId")), cat.astype(np.int8),
        thread_of(thread), correlation,
    )  # fmt: skip


def _calls(batch: Batch, names: Names) -> Spans:
    driver = batch.ints("eventClass") == _DRIVER_CLASS
    return _on_host(batch, np.where(driver, CATS.index("cuda_driver"), CATS.index("cuda_runtime")), names)


def _driver_calls(batch: Batch, names: Names) -> Spans:
    return _on_host(batch, _cat("cuda_driver", batch.rows), names)


def _overhead(batch: Batch, names: Names) -> Spans:
    return _on_host(batch, _cat("overhead", batch.rows), names)
