"""Runs as a session leaves them, without a trace: steps of 100 ms, and whatever a test puts beside them."""

from __future__ import annotations

import json

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.ingest import open_run

MS = 1_000_000
START = 1_700_000_000_000_000_000


def write(folder, *, ranks=2, steps=40, step_ms=100.0, kind=None, phases=None, length=None, metrics=None, host=None, nvml=None,
          facts=None, knobs=None, mesh=None, samples=8, start_up_ms=0.0, first=0, attempt=0, at_ms=0.0,
          pauses=()):  # fmt: skip
    """Write the parts of one attempt and return when it ended, ms. Callables get (rank, step); facts and nvml get the rank;
    pauses are (start, length) of garbage collections, ms."""
    folder.mkdir(parents=True, exist_ok=True)
    world, ends = ranks, at_ms
    for rank in range(ranks):
        ordinal = attempt * world + rank
        part = folder / f"part{ordinal:05d}"
        part.mkdir()
        now = round((at_ms + start_up_ms) * MS)
        lines = []
        for step in range(first, steps):
            took = round((length(rank, step) if length else step_ms) * MS)
            row = {"step": step, "host_ts": START + now, "host_dur": took, "samples": samples}
            row["kind"] = (kind(rank, step) if kind else None) or ("warm-up" if step == first else "train")
            if phases and (told := phases(rank, step)):
                row["phases"] = {name: round(ms * MS) for name, ms in told.items()}
            lines.append(row)
            now += took
        ends = max(ends, now / MS)
        jsonl(part / "steps.jsonl", lines)
        if metrics:
            jsonl(part / "metrics.jsonl", [
                {"step": s, "metrics": [[name, value, "", None, None, None] for _, name, value in metrics(rank, s)]}
                for s in range(first, steps)
            ])  # fmt: skip
        if host:
            zero = dict.fromkeys(("process_cpu_ns", "thread_cpu_ns", "voluntary", "involuntary", "major_faults", "gc_count"), 0)
            jsonl(part / "host.jsonl", [
                {"step": s, "ts": START, **zero, "gc_ns": round(host(rank, s) * MS),
                 "pauses": [[START + round(at * MS), round(ms * MS), 2] for at, ms in pauses if s == first]}
                for s in range(first, steps)
            ])  # fmt: skip
        if nvml:
            jsonl(part / "nvml.jsonl", [
                {"ts": START + i * 1_000 * MS, "device": 0, "values": values} for i, values in enumerate(nvml(rank))
            ])  # fmt: skip
        told = [{"name": name, "state": "on", "facts": found} for name, found in (facts(rank) if facts else {}).items()]
        extra = {"first_step": first, "started_ns": START + round(at_ms * MS), "ended_ns": START + now, "collectors": told}
        described = {"ordinal": ordinal, "rank": rank, "world_size": world, "host": "a", "attempt": attempt, "extra": extra}
        (part / "part.json").write_text(json.dumps(described))
    manifest = {"run_id": "r", "knobs": knobs or {}, "mesh": mesh or {}, "world_size": world, "parts": []}
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, **manifest}))
    return ends


def jsonl(path, rows):
    """One JSON document per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def study(folder):
    """The study of a run."""
    return study_of(open_run(folder, cache=False))


def by_rule(folder):
    """Rule -> finding."""
    return {f.rule: f for f in findings(study(folder))}
