"""How well the step graph replays traces and runs, what the next step says, and how fast the engine is.

    python benchmarks/replay.py PATH… [--segments 1000000] [--json]

With --segments a made graph of so many nodes, on four lanes with one wait in four for another lane, is simulated five times
(simulate_s: the shortest, seconds). Every step is run again from its beginning with all unexplained delays set to zero.
Keys: rows of {path, rank, step, measured_ns, error_zero_delay, error_next_step (simulated step k against the measured
k + 1), error_naive (measured k against k + 1), unexplained_fraction, withheld (reasons)}, median_error and max_error (ratios,
absolute; of the rows that are not withheld), withheld (paths).
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import dtprof
from dtprof.model.gates import check
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import EdgeKind, StepGraph
from dtprof.model.simulate.engine import simulate

LANES = 4


def rows_of(path):
    run = dtprof.open_run(path)
    gates = check(run, build(run))
    return [
        {
            "path": str(path), "rank": s.rank, "step": s.step, "measured_ns": s.measured_ns, "error_zero_delay": s.error,
            "error_next_step": s.error_next, "error_naive": s.error_naive, "unexplained_fraction": s.unexplained,
            "withheld": list(gates.reasons),
        }
        for s in gates.steps
    ]  # fmt: skip


def made(count):
    """A graph of ``count`` nodes: each waits for the one before on its lane, those of lane 0 for one of another lane too."""
    chance, nodes = np.random.default_rng(1), np.arange(count)
    across = nodes[LANES * 2 :: LANES]
    src = np.concatenate([nodes[:-LANES], across - chance.integers(1, LANES, len(across))])
    dst = np.concatenate([nodes[LANES:], across])
    by_target = np.argsort(dst, kind="stable")
    src, dst, edges = src[by_target], dst[by_target], len(src)
    first = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=count))])
    of_nodes, of_edges = np.zeros(count, np.int64), np.zeros(edges, np.int64)
    return StepGraph(
        of_nodes.astype(np.int8), of_nodes.astype(np.int32), (nodes % LANES).astype(np.int32), of_nodes, of_nodes, of_nodes,
        chance.integers(1_000, 20_000, count), src, dst, of_edges + 500, of_edges.astype(bool),
        np.full(edges, EdgeKind.STREAM, np.int8), np.ones(edges, bool), of_edges, first, nodes, of_nodes.astype(np.int8),
    )  # fmt: skip


def simulate_s(count):
    graph, took = made(count), []
    for _ in range(5):
        began = time.perf_counter()
        simulate(graph)
        took.append(time.perf_counter() - began)
    return min(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--segments", type=int, metavar="N", help="simulate a made graph of N nodes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [row for path in args.paths for row in rows_of(path)]
    errors = [abs(row["error_zero_delay"]) for row in rows if not row["withheld"]]
    found = {
        "rows": rows, "median_error": statistics.median(errors) if errors else None, "max_error": max(errors, default=None),
        "withheld": sorted({row["path"] for row in rows if row["withheld"]}),
    }  # fmt: skip
    if args.segments:
        found["simulate_s"] = simulate_s(args.segments)
    if args.json:
        print(json.dumps(found))
        return
    if args.segments:
        print(f"{args.segments} nodes simulated in {found['simulate_s']:.2f} s")
    if not rows:
        return
    print(f"{'trace':<44} {'rank':>4} {'step':>5} {'measured':>10} {'replay':>7} {'unexpl.':>7} {'next':>6} {'naive':>6}")
    for row in rows:
        following = [f"{row[k]:+.1%}" if row[k] is not None else "-" for k in ("error_next_step", "error_naive")]
        rank = "?" if row["rank"] is None else row["rank"]
        print(
            f"{Path(row['path']).name[:44]:<44} {rank:>4} {row['step']:>5} {row['measured_ns'] / 1e6:>7.1f} ms "
            f"{row['error_zero_delay']:>+7.2%} {row['unexplained_fraction']:>7.2%} {following[0]:>6} {following[1]:>6}"
            f"{'  withheld: ' + row['withheld'][0] if row['withheld'] else ''}"
        )
    if errors:
        print(f"median error {found['median_error']:.2%} · max {found['max_error']:.2%} · {len(found['withheld'])} withheld")


if __name__ == "__main__":
    main()
