"""A hostile run for all exporters, and comparing runs."""

import numpy as np

from dtprof.schema import TABLES
from tests.unit.shapes.build import T0, US, PartBuilder, matched, shape

NAMES = (
    "</script><script>alert(1)</script>", 'a"b\\c', "line\nbreak\ttab", "nul\0byte", "=cmd|' /C calc'!A0",
    "',); DROP TABLE x;--", "größe 漢字 🚀", "", " ", "x" * 5000,
)  # fmt: skip


def hostile():
    """Two ranks whose names are anything, with equal process and stream numbers, one clock 400 us ahead."""

    def rank(r):
        p = PartBuilder(r, r, world_size=2, pid=77, host=f"h{r}", device='GPU "<b>"')
        late = 400 if r else 0
        thread, loader, stream, side = p.thread(), p.thread("autograd", 1), p.stream(7), p.stream(8, "communication")
        for i, name in enumerate(NAMES):
            start = late + 100 * i
            p.span(thread, "range", name, start, start + 90, step=i)
            p.span(thread, "cpu_op", name, start + 1, start + 80, step=i)
            p.launched((loader, stream), "kernel", name, start + 20, start + 60, start + 5, step=i)
            # overlaps the end of the kernel on the same stream
            p.span(stream, "memcpy", "Memcpy HtoD (Pageable -> Device)", start + 50, start + 70, bytes=10, copy_kind="HtoD")
            p.step(i, start, start + 100)
        end = late + 100 * len(NAMES)
        kernel = p.launched(
            (loader, side), "comm", "multimem_all_reduce_kernel<float>(int)", end + 10 - 5 * r, end + 40, end - 9
        )
        p.comm(kernel, "all_reduce", p.group("<g>", (0, 1)), 5, 4096)
        p.add("samples", ts=T0 + (late + 5) * US, metric="sm_clock", value=1980.0, unit="MHz", device=0)
        p.add("memory", ts=T0 + (late + 6) * US, device=0, category="allocated", bytes=1 << 30)
        p.add("allocations", ts=T0 + (late + 7) * US, device=0, address=1 << 40, size=512)
        return p

    return matched(shape([rank(0), rank(1)], {}, world_size=2))


def differences(run, other, skip=("quality",)):
    """Where the tables of two runs differ: (table, part, column), or (table, part, lengths)."""
    found = []
    for spec in TABLES.values():
        if spec.name in skip:
            continue
        for mine, theirs in [(None, None)] if spec.scope == "run" else zip(run.parts, other.parts, strict=True):
            a = run.table(spec.name, mine.ordinal if mine else None)
            b = other.table(spec.name, theirs.ordinal if theirs else None)
            place = mine.ordinal if mine else None
            if len(a) != len(b):
                found.append((spec.name, place, (len(a), len(b))))
                continue
            found += [(spec.name, place, c.name) for c in spec.columns if not equal(a, b, c)]
    return found


def equal(a, b, column):
    if column.kind in ("str", "enum"):
        return a.text(column.name) == b.text(column.name)
    if column.kind in ("ints", "strs"):
        return [v and list(v) for v in a[column.name]] == [v and list(v) for v in b[column.name]]
    return np.array_equal(a[column.name], b[column.name], equal_nan=column.kind == "f64")


def unmarked(run, part):
    """(name, ts, dur) of the steps of a part that no range marks."""
    steps, names = run.table("steps", part.ordinal), set(run.table("events", part.ordinal).values("name"))
    rows = zip(steps["step"].tolist(), steps["host_ts"].tolist(), steps["host_dur"].tolist(), strict=True)
    return [(f"ProfilerStep#{s}", t, d) for s, t, d in rows if f"ProfilerStep#{s}" not in names]
