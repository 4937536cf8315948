"""The planner's choice against layouts that ran: the job hybrid on 8 ranks with emulated compute, on two hosts of the lab.

    python benchmarks/layout_lab.py [--lab hosts=2,rate=100mbit,rtt=1ms] [--block-ms 200] [--most-tp 2] [--calibration RUN]
                                    [--record FILE] [--json]

Every block takes a stated time, divided over tensor parallelism; what the network and the processes add is real. The planner
knows the time of a block, the hosts and the rate between them, what collectives of the ranks of one host take by themselves
(``dtprof job collectives``, run first or given), and from one run with blocks of a fifth of the time (dp 2 tp 2 pp 2) what
tensor parallelism adds to a block beyond that. Its search then ranks the layouts. Rows are {layout, predicted_s, measured_s
(median of the steps after two)}; ``regret`` is how much longer the planner's best took than the best. --record adds what was
measured to FILE and takes what it has already. Needs root for the lab.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from dtprof.catalogue.hardware import gpu_of
from dtprof.ingest import open_run
from dtprof.model.cost.table import CostTable, from_calibration
from dtprof.plan.constants import Constants
from dtprof.plan.search import Wanted, search
from dtprof.plan.spec import Cluster, Model, Software
from dtprof.plan.time.passes import Passes
from dtprof.plan.time.step import Estimator
from dtprof.plan.time.wires import Wires
from dtprof_sample_jobs.lab.spec import parse_lab

RANKS, LAYERS, WIDTH, HEADS, SEQ, VOCABULARY, BATCH = 8, 8, 256, 8, 64, 64, 8
STEPS, WARM_UP = 5, 2
# the run that says what tensor parallelism adds, and how much shorter its blocks are
CALIBRATING, SHORTER = (2, 2, 2), 5
# forward and twice that in backward
PASSES = 3
# the planner's description of a host has a rate; the calibration takes its place
INSIDE_GB_S = 1.0
CALIBRATED = ("all_gather", "reduce_scatter", "all_reduce")
MODEL = Model("emulated", LAYERS, WIDTH, HEADS, 4 * WIDTH, VOCABULARY, HEADS, WIDTH // HEADS, biases=True)
SOFTWARE = Software("gloo", False, "flash-2", launch_bound=False)


class Calibrated(Wires):
    """Operations inside a host as they were measured there, of as many ranks as a host has; fewer ranks move less."""

    tables: ClassVar[dict[str, CostTable]] = {}
    measured = 0

    def _inside(self, op, size, ranks):
        table = self.tables.get(op, self.tables["all_gather"])
        return table.alone(size) * self._share(ranks) / 1e9

    def latency(self, op, ranks):
        if ranks.nodes > 1 or ranks.ranks < 2:
            return super().latency(op, ranks)
        return self.tables.get(op, self.tables["all_gather"]).alone(0) * self._share(ranks.ranks) / 1e9

    def _share(self, ranks):
        return ((ranks - 1) / ranks) / ((self.measured - 1) / self.measured)


class Emulated(Estimator):
    """Layers that take a stated time; all else is the planner's."""

    block_s = extra_s = 0.0

    def _layer(self, setting, layout, experts):
        real = super()._layer(setting, layout, experts)
        return Passes(products=PASSES * self.block_s / layout.tp, tp=real.tp + (self.extra_s if layout.tp > 1 else 0.0))


def calibration(args, folder):
    """Calibrates Calibrated by the run that is given, or by one of its own."""
    hosts = parse_lab(args.lab, RANKS).hosts
    run = args.calibration or folder / "collectives"
    if args.calibration is None:
        words = [
            sys.executable, "-m", "dtprof", "job", "collectives", "--ranks", str(RANKS), "--lab", args.lab, "--ops",
            ",".join(CALIBRATED), "--sizes", "16K,1M,16M", "--groups", "halves", "--repeats", "3", "--no-links",
            "--no-concurrent", "--capture", "none", "--out", str(run),
        ]  # fmt: skip
        subprocess.run(words, capture_output=True, timeout=240, check=True)
    Calibrated.measured = RANKS // hosts
    Calibrated.tables = {op: from_calibration(run, op, Calibrated.measured) for op in CALIBRATED}


def extra_s(args, known):
    """Seconds that tensor parallelism adds to a block and micro-batch beyond its collectives, by one run."""
    dp, tp, pp = CALIBRATING
    short = args.block_ms / SHORTER
    name = f"{layout_name(CALIBRATING)}, blocks of {short:g} ms"
    if name not in known:
        known[name] = measured(CALIBRATING, args, short)
    beyond = known[name] - ranked(args.lab, short, tp)[CALIBRATING]
    return max(beyond, 0.0) / (BATCH // dp * LAYERS // pp)


def layout_name(layout):
    """``dp 4 tp 1 pp 2``"""
    return "dp {} tp {} pp {}".format(*layout)


def ranked(lab, block_ms, most_tp, extra=0.0):
    """(dp, tp, pp) -> predicted seconds of a step, by the planner's search."""
    spec = parse_lab(lab, RANKS)
    hosts = spec.hosts
    rate = spec.rates[0] / 8e9
    gpu = gpu_of("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    cluster = Cluster(gpu, RANKS, RANKS // hosts, 80 * 10**9, INSIDE_GB_S, rate)
    wanted = Wanted(
        MODEL, cluster, SOFTWARE, SEQ, BATCH, tp=tuple(t for t in (1, 2, 4, 8) if t <= most_tp), cp=(1,), micro_batch=(1,),
        zero=(1,), recompute=("none",), schedule=("1f1b",), precision=("fp32",), keep=100,
    )  # fmt: skip

    def clock(cluster):
        made = Emulated(MODEL, cluster, SOFTWARE, Constants())
        made.block_s, made.extra_s, made.wires = block_ms / 1e3, extra, Calibrated(cluster, 1.0)
        return made

    found = [one for one in search(wanted, clock).ranked if one.layout.microbatches >= one.layout.pp]
    return {(one.layout.dp, one.layout.tp, one.layout.pp): one.seconds for one in found}


def measured(layout, args, block_ms):
    """Median seconds of the steps of a run."""
    dp, tp, pp = layout
    with tempfile.TemporaryDirectory(prefix="dtprof-layout-") as folder:
        out = Path(folder) / "run"
        words = [
            sys.executable, "-m", "dtprof", "job", "hybrid", "--ranks", str(RANKS), "--dp", str(dp), "--tp", str(tp),
            "--pp", str(pp), "--microbatches", str(BATCH // dp), "--batch", "1", "--layers", str(LAYERS), "--dim", str(WIDTH),
            "--heads", str(HEADS), "--seq", str(SEQ), "--vocabulary", str(VOCABULARY), "--block-ms", str(block_ms),
            "--steps", str(STEPS), "--capture", "none", "--lab", args.lab, "--out", str(out),
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"dp {dp} tp {tp} pp {pp} ended with {done.returncode}")
        run = open_run(out)
        steps = [run.table("steps", part.ordinal)["host_dur"][WARM_UP:].tolist() for part in run.parts]
        return statistics.median(statistics.mean(ranks) for ranks in zip(*steps, strict=True)) / 1e9


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lab", default="hosts=2,rate=100mbit,rtt=1ms")
    parser.add_argument("--block-ms", type=float, default=200.0)
    parser.add_argument("--most-tp", type=int, default=2)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    known = json.loads(args.record.read_text()) if args.record and args.record.exists() else {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="dtprof-layout-") as folder:
        calibration(args, Path(folder))
    extra = extra_s(args, known) if args.most_tp > 1 else 0.0
    for layout, predicted in ranked(args.lab, args.block_ms, args.most_tp, extra).items():
        name = layout_name(layout)
        if name not in known:
            known[name] = measured(layout, args, args.block_ms)
            if args.record:
                args.record.write_text(json.dumps(known, indent=1) + "\n")
        rows.append({"layout": name, "predicted_s": predicted, "measured_s": known[name]})
    best = min(row["measured_s"] for row in rows)
    result = {"lab": args.lab, "block_ms": args.block_ms, "rows": rows, "regret": rows[0]["measured_s"] / best - 1}
    if args.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return 0
    sys.stdout.write(f"{'layout':18}{'predicted s':>13}{'measured s':>12}\n")
    for row in rows:
        sys.stdout.write(f"{row['layout']:18}{row['predicted_s']:13.2f}{row['measured_s']:12.2f}\n")
    sys.stdout.write(f"the planner's best took {result['regret']:.1%} longer than the best of {len(rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
