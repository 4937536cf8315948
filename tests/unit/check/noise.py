"""Durations of pairs under the noise that machines have: drift, autocorrelation, spikes, none of it the program's."""

import math

import numpy as np


class Machine:
    """Two runs at a time in random order; ``slower`` is the true change of the candidate.

    ``cv`` is the deviation of one run, ``drift`` that of an AR(1) process with coefficient 0.9 over the runs, ``spikes``
    the share of runs that take 10 to 50% longer.
    """

    def __init__(self, rng, *, cv=0.01, drift=0.0, spikes=0.0, slower=0.0, recorded=None):
        self.rng, self.cv, self.drift, self.spikes, self.slower = rng, cv, drift, spikes, slower
        self.recorded, self.level = recorded, 0.0

    def run(self):
        if self.recorded is not None:
            # a stretch of steps as they came, so that what disturbs several in a row does so here
            length = min(20, len(self.recorded))
            begin = self.rng.integers(0, len(self.recorded) - length + 1)
            return float(np.median(self.recorded[begin : begin + length]))
        self.level = 0.9 * self.level + self.rng.normal(0, self.drift) * math.sqrt(1 - 0.81)
        spike = self.rng.uniform(0.1, 0.5) if self.rng.random() < self.spikes else 0.0
        return math.exp(self.rng.normal(0, self.cv) + self.level + spike)

    def measure(self, number):
        first, second = self.run(), self.run()
        a, b = (first, second) if self.rng.random() < 0.5 else (second, first)
        return a, b * (1 + self.slower)


NOISE = {
    "quiet": {"cv": 0.01},
    "usual": {"cv": 0.03},
    "drift": {"cv": 0.03, "drift": 0.05},
    "spikes": {"cv": 0.03, "drift": 0.05, "spikes": 0.05},
}
