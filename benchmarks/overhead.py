"""What dtprof costs a training loop that it measures.

    python benchmarks/overhead.py [--json] [--triples 300] [--rounds 6]

One process trains a small GPT under DistributedDataParallel (a group of one) on one core. Steps come in triples of random
order: A and A2 without dtprof, B with a session (all collectors, nothing captured), a watched loader, four ranges and
``step()``. All three train one model, since two equal ones differ by several percent for where their memory lies; between
the steps, and outside their times, the gradient hooks are put on for B and taken off for A and A2. As only every third step is
the session's, what it does now and then (writing, sampling) is made three times as rare. Times are CPU times of the process,
unless the name says wall. Keys, ratios unless the name says otherwise:

    light_fraction  geometric mean of B/A over the triples, minus 1 (10% trimmed at each end)
    light_high      upper end of its 95% bootstrap interval
    light_us        light_fraction of the median plain step, microseconds
    aa_noise        half width of the same interval of A2/A: what this machine can resolve
    own_cost        what the session itself says (fraction, low, high), on the same steps
    meter_agrees    do own_cost [low, high] and the interval of light_fraction, widened by aa_noise, meet?
    annotate_us     one range that nobody listens to, microseconds
    capture_ratio   median captured step, dtprof over bare torch.profiler with the same options (CPU, shapes), by turns
    plain_ms, traced_ms, bare_traced_ms                     medians of a step
    stop_wall_ms, bare_stop_wall_ms                         what the loop waits for at the end of the capture, median
"""

import argparse
import itertools
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
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

import dtprof
from dtprof import jsonl
from dtprof.session import core, windows
from dtprof.session.folder import describe
from dtprof_collectors import host, memory
from dtprof_sample_jobs.common.data import SyntheticTokens
from dtprof_sample_jobs.common.model import GPT

ACTIVE = 5
STEPS_PER_OWN = 3


class Loop:
    """The training step, with and without ranges."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(GPT(1024, 4, 192, 4, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.data = SyntheticTokens(1024, 4, 64, seed=0, rank=0)
        self.batches = iter(dtprof.loader(self.data.batch(k) for k in itertools.count()))

    def plain(self, k):
        tokens = self.data.batch(k)
        loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def marked(self, k):
        with dtprof.annotate("data"):
            tokens = next(self.batches)
        with dtprof.annotate("forward"):
            loss = self.model(tokens)
        with dtprof.annotate("backward"):
            loss.backward()
        with dtprof.annotate("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


class Hooks:
    """The gradient hooks that a session has put on the model."""

    def __init__(self, prof):
        ddp = next(collector for name, collector, _ in prof._collectors if name == "ddp")
        self.models, self.on = ddp._models, True
        assert self.models, "the session watches no model"

    def only_if(self, wanted):
        for model in self.models if wanted != self.on else ():
            model.watch(False) if wanted else model.unwatch()
        self.on = wanted


def timed(function, *args):
    begin = time.process_time()
    function(*args)
    return time.process_time() - begin


def rarer():
    """Have the session write and sample as often per step of its own as in a job in which every step is its own."""
    core.SAMPLE_NS *= STEPS_PER_OWN
    host.LOAD_NS *= STEPS_PER_OWN
    windows.POLL_S *= STEPS_PER_OWN
    for module in (host, memory):
        module.FLUSH_S *= STEPS_PER_OWN
    jsonl.Appender.__init__.__kwdefaults__["flush_s"] *= STEPS_PER_OWN


def trimmed_mean(values):
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def interval(values, rng, draws=2000):
    """Trimmed mean of log ratios with its 95% bootstrap interval, as ratios minus 1."""
    means = sorted(trimmed_mean(rng.choices(values, k=len(values))) for _ in range(draws))
    return tuple(math.expm1(x) for x in (trimmed_mean(values), means[draws // 40], means[-draws // 40]))


def light(triples, rng):
    ratios, noise, plain = [], [], []
    rarer()
    loop = Loop()
    with tempfile.TemporaryDirectory() as folder:
        with dtprof.profile(folder, capture=None) as prof:

            def measured(k):
                loop.marked(k)
                prof.step(tokens=256)

            for k in range(40):
                loop.plain(k)
                measured(k)
            hooks = Hooks(prof)
            for k in range(triples):
                ways = [("a", loop.plain), ("a2", loop.plain), ("b", measured)]
                rng.shuffle(ways)
                took = {}
                for name, way in ways:
                    hooks.only_if(name == "b")
                    took[name] = timed(way, k)
                plain.append(took["a"])
                ratios.append(math.log(took["b"] / took["a"]))
                noise.append(math.log(took["a2"] / took["a"]))
            hooks.only_if(True)
        own = describe(Path(folder) / "part00000").extra["own_cost"]
    fraction, low, high = interval(ratios, rng)
    _, aa_low, aa_high = interval(noise, rng)
    aa_noise = (aa_high - aa_low) / 2
    # to the session a step lasts from one step() to the next: three steps on average
    seen = {k: 3 * own[k] for k in ("fraction", "low", "high")}
    return {
        "light_fraction": fraction,
        "light_high": high,
        "light_us": fraction * statistics.median(plain) * 1e6,
        "aa_noise": aa_noise,
        "own_cost": seen,
        "meter_agrees": seen["low"] <= high + aa_noise and low - aa_noise <= seen["high"],
        "plain_ms": statistics.median(plain) * 1e3,
    }


def captured_steps(loop, end_step):
    """CPU seconds of every step, the end of it included, and wall seconds of the end alone."""
    steps, ends = [], []
    for k in range(ACTIVE + 3):
        begin = time.process_time()
        loop.marked(k)
        wall = time.perf_counter()
        end_step()
        ends.append(time.perf_counter() - wall)
        steps.append(time.process_time() - begin)
    return steps[2 : ACTIVE + 1], ends[ACTIVE + 1]


def bare_capture(loop):
    """Captured steps under torch.profiler alone, and what ending the capture takes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=1, warmup=1, active=ACTIVE, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace.json.gz"),
        ) as prof,
    ):
        return captured_steps(loop, prof.step)


def our_capture(loop):
    with tempfile.TemporaryDirectory() as folder, dtprof.profile(folder, capture=(2, 2 + ACTIVE)) as prof:
        return captured_steps(loop, prof.step)


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
        "stop_wall_ms": statistics.median(our_stop) * 1e3,
        "bare_stop_wall_ms": statistics.median(bare_stop) * 1e3,
    }


def annotate_us():
    statement = 'with dtprof.annotate("forward"): pass'
    took = timeit.repeat(statement, number=100_000, repeat=9, timer=time.process_time, globals={"dtprof": dtprof})
    return statistics.median(took) / 100_000 * 1e6


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--triples", type=int, default=300, help="triples of steps for the light cost (300)")
    parser.add_argument("--rounds", type=int, default=6, help="captures of each kind (6)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rng = random.Random(args.seed)
    result = {"annotate_us": annotate_us(), **light(args.triples, rng), **captures(Loop(), args.rounds)}
    dist.destroy_process_group()
    if args.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    for key, value in result.items():
        shown = ", ".join(f"{k} {v:.5f}" for k, v in value.items()) if isinstance(value, dict) else f"{value:.4f}"
        print(f"{key:16} {shown}")


if __name__ == "__main__":
    main()
