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

STRETCH = 20
NOISE = {
    "quiet 1%": {"cv": 0.01},
    "usual 3%": {"cv": 0.03},
    "drift 5%": {"cv": 0.03, "drift": 0.05},
    "spikes": {"cv": 0.03, "drift": 0.05, "spikes": 0.05},
}


class Machine:
    """Two runs at a time in random order; ``slower`` is the true change of the candidate.

    ``cv`` is the deviation of one run, ``drift`` that of an AR(1) process with coefficient 0.9 over the runs, both of
    ln(time), ``spikes`` the share of runs that take 10 to 50% longer. With ``recorded`` (steps as they came) a run is a
    stretch of 20 of them instead, so that what disturbs several in a row does so here.
    """

    def __init__(self, rng, *, cv=0.0, drift=0.0, spikes=0.0, recorded=None, slower=0.0):
        self.rng, self.cv, self.drift, self.spikes, self.slower = rng, cv, drift, spikes, slower
        self.recorded, self.level = recorded, 0.0

    def run(self):
        if self.recorded is not None:
            begin = self.rng.integers(0, len(self.recorded) - STRETCH + 1)
            return float(np.median(self.recorded[begin : begin + STRETCH]))
        self.level = 0.9 * self.level + self.rng.normal(0, self.drift) * math.sqrt(1 - 0.81)
        spike = self.rng.uniform(0.1, 0.5) if self.rng.random() < self.spikes else 0.0
        return math.exp(self.rng.normal(0, self.cv) + self.level + spike)

    def measure(self, number):
        first, second = self.run(), self.run()
        a, b = (first, second) if self.rng.random() < 0.5 else (second, first)
        return a, b * (1 + self.slower)


def outcomes(make, plan, trials):
    """Shares of fail, pass and inconclusive over the trials, each on a machine of its own."""
    found = [run_trial(make().measure, plan).outcome for _ in range(trials)]
    return {word: found.count(word) / trials for word in ("fail", "pass", "inconclusive")}


def caught_as_printed(make, plan, trials):
    """(what is printed as detectable after 40 pairs of noise, median; how often a change of just that fails)."""
    printed, caught = [], 0
    for _ in range(trials):
        machine = make()
        pilot = differences_of(np.array([machine.measure(i) for i in range(40)]))
        machine.slower = detectable(pilot, plan.pairs, margin=plan.margin, alpha=plan.alpha)
        printed.append(machine.slower)
        caught += run_trial(machine.measure, plan).outcome == "fail"
    return float(np.median(printed)), caught / trials


def row(noise, rng, plan, trials, name=""):
    """Shares over the trials under one kind of noise, which are arguments of ``Machine``."""

    def of(slower):
        return outcomes(lambda: Machine(rng, **noise, slower=slower), plan, trials)

    unchanged = of(0.0)
    reach, power = caught_as_printed(lambda: Machine(rng, **noise), plan, trials)
    return {
        "noise": name,
        "pairs": plan.pairs,
        "trials": trials,
        "false_fail": unchanged["fail"],
        "fail_at_margin": of(plan.margin)["fail"],
        "detectable": reach,
        "power": power,
        "caught_5": of(0.05)["fail"],
        "passed": unchanged["pass"],
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
    kinds = dict(NOISE)
    for path in args.runs:
        steps = np.array(list(step_times(Path(path), 3).values()), float)
        if len(steps) < 2 * STRETCH:
            raise SystemExit(f"{path}: {len(steps)} steps; {2 * STRETCH} are needed")
        kinds[path] = {"recorded": steps}
    rows = [row(noise, rng, plan, args.trials, name) for name, noise in kinds.items()]
    if args.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
        return
    print(f"{'noise':24}" + "".join(f"{k:>16}" for k in list(rows[0])[1:]))
    for r in rows:
        print(f"{r['noise']:24}" + "".join(f"{r[k]:16.4g}" for k in list(r)[1:]))


if __name__ == "__main__":
    main()
