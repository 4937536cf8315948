"""How well accumulation, a forgotten no_sync and half of the bytes are predicted, in the network lab.

    python benchmarks/reductions.py [--ranks 2] [--rate 5gbit] [--rtt-ms MS] [--model NAME] [--micro 4] [--steps 14] [--json]

The group's all-reduces are measured by ``dtprof job collectives``; the job once with one pass per step and once with
``--micro`` passes that all reduce. From these the model predicts the step with no_sync, and with gradients in fp16 and bf16.
Then all ways run by turns, step by step, in one process per rank. What is predicted as a share of the recorded step is
compared as that share of the same way among the turns: a machine whose pace changes in between does not count. Keys: rows of
{way, edit, from, measured_s, predicted_s, low, high, error}, max_error, aa_noise (95% half width of the median ratio of two
equal configurations), measured_s (of all ways).
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

from buckets import HERE, in_lab

import dtprof
from dtprof.edits import parse_edits
from dtprof.model.whatif import what_if

WAYS = (
    ("accumulate", "ddp.accumulation={micro}", "plain"),
    ("accumulate", "ddp.accumulation={micro}", "forgotten"),
    ("fp16", "comm.dtype=fp16", "plain"),
    ("bf16", "comm.dtype=bf16", "plain"),
)


def measure(args, out):
    words = ["--ops", "all_reduce", "--sizes", "4K:64M:4", "--groups", "world", "--no-links", "--capture", "none"]
    in_lab(args, ["-m", "dtprof_sample_jobs.collectives", *words, "--out", str(out / "collectives")])
    in_lab(args, [str(HERE / "reductions_rank.py"), args.model, str(out), str(args.micro), str(args.steps)])
    return json.loads((out / "rank0.json").read_text())


def score(args, out, truth):
    medians = {name: statistics.median(times) for name, times in truth.items()}
    rows = []
    for way, edit, source in WAYS:
        text = edit.format(micro=args.micro)
        found = what_if(dtprof.open_run(out / source), parse_edits([text]), out / "collectives")
        if found.predicted_ns is None:
            sys.exit(f"reductions: {text} from {source}: {'; '.join(found.withheld)}")
        value, low, high = (
            medians[source] * ns / found.measured_ns for ns in (found.predicted_ns, found.low_ns, found.high_ns)
        )
        rows.append({
            "way": way, "edit": text, "from": source, "measured_s": medians[way], "predicted_s": value, "low": low,
            "high": high, "error": value / medians[way] - 1,
        })  # fmt: skip
    ratios = [math.log(b / a) for a, b in zip(truth["plain"], truth["plain again"], strict=True)]
    noise = 1.96 * 1.2533 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {"rows": rows, "max_error": max(abs(r["error"]) for r in rows), "aa_noise": noise, "measured_s": medians}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="5gbit")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--model", default="s_uniform")
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--keep", metavar="FOLDER", help="keep what was measured there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(args.keep or folder)
        out.mkdir(parents=True, exist_ok=True)
        found = score(args, out, measure(args, out))
    if args.json:
        print(json.dumps(found))
        return
    print(f"{args.model}, {args.ranks} ranks, {args.rate}, RTT {args.rtt_ms:g} ms, {args.steps} steps of each")
    print(f"{'edit':>20} {'from':>10} {'measured':>10} {'predicted':>10} {'interval':>19} {'error':>7}")
    for row in found["rows"]:
        interval = f"{row['low'] * 1e3:.1f} to {row['high'] * 1e3:.1f}"
        times = f"{row['measured_s'] * 1e3:>7.1f} ms {row['predicted_s'] * 1e3:>7.1f} ms"
        print(f"{row['edit']:>20} {row['from']:>10} {times} {interval:>19} {row['error']:>+7.1%}")
    print(f"max_error {found['max_error']:.1%} · aa_noise {found['aa_noise']:.1%}")


if __name__ == "__main__":
    main()
