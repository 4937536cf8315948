"""What dtprof costs a training loop that it measures.

    python benchmarks/overhead.py [--json] [--triples 150] [--rounds 6]

One process trains a small GPT on one core. Steps come in triples of random order: A and A2 without dtprof, B with a session
(all collectors, nothing captured), four ranges and ``step()``. Keys, ratios unless the name says otherwise:

    light_fraction  geometric mean of B/A over the triples, minus 1 (10% trimmed at each end)
    light_high      upper end of its 95% bootstrap interval
    aa_noise        half width of the same interval of A2/A: what this machine can resolve
    own_cost        what the session itself says (fraction, low, high), on the same steps
    annotate_us     one range that nobody listens to, microseconds
    capture_ratio   median captured step, dtprof over bare torch.profiler with the same options (CPU, shapes), by turns
    plain_ms, traced_ms, bare_traced_ms                     medians of a step
    stop_ms, bare_stop_ms                                   what the loop waits for at the end of the capture, median
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
import timeit
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

import dtprof
from dtprof.session.folder import describe
from dtprof_sample_jobs.common.data import SyntheticTokens
from dtprof_sample_jobs.common.model import GPT

ACTIVE = 5


class Loop:
    """The training step, with and without ranges."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = GPT(1024, 6, 192, 4, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.data = SyntheticTokens(1024, 4, 64, seed=0, rank=0)

    def plain(self, k):
        tokens = self.data.batch(k)
        loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def marked(self, k):
        with dtprof.annotate("data"):
            tokens = self.data.batch(k)
        with dtprof.annotate("forward"):
            loss = self.model(tokens)
        with dtprof.annotate("backward"):
            loss.backward()
        with dtprof.annotate("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def timed(function, *args):
    begin = time.perf_counter()
    function(*args)
    return time.perf_counter() - begin


def trimmed_mean(values):
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def interval(values, rng, draws=2000):
    """Trimmed mean of log ratios with its 95% bootstrap interval, as ratios minus 1."""
    means = sorted(trimmed_mean(rng.choices(values, k=len(values))) for _ in range(draws))
    return tuple(math.expm1(x) for x in (trimmed_mean(values), means[draws // 40], means[-draws // 40]))


def light(loop, triples, rng):
    ratios, noise, plain = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        with dtprof.profile(folder, capture=None) as prof:

            def measured(k):
                loop.marked(k)
                prof.step(tokens=256)

            for k in range(5):
                loop.plain(k)
                measured(k)
            for k in range(triples):
                ways = [("a", loop.plain), ("a2", loop.plain), ("b", measured)]
                rng.shuffle(ways)
                took = {name: timed(way, k) for name, way in ways}
                plain.append(took["a"])
                ratios.append(math.log(took["b"] / took["a"]))
                noise.append(math.log(took["a2"] / took["a"]))
        own = describe(Path(folder) / "part00000").extra["own_cost"]
    fraction, _, high = interval(ratios, rng)
    _, aa_low, aa_high = interval(noise, rng)
    # to the session a step lasts from one step() to the next: three steps on average
    seen = {k: 3 * own[k] for k in ("fraction", "low", "high")}
    fraction, _, high = interval(ratios, rng)
    _, aa_low, aa_high = interval(noise, rng)
    # the session's steps span the plain ones too: what it says is scaled to the steps that it could see
    share = statistics.median(plain) * 3
    seen = {k: own[k] * share / (share / 3) for k in ("fraction", "low", "high")}
    return {
        "light_fraction": fraction,
        "light_high": high,
        "aa_noise": (aa_high - aa_low) / 2,
        "own_cost": seen,
        "plain_ms": statistics.median(plain) * 1e3,
    }


def bare_capture(loop):
    """Captured steps under torch.profiler alone, and what ending the capture takes."""
    with tempfile.TemporaryDirectory() as folder:
        done = []
        prof = profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=1, warmup=1, active=ACTIVE, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace.json.gz"),
        )
        with prof:
            for k in range(ACTIVE + 3):
                begin = time.perf_counter()
                loop.marked(k)
                middle = time.perf_counter()
                prof.step()
                done.append((middle - begin, time.perf_counter() - middle))
    return [a + b for a, b in done[2 : ACTIVE + 1]], done[ACTIVE + 1][1]


def our_capture(loop):
    with tempfile.TemporaryDirectory() as folder:
        done = []
        with dtprof.profile(folder, capture=(2, 2 + ACTIVE)) as prof:
            for k in range(ACTIVE + 3):
                begin = time.perf_counter()
                loop.marked(k)
                middle = time.perf_counter()
                prof.step()
                done.append((middle - begin, time.perf_counter() - middle))
    return [a + b for a, b in done[2 : ACTIVE + 1]], done[ACTIVE + 1][1]


def captures(loop, rounds):
    ours, bare, our_stop, bare_stop = [], [], [], []
    for n in range(rounds):
        for way, steps, stops in ((our_capture, ours, our_stop), (bare_capture, bare, bare_stop))[:: 1 if n % 2 else -1]:
            took, stop = way(loop)
            steps += took
            stops.append(stop)
    return {
        "capture_ratio": statistics.median(ours) / statistics.median(bare),
        "traced_ms": statistics.median(ours) * 1e3,
        "bare_traced_ms": statistics.median(bare) * 1e3,
        "stop_ms": statistics.median(our_stop) * 1e3,
        "bare_stop_ms": statistics.median(bare_stop) * 1e3,
    }


def annotate_us():
    def ranges():
        with dtprof.annotate("forward"):
            pass

    return statistics.median(timeit.repeat(ranges, number=20_000, repeat=9)) / 20_000 * 1e6


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--triples", type=int, default=150, help="triples of steps for the light cost (150)")
    parser.add_argument("--rounds", type=int, default=6, help="captures of each kind (6)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng, loop = random.Random(args.seed), Loop()
    result = {"annotate_us": annotate_us(), **light(loop, args.triples, rng), **captures(loop, args.rounds)}
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    for key, value in result.items():
        shown = ", ".join(f"{k} {v:.5f}" for k, v in value.items()) if isinstance(value, dict) else f"{value:.4f}"
        print(f"{key:16} {shown}")


if __name__ == "__main__":
    main()
