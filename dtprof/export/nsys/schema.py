"""The tables of an Nsight Systems export, as far as reports and recipes read them (schema 3.24).

``i`` is INTEGER, ``t`` TEXT, ``r`` REAL; ``!`` is NOT NULL. Column names and order are those of real exports.
"""

from __future__ import annotations

SCHEMA_VERSION = "3.24.0"


def _table(text: str) -> dict[str, str]:
    kinds = {"i": "INTEGER", "t": "TEXT", "r": "REAL"}
    columns: dict[str, str] = {}
    kind = "INTEGER"
    for word in text.split():
        if word in kinds:
            kind = kinds[word]
        else:
            columns[word.rstrip("!")] = f"{kind} NOT NULL" if word.endswith("!") else kind
    return columns


_ENUM = _table("i id! t name label")
ENUMS = (
    "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_NSYS_EVENT_TYPE", "ENUM_NSYS_EVENT_CLASS",
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE", "ENUM_CUPTI_SYNC_TYPE", "ENUM_CUPTI_STREAM_TYPE", "ENUM_CUDA_FUNC_CACHE_CONFIG",
    "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG", "ENUM_CUDA_UNIF_MEM_MIGRATION",
)  # fmt: skip

# table -> column -> SQL type
TABLES: dict[str, dict[str, str]] = {
    "StringIds": _table("i id! t value!"),
    "ThreadNames": _table("i nameId! priority globalTid"),
    "ProcessStreams": _table("i globalPid! filenameId! contentId!"),
    "PROCESSES": _table("i globalPid pid t name"),
    "NVTX_EVENTS": _table(
        "i start! end eventType! rangeId category color t text i globalTid endGlobalTid textId domainId uint64Value int64Value"
        " r doubleValue i uint32Value int32Value r floatValue i jsonTextId t jsonText binaryData"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _table("i start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": _table(
        "i start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid demangledName! shortName!"
        " mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ!"
        " staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted"
        " graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY"
        " clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _table(
        "i start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid bytes! copyKind! deprecatedSrcId"
        " srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _table(
        "i start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid value! bytes! graphNodeId memKind"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _table(
        "i start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid deprecatedSyncType syncType!"
        " eventId! eventSyncId"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _table(
        "i start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid graphId! graphExecId!"
    ),
    "CUDA_GRAPH_EVENTS": _table(
        "i start! end! eventClass! globalTid nameId! graphNodeId graphId originalGraphId graphExecId originalGraphNodeId"
    ),
    "CUDA_GRAPH_NODE_EVENTS": _table("i start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId"),
    "TARGET_INFO_GPU": _table(
        "i vmId! id! t name busLocation i isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId t uuid"
        " i luid t chipName i cuDevice t ctxswDevPath ctrlDevPath i revision nodeMask constantMemory maxIPC"
        " maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp"
        " asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX"
        " maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE": _table("i gpuId cudaId! pid! t uuid i numMultiprocessors"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": _table(
        "i nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext"
    ),
    "TARGET_INFO_CUDA_STREAM": _table("i streamId! hwId! vmId! processId! contextId! priority! flag!"),
    "TARGET_INFO_SESSION_START_TIME": _table("i utcEpochNs t utcTime localTime i systemClockNs"),
    "TARGET_INFO_SYSTEM_ENV": _table("i globalVid t devStateName! name! i nameEnum! t value!"),
    "ANALYSIS_DETAILS": _table("i globalVid! duration! startTime! stopTime!"),
    "META_DATA_CAPTURE": _table("t name! value"),
    "META_DATA_EXPORT": _table("t name! value"),
    "EXPORT_META_DATA": _table("t name! value"),
    **dict.fromkeys(ENUMS, _ENUM),
}

# event types of NVTX_EVENTS
CATEGORY, PUSH_POP, START_END, DOMAIN = 33, 59, 60, 75

_MEMCPY = ("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array", "Array-to-Device",
           "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer", "Unified Host-to-Device",
           "Unified Device-to-Host", "Unified Device-to-Device")  # fmt: skip
_MEMCPY_NAMES = ("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP", "UVM_HTOD",
                 "UVM_DTOH", "UVM_DTOD")  # fmt: skip
MEM_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")


def _enum(prefix: str, *labels: str) -> list[tuple[int, str, str]]:
    return [(i, f"{prefix}_{label.upper().replace(' ', '_')}", label) for i, label in enumerate(labels)]


# rows of the enumerations that our columns refer to
ENUM_ROWS: dict[str, list[tuple[int, str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": [
        (i, f"CUDA_MEMCPY_KIND_{name}", label) for i, (name, label) in enumerate(zip(_MEMCPY_NAMES, _MEMCPY, strict=True))
    ],
    "ENUM_CUDA_MEM_KIND": _enum("CUDA_MEMOPR_MEMORY_KIND", *MEM_KINDS),
    "ENUM_NSYS_EVENT_TYPE": [
        (CATEGORY, "NvtxCategory", "NvtxCategory"), (34, "NvtxMark", "NvtxMark"), (39, "NvtxThread", "NvtxThread"),
        (PUSH_POP, "NvtxPushPopRange", "NvtxPushPopRange"), (START_END, "NvtxStartEndRange", "NvtxStartEndRange"),
        (DOMAIN, "NvtxDomainCreate", "NvtxDomainCreate"), (76, "NvtxDomainDestroy", "NvtxDomainDestroy"),
        (79, "CudaDeviceKernel", "CudaDeviceKernel"), (80, "CudaDeviceMemory", "CudaDeviceMemory"),
        (106, "CudaSyncEvent", "CudaSyncEvent"),
    ],
    "ENUM_NSYS_EVENT_CLASS": [
        (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"), (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver")
    ],
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": _enum(
        "CUDA_KERNEL_LAUNCH_TYPE", "Unknown", "Regular", "Cooperative Single Device", "Cooperative Multi Device"
    ),
    "ENUM_CUPTI_SYNC_TYPE": [
        (0, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN", "Unknown"),
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ],
    "ENUM_CUPTI_STREAM_TYPE": _enum("CUPTI_ACTIVITY_STREAM_CREATE_FLAG", "Unknown", "Default", "Non blocking", "Null"),
    "ENUM_CUDA_FUNC_CACHE_CONFIG": _enum("CU_FUNC_CACHE_PREFER", "None", "Shared", "L1", "Equal"),
    "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG": _enum("CUDA_SHARED_MEM_LIMIT", "Default", "Optin"),
    "ENUM_CUDA_UNIF_MEM_MIGRATION": _enum(
        "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE", "Unknown", "User", "Coherence", "Prefetch", "Eviction", "Access counters"
    ),
}  # fmt: skip
