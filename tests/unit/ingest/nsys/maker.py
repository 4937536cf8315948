"""Reports by hand: rows in, an SQLite export (or a folder of Parquet or Arrow files) out."""

from __future__ import annotations

import sqlite3
import struct

import dtprof

START = 1_700_000_000_000_000_000
VM = 1 << 48
COLUMNS = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,"
        " text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,"
        " int64Value INTEGER, doubleValue REAL, jsonText TEXT, binaryData TEXT"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER,"
        " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER,"
        " gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,"
        " staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
        " globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,"
        " returnValue INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
        " globalPid INTEGER, syncType INTEGER, eventId INTEGER, eventSyncId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "correlationId INTEGER, globalPid INTEGER, eventId INTEGER, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
        " globalPid INTEGER, graphId INTEGER"
    ),
    "COMPOSITE_EVENTS": "id INTEGER, start INTEGER, globalTid INTEGER",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, metricId INTEGER, metricName TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, offset INTEGER",
    "OSRT_API": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
}


def pid_of(pid: int) -> int:
    """globalPid of a process."""
    return VM | pid << 24


class Report:
    """One report; times are ns since the session's start."""

    def __init__(self, start=START, host="node0"):
        self.rows = {}
        self.strings = {}
        self.correlation = 100
        if start is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start)
        if host is not None:
            self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=host)

    def add(self, table, **row):
        self.rows.setdefault(table, []).append(row)
        return self

    def string(self, text):
        return self.strings.setdefault(text, len(self.strings) + 1)

    def environment(self, **values):
        for name, value in values.items():
            self.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')
        return self

    def call(self, name, start, end, pid=1000, tid=None, correlation=None):
        thread = pid_of(pid) | (pid if tid is None else tid)
        return self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0, globalTid=thread, correlationId=correlation,
            nameId=self.string(name), returnValue=0,
        )  # fmt: skip

    def kernel(self, name, start, end, pid=1000, device=0, stream=7, correlation=None, **more):
        code = self.string(name)
        row = {
            "start": start, "end": end, "deviceId": device, "contextId": 1, "streamId": stream, "correlationId": correlation,
            "globalPid": pid_of(pid), "demangledName": code, "shortName": code, "registersPerThread": 32, "gridX": 4,
            "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "staticSharedMemory": 16,
            "dynamicSharedMemory": 1024,
        }  # fmt: skip
        return self.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**row, **more})

    def run(self, name, launch, start, end, pid=1000, tid=None, **more):
        """A kernel and the call that launched it."""
        self.correlation += 1
        self.call("cudaLaunchKernel_v7000", launch, launch + 5, pid, tid, self.correlation)
        return self.kernel(name, start, end, pid, correlation=self.correlation, **more)

    def range(self, text, start, end, pid=1000, tid=None, kind=59, domain=0, **more):
        thread = pid_of(pid) | (pid if tid is None else tid)
        return self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, text=text, globalTid=thread, domainId=domain, **more
        )

    def domain(self, name, number, pid=1000):
        return self.range(name, 0, None, pid, kind=75, domain=number)

    def layout(self, schema, *entries, domain=1):
        """Register a structure: (name, type code, offset)."""
        for index, (name, kind, offset) in enumerate(entries):
            self.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=domain, schemaId=schema, idx=index, type=kind, name=name,
                offset=offset or None,
            )  # fmt: skip
        return self

    def write(self, path, page=4096, journal="DELETE", leave_open=False):
        database = sqlite3.connect(path)
        database.execute(f"PRAGMA page_size={page}")
        database.execute(f"PRAGMA journal_mode={journal}")
        rows = {**self.rows, "StringIds": [{"id": i, "value": t} for t, i in self.strings.items()]}
        for table, found in rows.items():
            database.execute(f'CREATE TABLE "{table}" ({COLUMNS[table]})')
            for row in found:
                names = ", ".join(f'"{n}"' for n in row)
                database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(row))})', list(row.values()))
        database.commit()
        if leave_open:
            return database
        database.close()
        return path

    def folder(self, path, kind="parquet"):
        """The same tables as a folder of Parquet or Arrow files."""
        import pyarrow as pa
        import pyarrow.ipc as ipc
        import pyarrow.parquet as pq

        path.mkdir()
        rows = {**self.rows, "StringIds": [{"id": i, "value": t} for t, i in self.strings.items()]}
        for name, found in rows.items():
            table = pa.Table.from_pylist([{k: v for row in found for k in row for v in [None]} | row for row in found])
            if kind == "parquet":
                pq.write_table(table, path / f"{name}.parquet")
                continue
            with (path / f"{name}.arrow").open("wb") as file, ipc.new_stream(file, table.schema) as out:
                out.write_table(table)
        return path


def payload(schema, form, *values, domain=1):
    """A binary payload as nsys stores it."""
    body = struct.pack("<" + form, *values)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), 32 + len(body)) + body


def opened(path, **options):
    return dtprof.open_run(path, cache=False, **options)


def losses(run):
    """(what, effect) of every quality row."""
    return [
        (row["what"], row["effect"])
        for p in run.parts
        for table in [run.table("quality", p.ordinal)]
        for row in map(table.row, range(len(table)))
    ]
