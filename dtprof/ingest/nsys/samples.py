"""Counter readings of a report: GPU metrics, and how often the CPU sampler found each process running."""

from __future__ import annotations

import numpy as np

from dtprof.ingest.nsys.cells import Ints
from dtprof.ingest.nsys.source import Source, read, records
from dtprof.ingest.nsys.spans import process_of
from dtprof.schema import MISSING
from dtprof.table import Strings, Table

# CPU samples are counted in windows of this length
WINDOW_NS = 100_000_000


def gpu_metrics(source: Source) -> dict[int, Table]:
    """Hardware GPU -> its readings as ``samples`` rows, ts since the session's start, device not yet set."""
    names = {
        (row["typeId"], row["metricId"]): row["metricName"]
        for row in records(source, "TARGET_INFO_GPU_METRICS", typeId="int", metricId="int", metricName="text")
    }
    pieces: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
    for batch in read(source, "GPU_METRICS", timestamp="int", typeId="int", metricId="int", value="int"):
        kind, metric = batch.ints("typeId"), batch.ints("metricId")
        for gpu in np.unique(kind & 0xFF).tolist():
            rows = np.flatnonzero((kind & 0xFF) == gpu)
            key = (kind[rows] << 32) | metric[rows]
            pieces.setdefault(gpu, []).append((batch.ints("timestamp")[rows], key, batch.ints("value")[rows]))
    return {
        gpu: _readings(names, *(np.concatenate(column) for column in zip(*found, strict=True))) for gpu, found in pieces.items()
    }


def _readings(names: dict[tuple[int, int], str | None], ts: Ints, key: Ints, value: Ints) -> Table:
    """Readings of one GPU in order of time; ``key`` is type << 32 | metric."""
    keys, code = np.unique(key, return_inverse=True)
    told = [names.get((k >> 32, k & 0xFFFFFFFF)) or f"metric {k & 0xFFFFFFFF}" for k in keys.tolist()]
    metric, unit = Strings.of(told), Strings.of(_unit(text) for text in told)
    order = np.argsort(ts, kind="stable")
    codes = code.reshape(-1)[order]
    return Table.of(
        "samples",
        ts=ts[order],
        metric=Strings(metric.codes[codes], metric.values),
        value=np.where(value == MISSING, np.nan, value.astype(float))[order],
        unit=Strings(unit.codes[codes], unit.values),
    )


def _unit(metric: str) -> str:
    """The unit that a metric's name ends with, as ``SMs Active [Throughput %]``."""
    _, bracket, rest = metric.rpartition("[")
    unit = rest.rstrip("] ").removeprefix("Throughput ").strip() if bracket else ""
    return unit or "count"


def cpu_samples(source: Source) -> dict[int, Table]:
    """Process key -> samples of the CPU sampler, counted in windows of 100 ms; ts since the session's start."""
    batches = read(source, "COMPOSITE_EVENTS", start="int", globalTid="int")
    pieces = [(process_of(batch.ints("globalTid")), batch.ints("start")) for batch in batches]
    if not pieces:
        return {}
    process, start = (np.concatenate(column) for column in zip(*pieces, strict=True))
    good = (process != MISSING) & (start != MISSING)
    out = {}
    for key in np.unique(process[good]).tolist():
        windows, counts = np.unique(start[good & (process == key)] // WINDOW_NS, return_counts=True)
        out[key] = Table.of(
            "samples", ts=windows * WINDOW_NS, metric=["cpu_samples"] * len(windows), value=counts.astype(float),
            unit=["samples per 100 ms"] * len(windows), device=np.full(len(windows), -1, np.int32),
        )  # fmt: skip
    return out


def counted(source: Source, table: str) -> int:
    """Rows of a table of events that is not read further."""
    return sum(batch.rows for batch in read(source, table, start="int"))
