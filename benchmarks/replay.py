"""How well the step graph replays traces, and what the next step says.

    python benchmarks/replay.py PATH… [--json]

Every step is run again from its beginning with all unexplained delays set to zero. Keys: rows of {path, rank, step,
measured_ns, error_zero_delay, error_next_step (simulated step k against the measured k + 1), error_naive (measured k against
k + 1), unexplained_fraction, withheld (reasons)}, median_error and max_error (ratios, absolute; of the rows that are not
withheld), withheld (paths).
"""

import argparse
import json
import statistics
from pathlib import Path

import dtprof
from dtprof.model.gates import check
from dtprof.model.graph.build import build


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [row for path in args.paths for row in rows_of(path)]
    errors = [abs(row["error_zero_delay"]) for row in rows if not row["withheld"]]
    found = {
        "rows": rows, "median_error": statistics.median(errors) if errors else None, "max_error": max(errors, default=None),
        "withheld": sorted({row["path"] for row in rows if row["withheld"]}),
    }  # fmt: skip
    if args.json:
        print(json.dumps(found))
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
