"""Asks Holistic Trace Analysis, in a process of its own: it is large, prints as it goes, and may fail on any trace.

Arguments: a scratch folder, "analyses" or "breakdowns", the operator for sequences (or -), then RANK=FILE for each trace.
Prints one JSON document: for each analysis {"rows": [...]} with times in us as HTA gives them, or {"error": "..."}.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]
# HTA's own cut-offs: a kernel that takes less time than its launch, a launch or a delay that is long, us
LONG_LAUNCH_US, LONG_DELAY_US = 50, 100
# what HTA and pandas raise on traces that an analysis cannot take; pandas' own errors are of these
REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


def main(words: list[str]) -> None:
    """Print what each analysis says."""
    folder, what, operator, *pairs = words
    files = {int(rank): path for rank, _, path in (pair.partition("=") for pair in pairs)}
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_files=files, trace_dir=folder)
        asked: dict[str, dict[str, Callable[[], Rows]]] = {
            "breakdowns": {
                "breakdown": lambda: analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
                "overlap": lambda: analysis.get_comm_comp_overlap(visualize=False).to_dict("records"),
            },
            "analyses": {
                "queue_length": lambda: queue(analysis),
                "launches": lambda: launches(analysis),
                "critical_path": lambda: paths(analysis, sorted(files)),
            },
        }
        found = {name: told(ask) for name, ask in asked[what].items()}
        if operator != "-":
            found["sequences"] = told(lambda: sequences(analysis, operator, folder, min(files)))
    sys.stdout.write(json.dumps(found, default=float))


def told(ask: Callable[[], Rows]) -> dict[str, Any]:
    """Its rows, or what went wrong."""
    try:
        return {"rows": ask()}
    except REFUSALS as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def queue(analysis: Any) -> Rows:
    """Operations that wait on each stream: mean, median and most."""
    table = analysis.get_queue_length_summary()
    return [
        {"rank": int(place[0]), "stream": int(place[1]), **{name: float(row[("queue_length", key)]) for name, key in _QUEUE}}
        for place, row in (table.iterrows() if table is not None else ())
    ]


_QUEUE = (("mean", "mean"), ("median", "50%"), ("most", "max"))


def launches(analysis: Any) -> Rows:
    """Launches of each rank: how many, shorter on the device than on the host, slow on the host, begun late."""
    rows = []
    for rank, table in analysis.get_cuda_kernel_launch_stats(visualize=False).items():
        gpu, cpu, delay = (table[name] for name in ("gpu_duration", "cpu_duration", "launch_delay"))
        rows.append(
            {
                "rank": int(rank), "launches": len(table), "shorter_than_launch": int((gpu < cpu).sum()),
                "slow_launches": int((cpu > LONG_LAUNCH_US).sum()), "late": int((delay > LONG_DELAY_US).sum()),
                "median_delay_us": float(delay.median()),
            }
        )  # fmt: skip
    return rows


def paths(analysis: Any, ranks: list[int]) -> Rows:
    """What bounds the critical path of the first step of each rank, in percent."""
    rows: Rows = []
    for rank in ranks:
        graph, fine = analysis.critical_path_analysis(rank, "ProfilerStep", 0)
        if not fine:
            raise ValueError(f"no critical path on rank {rank}")
        rows += [
            {"rank": rank, "bound_by": name, "percent": float(share)}
            for name, share in graph.summary().items()
            if name and share > 0
        ]
    return rows


def sequences(analysis: Any, operator: str, folder: str, rank: int) -> Rows:
    """Sequences of kernels below an operator, the most frequent first."""
    table = analysis.get_frequent_cuda_kernel_sequences(operator, folder, rank=rank, top_k=5, visualize=False)
    return [
        {"pattern": str(row["pattern"]), "count": int(row["count"]), "gpu_us": float(row["GPU kernel duration (us)"])}
        for row in table.to_dict("records")
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
