"""How well the step time under other bucket sizes is predicted, from one run with DDP's default, in the network lab.

    python benchmarks/buckets.py [--ranks 2] [--rate 5gbit] [--rtt-ms MS] [--model NAME] [--caps 0.5,1,…] [--steps 30] [--json]

The group's collectives are measured by ``dtprof job collectives``, the job once with default buckets; from these two the
model predicts every cap. Then all caps run by turns, step by step, in one process per rank. Keys: rows of {cap_mb (null: the
default), measured_s, predicted_s, low, high}, mean_error and max_error (ratios, absolute), drift (the step of the profile
against that of the same configuration among the turns, which come a minute later), mean_error_of_change and
max_error_of_change (the predicted difference added to the default's step among the turns: what is left without the drift),
regret (the cap that the model advises, that of the shortest cautious step, against the best one; the best is chosen on odd
steps, both are scored on even ones), aa_noise (95% half width of the median ratio of two equal configurations), replay_error.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import dtprof
from dtprof.model.cost import from_calibration
from dtprof.model.ddp.buckets import Caps
from dtprof.model.ddp.observe import observe
from dtprof.model.ddp.predict import Change, DdpModel
from dtprof_sample_jobs.lab.processes import run_ranks
from dtprof_sample_jobs.lab.spec import parse_lab

HERE = Path(__file__).parent
CAPS = "0.5,1,2,5,10,25,50,100"


def in_lab(args, words):
    spec = parse_lab(",".join([f"rate={args.rate}", *([f"rtt={args.rtt_ms:g}ms"] if args.rtt_ms else [])]), args.ranks)
    code = run_ranks(spec, [sys.executable, *words], dict(os.environ, OMP_NUM_THREADS="1"), stdout=2)
    if code:
        sys.exit(f"buckets: a rank ended with {code}")


def measure(args, out):
    """Calibration, profile and truth, all in the same lab settings."""
    words = ["--ops", "all_reduce", "--sizes", "4K:64M:2", "--groups", "world", "--no-links", "--capture", "none"]
    in_lab(args, ["-m", "dtprof_sample_jobs.collectives", *words, "--out", str(out / "collectives")])
    in_lab(args, [str(HERE / "buckets_rank.py"), args.model, str(out), args.caps, str(args.steps)])
    return json.loads((out / "rank0.json").read_text())


def predict(args, out):
    seen = observe(dtprof.open_run(out / "run"))
    if isinstance(seen, str):
        sys.exit(f"buckets: {seen}")
    model = DdpModel(seen, from_calibration(out / "collectives", "all_reduce", args.ranks))
    caps = [None, *(float(c) for c in args.caps.split(","))]
    return {cap: model.predict(Change(caps=Caps.of(cap))) for cap in caps}, model.replay_error


def score(truth, predicted, replay_error):
    names = {cap: "default" if cap is None else str(cap) for cap in predicted}
    rows, errors, changes = [], [], []
    default = statistics.median(truth["default"] + truth["default again"])
    for cap, guess in predicted.items():
        measured = statistics.median(truth[names[cap]])
        errors.append(abs(guess.step_ns / 1e9 / measured - 1))
        changes.append(abs((default + (guess.step_ns - guess.base_ns) / 1e9) / measured - 1))
        rows.append({
            "cap_mb": cap, "measured_s": measured, "predicted_s": guess.step_ns / 1e9, "low": guess.low_ns / 1e9,
            "high": guess.high_ns / 1e9,
        })  # fmt: skip
    best = min(predicted, key=lambda cap: statistics.median(truth[names[cap]][1::2]))
    chosen = min(predicted, key=lambda cap: predicted[cap].cautious_ns)
    scored = {cap: statistics.median(truth[names[cap]][::2]) for cap in (best, chosen)}
    ratios = [math.log(b / a) for a, b in zip(truth["default"], truth["default again"], strict=True)]
    return {
        "rows": rows, "mean_error": statistics.mean(errors), "max_error": max(errors),
        "drift": predicted[None].base_ns / 1e9 / default - 1, "mean_error_of_change": statistics.mean(changes),
        "max_error_of_change": max(changes),
        "regret": scored[chosen] / scored[best] - 1, "best_cap_mb": best, "chosen_cap_mb": chosen,
        "aa_noise": 1.96 * 1.2533 * statistics.stdev(ratios) / math.sqrt(len(ratios)), "replay_error": replay_error,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="5gbit")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--model", default="s_uniform")
    parser.add_argument("--caps", default=CAPS)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keep", metavar="FOLDER", help="keep what was measured there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(args.keep or folder)
        out.mkdir(parents=True, exist_ok=True)
        truth = measure(args, out)
        found = score(truth, *predict(args, out))
    if args.json:
        print(json.dumps(found))
        return
    print(f"{args.model}, {args.ranks} ranks, {args.rate}, RTT {args.rtt_ms:g} ms, {args.steps} steps of each")
    print(f"{'cap MiB':>8} {'measured':>10} {'predicted':>10} {'interval':>19} {'error':>7}")
    for row in found["rows"]:
        cap = "default" if row["cap_mb"] is None else f"{row['cap_mb']:g}"
        interval = f"{row['low'] * 1e3:.1f} to {row['high'] * 1e3:.1f}"
        error = row["predicted_s"] / row["measured_s"] - 1
        print(f"{cap:>8} {row['measured_s'] * 1e3:>7.1f} ms {row['predicted_s'] * 1e3:>7.1f} ms {interval:>19} {error:>+7.1%}")
    summary = (
        "mean_error", "max_error", "drift", "mean_error_of_change", "max_error_of_change", "regret", "aa_noise", "replay_error",
    )  # fmt: skip
    print(" · ".join(f"{key} {found[key]:.1%}" for key in summary))


if __name__ == "__main__":
    main()
