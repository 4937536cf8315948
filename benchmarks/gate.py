"""What the gate promises, by simulation and by resampling real step times.

    python benchmarks/gate.py [--json] [--trials 1000] [--pairs 20] [--runs RUN…]

Rows of {noise, pairs, trials, false_fail, fail_at_margin, detectable, power, caught_5, passed}: shares of the trials;
margin 2%, level 1%. ``detectable`` is the median of what is printed, from 40 pairs of noise, and ``power`` how often just
that fails. With --runs the steps of recorded runs are resampled in stretches of 20, as they came.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

from dtprof.launch.pairs import step_times
from dtprof.launch.trial import Plan, differences_of, run_trial
from dtprof.stats import detectable

NOISE = {
    "quiet 1%": (0.01, 0.0, 0.0),
    "usual 3%": (0.03, 0.0, 0.0),
    "drift 5%": (0.03, 0.05, 0.0),
    "spikes": (0.03, 0.05, 0.05),
}


class Simulated:
    """Runs with normal noise, an AR(1) drift (0.9) and spikes of 10 to 50%; all deviations of ln(time)."""

    def __init__(self, rng, cv, drift, spikes):
        self.rng, self.cv, self.drift, self.spikes, self.level = rng, cv, drift, spikes, 0.0

    def run(self):
        self.level = 0.9 * self.level + self.rng.normal(0, self.drift) * math.sqrt(1 - 0.81)
        spike = self.rng.uniform(0.1, 0.5) if self.rng.random() < self.spikes else 0.0
        return math.exp(self.rng.normal(0, self.cv) + self.level + spike)


class Resampled:
    """Runs that are stretches of recorded steps."""

    def __init__(self, rng, steps, length=20):
        self.rng, self.steps, self.length = rng, steps, min(length, len(steps))

    def run(self):
        begin = self.rng.integers(0, len(self.steps) - self.length + 1)
        return float(np.median(self.steps[begin : begin + self.length]))


def pairs_of(machine, slower=0.0):
    def measure(number):
        first, second = machine.run(), machine.run()
        a, b = (first, second) if machine.rng.random() < 0.5 else (second, first)
        return a, b * (1 + slower)

    return measure


def row(name, make, plan, trials):
    """Shares over the trials, each on a machine of its own."""

    def share(slower, outcome="fail"):
        return sum(run_trial(pairs_of(make(), slower), plan).outcome == outcome for _ in range(trials)) / trials

    printed, caught = [], 0
    for _ in range(trials):
        machine = make()
        pilot = differences_of(np.array([pairs_of(machine)(i) for i in range(40)]))
        printed.append(detectable(pilot, plan.pairs, margin=plan.margin, alpha=plan.alpha))
        caught += run_trial(pairs_of(machine, printed[-1]), plan).outcome == "fail"
    return {
        "noise": name,
        "pairs": plan.pairs,
        "trials": trials,
        "false_fail": share(0.0),
        "fail_at_margin": share(plan.margin),
        "detectable": float(np.median(printed)),
        "power": caught / trials,
        "caught_5": share(0.05),
        "passed": share(0.0, "pass"),
    }


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--runs", nargs="*", default=[], metavar="RUN", help="recorded runs whose step times are resampled")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, plan = np.random.default_rng(args.seed), Plan(pairs=args.pairs)
    makers = {name: lambda v=values: Simulated(rng, *v) for name, values in NOISE.items()}
    for path in args.runs:
        steps = np.array(list(step_times(Path(path), 3).values()), float)
        if len(steps) < 20:
            raise SystemExit(f"{path}: {len(steps)} steps; 20 are needed")
        makers[path] = lambda s=steps: Resampled(rng, s)
    rows = [row(name, make, plan, args.trials) for name, make in makers.items()]
    if args.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
        return
    print(f"{'noise':24}" + "".join(f"{k:>16}" for k in list(rows[0])[1:]))
    for r in rows:
        print(f"{r['noise']:24}" + "".join(f"{r[k]:16.4g}" for k in list(r)[1:]))


if __name__ == "__main__":
    main()
