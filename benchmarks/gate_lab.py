"""The gate on real training in the network lab: planted faults have to fail and be named, the same command must not fail.

    python benchmarks/gate_lab.py [--kinds same,tiny_buckets,slow_rank] [--gates 5] [--record FILE] [--resample 200] [--json]

Each gate is ``dtprof gate`` with 7 pairs, margin 5% and level 1%, of a job of two ranks with emulated compute on 1 Gbit/s and
4 ms. Its rows are {kind, seed, outcome, headline, pairs (those of the repetition as well), minutes, noise}. Then gates of at
most 20 pairs are made of the steps that those runs took: {kind, resampled, fail, pass}. --record adds the gates to FILE, with
the length of every step (ns), and takes those that FILE has already; so the whole can be run in pieces.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dtprof.launch.pairs import WARM_UP, step_times
from dtprof.launch.trial import Plan, run_trial
from dtprof_sample_jobs.lab.network import lab
from dtprof_sample_jobs.lab.processes import rank_environment
from dtprof_sample_jobs.lab.spec import parse_lab

RANK = Path(__file__).with_name("gate_rank.py")
LAB = "rate=1gbit,rtt=4ms"
LAYERS = """
width_bytes = 4096
[[layers]]
name = "block"
repeat = 4
forward_ms = 2.0
backward_ms = 4.0
tensors = [32768, 4096, 32768, 4096]
"""
# a model that needs its cores, where the emulated one sleeps
COMPUTING = ["--layers", "2", "--dim", "128", "--batch", "2"]
PLAN = Plan(pairs=7, margin=0.05, alpha=0.01)
RESAMPLED = replace(PLAN, pairs=20)
# kind -> the candidate's options
KINDS = {
    "same": [],
    "tiny_buckets": ["--inject", "tiny_buckets=all:0.01"],
    "slow_rank": ["--inject", "slow_rank=1:20ms"],
}


@contextlib.contextmanager
def warm_lab(folder):
    """A lab that is up, with both ranks loaded; yields the words of the job's command."""
    (folder / "layers.toml").write_text(LAYERS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    ranks = []
    with lab(parse_lab(LAB, 2)) as made:
        try:
            for rank in range(2):
                words = made.inside(rank, [sys.executable, str(RANK), str(folder / f"rank{rank}")])
                started = {**environment, **rank_environment(made, rank)}
                ranks.append(subprocess.Popen(words, env=started, stdout=subprocess.PIPE, text=True))
            for process in ranks:
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError("a rank of the lab ended before its first job")
            yield [sys.executable, "-I", "-S", str(RANK), f"{folder / 'rank0'},{folder / 'rank1'}", "--steps", "16"]
        finally:
            for process in ranks:
                process.terminate()
                process.wait()
                process.stdout.close()


def gate(job, kind, seed, folder, model=None):
    """One gate, as its row with the steps of its pairs. ``model``: options of the job's model (emulated layers)."""
    out = folder / f"{kind}{seed}"
    job = [*job, *(model or ["--emulate", str(folder / "layers.toml")])]
    baseline, candidate = " ".join(job), " ".join([*job, *KINDS[kind]])
    budget = ["--pairs", str(PLAN.pairs), "--margin", str(PLAN.margin), "--alpha", str(PLAN.alpha), "--seed", str(seed)]
    words = ["gate", "--baseline-cmd", baseline, "--candidate-cmd", candidate, *budget, "--out", str(out), "--json"]
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "dtprof", *words], capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"gate of {kind}: {done.stderr}")
    said = json.loads(done.stdout)
    return {
        "kind": kind,
        "seed": seed,
        "outcome": said["outcome"],
        "headline": said["headline"],
        "pairs": len(said["pairs"]),
        "minutes": (time.monotonic() - begin) / 60,
        "noise": said["noise"],
        "steps": [[lengths(out / run) for run in pair["folders"]] for pair in said["pairs"]],
    }


def lengths(run):
    return list(step_times(run, WARM_UP).values())


def resampled(gates, trials, seed=0):
    """Outcomes of gates made of recorded pairs, each with some of its steps; pairs of one command also change sides."""
    rng = np.random.default_rng(seed)
    pairs = [pair for row in gates for pair in row["steps"]]

    def measure(number):
        pair = pairs[rng.integers(len(pairs))]
        a, b = (float(np.median(rng.choice(steps, len(steps)))) for steps in pair)
        return (b, a) if gates[0]["kind"] == "same" and rng.random() < 0.5 else (a, b)

    found = [run_trial(measure, RESAMPLED).outcome for _ in range(trials)]
    return {"kind": gates[0]["kind"], "resampled": trials, **{word: found.count(word) for word in ("fail", "pass")}}


def gates_of(kinds, count, record):
    """Rows of the gates asked for: those that are recorded, and new ones for the others, which are recorded at once."""
    rows = json.loads(record.read_text()) if record and record.exists() else []
    done = {(row["kind"], row["seed"]) for row in rows}
    due = [(kind, seed) for kind in kinds for seed in range(count) if (kind, seed) not in done]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtprof-bench-")))
        job = stack.enter_context(warm_lab(folder)) if due else []
        for kind, seed in due:
            rows.append(gate(job, kind, seed, folder))
            print(f"{kind} {seed}: {rows[-1]['headline']}", file=sys.stderr)
            if record:
                record.write_text(json.dumps(rows))
    return [row for row in rows if row["kind"] in kinds]


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--gates", type=int, default=5)
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the gates there, and take those that it has")
    parser.add_argument("--resample", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    rows = gates_of(kinds, args.gates, args.record)
    again = [resampled([r for r in rows if r["kind"] == kind], args.resample) for kind in kinds]
    if args.json:
        json.dump(
            {"gates": [{k: v for k, v in r.items() if k != "steps"} for r in rows], "resampled": again}, sys.stdout, indent=1
        )
        print()
        return
    for r in sorted(rows, key=lambda r: (r["kind"], r["seed"])):
        print(f"{r['kind']:13}{r['outcome']:13}{r['pairs']:3} pairs {r['minutes']:5.2f} min  {r['headline']}")
    for r in again:
        print(f"{r['kind']:13}{r['resampled']} resampled: {r['fail']} fail, {r['pass']} pass")


if __name__ == "__main__":
    main()
