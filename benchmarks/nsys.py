"""What reading an Nsight Systems export costs: kernels and events per second on one core, and memory.

    python benchmarks/nsys.py                       1 and 5 million events (half kernels, half the calls that launch them)
    python benchmarks/nsys.py --events 2000000 --json

``sqlite3`` fetches the same columns through Python's module, ``rows`` reads them from the pages, ``columns`` is all that comes
before analysis of one process begins (spans of every table, names, processes), ``open`` is the whole way to a run, without
the cache; ``kept`` also writes the cache, for which pyarrow imports pandas where that is installed.

Each row is the best of three fresh processes on one core. ``cpu_s`` is counted after imports, ``system_s`` is the kernel's part
of it (mostly memory that is touched for the first time); ``rss_added_mb`` is peak minus after-import memory (MiB),
``bytes_per_event`` what that is per event. ``kernels_per_s`` counts kernels alone, ``events_per_s`` their launch calls too,
which ``columns``, ``open`` and ``kept`` read in the same time and the first two methods do not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

METHODS = ("sqlite3", "rows", "columns", "open", "kept")
_KERNELS_ALONE = ("sqlite3", "rows")
_TIMES = 3
_KERNEL = (
    "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName",
    "mangledName", "launchType", "cacheConfig", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted",
    "graphNodeId", "sharedMemoryLimitConfig",
)  # fmt: skip
_CALL = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId")
_READ = (*_KERNEL[:9], "registersPerThread", *_KERNEL[13:21], "graphNodeId")
_PROCESS = (1 << 48) | (1234 << 24)
_NAMES = 300


def make(path: Path, events: int) -> None:
    """An export of ``events`` events, one process, two streams, a step of 10,000 kernels."""
    kernels = events // 2
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=OFF")
    database.execute("PRAGMA synchronous=OFF")
    for table, columns in (("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL), ("CUPTI_ACTIVITY_KIND_RUNTIME", _CALL)):
        listed = ", ".join(f'"{c}" INTEGER' for c in columns)
        database.execute(f"CREATE TABLE {table} ({listed})")
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    nvtx = "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, domainId INTEGER"
    database.execute(f"CREATE TABLE NVTX_EVENTS ({nvtx})")
    names = [(i, f"void kernel_{i}<float, {i}>(float const*, float*, int)") for i in range(_NAMES)]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (_NAMES, "cudaLaunchKernel_v7000")])
    database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(_KERNEL))})", _kernels(kernels))
    database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({','.join('?' * len(_CALL))})", _calls(kernels))
    every, thread = 100_000_000, _PROCESS | 1234
    steps = ((i * every, (i + 1) * every - 1, 59, "train_step", thread, 0) for i in range(kernels // 10_000))
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", steps)
    database.commit()
    database.close()


def _kernels(count: int) -> Iterator[tuple[int | None, ...]]:
    chance = random.Random(1)
    for i in range(count):
        name, start = chance.randrange(_NAMES), i * 10_000 + 4000
        yield (
            start, start + 9000, 0, 1, 7 if i % 10 else 20, i + 1, _PROCESS, name, name, None, 1, 0, 32,
            chance.randrange(1, 4000),
            1, 1, 128, 1, 1, 0, 16, 0, 1_000_000, i, 32768, None, 0,
        )  # fmt: skip


def _calls(count: int) -> Iterator[tuple[int | None, ...]]:
    for i in range(count):
        yield i * 10_000, i * 10_000 + 5000, 0, _PROCESS | 1234, i + 1, _NAMES, 0, None


def prepare(method: str, path: Path) -> Callable[[], Any]:
    """Import what ``method`` needs and return what is measured."""
    if method == "sqlite3":
        return lambda: _by_sqlite3(path)
    # imported by the first open otherwise
    import numpy.ma  # noqa: F401
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    if method == "rows":
        from dtprof.ingest.nsys.database import SqliteSource
        from dtprof.ingest.nsys.source import read

        return lambda: sum(batch.rows for batch in read(SqliteSource(path), _KERNEL_TABLE, **dict.fromkeys(_READ, "int")))
    if method == "columns":
        from dtprof.ingest.nsys.database import SqliteSource
        from dtprof.ingest.nsys.trace import gather

        return lambda: gather(SqliteSource(path))
    from dtprof.ingest.nsys.reader import ingest_report

    return lambda: ingest_report(path, use_cache=method == "kept")


_KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


def _by_sqlite3(path: Path) -> int:
    """The same columns by Python's own module, straight into arrays."""
    from itertools import chain

    import numpy as np

    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    listed = ", ".join(f"ifnull({c}, -1)" for c in _READ)
    cursor, rows = database.execute(f"SELECT {listed} FROM {_KERNEL_TABLE}"), 0
    while got := cursor.fetchmany(65536):
        rows += np.fromiter(chain.from_iterable(got), np.int64, len(got) * len(_READ)).reshape(-1, len(_READ)).shape[0]
    return rows


def memory(field: str) -> float:
    """VmRSS or VmHWM of this process in MiB."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(field))
    return int(line.split()[1]) / 1024


def cpu() -> tuple[float, float]:
    """CPU seconds of this process so far, all threads: in all, and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_stime


def inside(method: str, path: Path) -> dict[str, float]:
    """Measure in this process, which does nothing else."""
    run = prepare(method, path)
    before, start = memory("VmRSS"), cpu()
    kept = run()
    total, system = (now - then for now, then in zip(cpu(), start, strict=True))
    out = {"cpu_s": total, "system_s": system, "rss_added_mb": memory("VmHWM") - before}
    del kept
    return out


def measure(method: str, path: Path, events: int) -> dict[str, Any]:
    """The best of three fresh processes on one core."""
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, __file__, "--inside", method, "--path", str(path)]
    found = []
    for _ in range(_TIMES):
        with tempfile.TemporaryDirectory(prefix="dtprof-nsys-cache-") as cache:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env={**os.environ, "DTPROF_CACHE": cache},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )  # fmt: skip
        found.append(json.loads(done.stdout))
    best = min(found, key=lambda f: f["cpu_s"])
    read = events / 2 if method in _KERNELS_ALONE else events
    return {
        "events": events, "method": method, "cpu_s": round(best["cpu_s"], 3), "system_s": round(best["system_s"], 3),
        "kernels_per_s": round(events / 2 / best["cpu_s"]), "events_per_s": round(read / best["cpu_s"]),
        "rss_added_mb": round(best["rss_added_mb"]), "bytes_per_event": round(best["rss_added_mb"] * 2**20 / events),
    }  # fmt: skip


def main() -> int:
    """Make the exports, measure each method, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 5_000_000])
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(inside(args.inside, args.path)))
        return 0
    rows = []
    for events in args.events:
        with tempfile.TemporaryDirectory(prefix="dtprof-nsys-bench-") as folder:
            path = Path(folder) / "report.sqlite"
            make(path, events)
            rows += [measure(method, path, events) for method in args.methods]
    if args.json:
        print(json.dumps({"rows": rows}))
        return 0
    print(
        f"{'events':>10}  {'method':<8} {'cpu_s':>8} {'system_s':>8} {'kernels/s':>11} {'events/s':>11} {'MiB added':>10}"
        f" {'B/event':>8}"
    )
    for r in rows:
        print(
            f"{r['events']:>10,}  {r['method']:<8} {r['cpu_s']:>8.2f} {r['system_s']:>8.2f} {r['kernels_per_s']:>11,}"
            f" {r['events_per_s']:>11,} {r['rss_added_mb']:>10,}"
            f" {r['bytes_per_event']:>8,}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
