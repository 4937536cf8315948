"""dtprof gates itself: what reading, analysing and measuring cost, as multiples, against benchmarks/baseline.json.

    python benchmarks/check.py [--json] [--record] [--repeat 5] [--margin 20%]

Multiples and not seconds, so that they hold on any machine: each is a quotient of two CPU
times of one process, which other load hardly moves.

    ingest.scan_x_gunzip      CPU of scanning a trace over that of decompressing it alone
    ingest.open_x_gunzip      CPU of opening it as a run, tables included
    analysis.study_x_open     CPU of all analyses and rules over that of opening
    overhead.step_x_plain     CPU of a step in a session (nothing captured) over that of the same step without one
    overhead.capture_x_bare   CPU of a short captured loop over that of the same under torch.profiler alone

Exit code 0 passed, 1 worse, 2 inconclusive. --record writes the baseline anew.
"""

import argparse
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import dtprof
from dtprof.analyse import ANALYSES, study_of
from dtprof.check import baseline as files
from dtprof.check.baseline import Baseline, Recorded
from dtprof.check.fingerprint import Fingerprint
from dtprof.check.judge import Margins, judge
from dtprof.check.metrics import Metric
from dtprof.cli.check import lines
from dtprof.cli.printing import print_json, print_lines
from dtprof.cli.shares import share
from dtprof.ingest import open_run
from dtprof.ingest.kineto import scan

HERE = Path(__file__).resolve().parent
FILE = HERE / "baseline.json"
STEPS, KERNELS = 12, 200
BLOCKS, CAPTURED = 10, 10


def span(category, name, start, length, args):
    """One complete event on the host."""
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 1, "ts": start, "dur": length, "args": args}


def trace(path):
    """A trace of one rank: steps of kernels with their launches and operators, an all-reduce at the end of each."""
    events = []
    for step in range(STEPS):
        start = 1_000_000 + step * (KERNELS + 60) * 12
        length = (KERNELS + 40) * 12
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": 9,
                "tid": 1,
                "ts": start,
                "dur": length,
            }
        )
        for k in range(KERNELS):
            at, number = start + 12 * k, step * KERNELS + k
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if k == KERNELS - 1 else f"ampere_sgemm_{k % 50}"
            launch = {"correlation": number}
            on_device = {**launch, "device": 0, "stream": 7, "context": 1}
            events.append(span("cpu_op", f"aten::op{k % 80}", at, 8.5, {"External id": number}))
            events.append(span("cuda_runtime", "cudaLaunchKernel", at + 2.25, 4, launch))
            events.append({**span("kernel", name, at + 9.125, 11.5, on_device), "pid": 0, "tid": 7})
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}, "traceEvents": events}
    with gzip.open(path, "wt", compresslevel=4) as file:
        json.dump(document, file)


def cpu(work):
    """CPU seconds of one call, and what it returns."""
    begin = time.process_time()
    kept = work()
    return time.process_time() - begin, kept


def middle(work, times):
    """Median CPU seconds of several calls."""
    return statistics.median(cpu(work)[0] for _ in range(times))


def ingest(path):
    """Multiples of reading and analysing."""
    from dtprof.ingest.kineto.chunks import chunks
    from dtprof.ingest.kineto.collected import Notes

    engine = "c" if scan.has_c() else "python"
    unpacked = middle(lambda: sum(map(len, chunks(path, Notes()))), 25)
    scanned = middle(lambda: scan.scan_file(path, engine=engine), 9)
    opened = middle(lambda: _tables(open_run(str(path), cache=False)), 5)
    studied, _ = cpu(lambda: _study(open_run(str(path), cache=False)))
    return {
        "ingest.scan_x_gunzip": scanned / unpacked,
        "ingest.open_x_gunzip": opened / unpacked,
        "analysis.study_x_open": (studied - opened) / opened,
    }


def _tables(run):
    for part in run.parts:
        len(run.table("events", part.ordinal))
    return run


def _study(run):
    from dtprof.advise import findings

    study = study_of(run)
    for name in ANALYSES:
        study.result(name)
    return findings(study)


class Loop:
    """A training step of small operators, which feels every microsecond of the host."""

    def __init__(self):
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        layers = [m for _ in range(6) for m in (torch.nn.Linear(96, 96), torch.nn.GELU())]
        self.model, self.data = torch.nn.Sequential(*layers), torch.randn(64, 96)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self):
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def overhead(loop):
    """Multiples of measuring, in CPU time of all threads: uncaptured steps against plain ones, captured against bare."""
    plain, light = [], []
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder, dtprof.profile(folder, capture=None) as prof:

        def measured_step():
            loop.step()
            prof.step()

        for k in range(2 * BLOCKS):
            work, kept = ((loop.step, plain), (measured_step, light))[k % 2]
            kept.append(cpu(lambda work=work: [work() for _ in range(20)])[0])
    return {
        "overhead.step_x_plain": statistics.median(light) / statistics.median(plain),
        "overhead.capture_x_bare": captured(loop) / bare(loop),
    }


def captured(loop):
    """CPU of a captured step, writing the trace included."""
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:

        def work():
            with dtprof.profile(folder, capture=(2, 2 + CAPTURED)) as prof:
                for _ in range(CAPTURED + 3):
                    loop.step()
                    prof.step()

        return cpu(work)[0]


def bare(loop):
    """The same under torch.profiler alone, with the same options."""
    from torch.profiler import ProfilerActivity, profile, schedule

    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:

        def work():
            with profile(
                activities=[ProfilerActivity.CPU],
                record_shapes=True,
                schedule=schedule(wait=1, warmup=1, active=CAPTURED, repeat=1),
                on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace.json.gz"),
            ) as prof:
                for _ in range(CAPTURED + 3):
                    loop.step()
                    prof.step()

        return cpu(work)[0]


def measured(repeat):
    """A baseline of ``repeat`` repetitions in this process, after one that does not count."""
    values, loop = [], Loop()
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:
        path = Path(folder) / "rank0.json.gz"
        trace(path)
        for n in range(repeat + 1):
            print(f"repetition {n} of {repeat}", file=sys.stderr)
            found = {**ingest(path), **overhead(loop)}
            values += [found] if n else []
    metrics = {name: Metric(kind="ratio", values=[v[name] for v in values]) for name in values[0]}
    anywhere = Fingerprint(devices=["any"], world_size=None, hosts=1, backend=None)
    return Baseline(fingerprint=anywhere, runs=[Recorded(run=f"repetition {n + 1}") for n in range(repeat)], metrics=metrics)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--record", action="store_true", help="write the baseline anew")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--margin", type=share, default=0.2)
    args = parser.parse_args()
    now = measured(args.repeat)
    if args.record:
        files.write(str(FILE), files.merged(None, now, add=False))
        print(f"wrote {FILE}", file=sys.stderr)
        return 0
    (before,) = files.read(str(FILE)).baselines
    result = judge(before, now, margins=Margins(ratio=args.margin), title="dtprof against itself")
    if args.json:
        print_json(result.to_document())
    else:
        print_lines(lambda width: lines(result, width))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
