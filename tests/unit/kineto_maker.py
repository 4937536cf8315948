"""Writes small Kineto traces with known truth: times in microseconds, as the format has them."""

from __future__ import annotations

import json
from pathlib import Path

import dtprof
from dtprof.advise import findings, verdict
from dtprof.analyse import study_of


class Trace:
    """One process; streams and threads appear as they are used."""

    def __init__(self, rank=None, world=None, base_ns=1_700_000_000_000_000_000, **header):
        self.events, self.correlation = [], 0
        self.header = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, **header}
        if rank is not None:
            self.header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}

    def span(self, cat, name, ts, end, pid=10, tid=10, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": args}
        )
        return self.events[-1]

    def step(self, number, ts, end):
        self.span("user_annotation", f"ProfilerStep#{number}", ts, end)

    def op(self, name, ts, end, tid=10, **args):
        self.span("cpu_op", name, ts, end, tid=tid, **args)

    def range(self, name, ts, end, tid=10, **args):
        self.span("user_annotation", name, ts, end, tid=tid, **args)

    def launch(self, ts, end, name="cudaLaunchKernel", tid=10):
        self.correlation += 1
        self.span("cuda_runtime", name, ts, end, tid=tid, correlation=self.correlation)
        return self.correlation

    def kernel(self, name, ts, end, stream=7, correlation=None, cat="kernel", **args):
        if correlation is not None:
            args["correlation"] = correlation
        return self.span(cat, name, ts, end, pid=0, tid=stream, device=0, stream=stream, **args)

    def run(self, name, launch_ts, ts, end, stream=7, **args):
        """A kernel with its launch call of 1 us."""
        return self.kernel(name, ts, end, stream, self.launch(launch_ts, launch_ts + 1), **args)

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({**self.header, "traceEvents": self.events}))
        return path


def study(path: Path):
    return study_of(dtprof.open_run(path))


def found(path: Path):
    """rule -> findings of a trace."""
    out = {}
    for finding in findings(study(path)):
        out.setdefault(finding.rule, []).append(finding)
    return out


def quality(run):
    """All quality rows of a run as (what, count)."""
    return [
        (row["what"], row["count"])
        for part in run.parts
        for table in [run.table("quality", part.ordinal)]
        for row in (table.row(i) for i in range(len(table)))
    ]


__all__ = ["Trace", "found", "quality", "study", "verdict"]
