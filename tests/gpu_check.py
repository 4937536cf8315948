"""Run every sample job on this machine's GPUs, check what each recorded, and say what was exercised and what was not.

    gpu_check.py [--device cuda|cpu] [--out FOLDER]

``make gpu-check`` calls it. With one GPU every job has one rank on NCCL; with more it has two. ``--device cpu`` is the same at
a small size on gloo, so that what is run, checked and said can be tested without a GPU. Exit code 1 where a job fails, its run
does not open, a collector failed, or a tag or a measurement that must be there is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import dtprof
from dtprof.errors import DtprofError
from dtprof.schema import TABLES

MODEL = {
    "cuda": "--steps 20 --layers 24 --dim 1024 --heads 16 --seq 1024 --batch 8 --vocabulary 32768 --precision bf16",
    "cpu": "--steps 16 --layers 4 --dim 32 --heads 2 --seq 16 --batch 2 --vocabulary 64",
}
SIZES = {"cuda": "", "cpu": "--sizes 4K,64K --repeats 3"}
PHASES = {"data", "forward", "backward", "optimizer"}
ELSEWHERE = ("several hosts", "Nsight Systems", "CUDA graphs", "ROCm")
ONE_RANK = (
    "ddp, fsdp: communication between devices, its overlap and waits, parameters divided among ranks, hsdp",
    "pipeline: gpipe, 1f1b, messages between ranks",
    "moe, parameter_server, elastic: tokens between ranks, staleness, a killed rank",
    "tensor_parallel: --async-tp, messages between ranks",
    "context_parallel: --method torch, ulysses, messages between ranks",
    "hybrid: FSDP2 over dp, stages over pp, messages between ranks",
    "collectives: send and receive, links, groups of some of the ranks",
)


@dataclass(frozen=True)
class Job:
    """A job to run, and the columns of its events that must hold tags; RANKS in its words is their number."""

    name: str
    words: str
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.words}".strip()

    def command(self, device: str, ranks: int, out: Path) -> list[str]:
        """The words that run it."""
        size = SIZES[device] if self.name == "collectives" else MODEL[device]
        started = [sys.executable, "-m", "dtprof", "job", self.name, "--ranks", str(ranks)]
        return [*started, *size.split(), *self.words.replace("RANKS", str(ranks)).split(), "--out", str(out)]

    def impossible(self, device: str, ranks: int) -> bool:
        """Can it not be run here?"""
        if "fp8" in self.words and importlib.util.find_spec("torchao") is None:
            return True
        if device == "cpu":
            return any(word in self.words for word in ("--data-parallel", "fp8", " cpu"))
        return "--data-parallel" in self.words and ranks > 1


LAYERS, PIPELINE = ("phase", "layer"), ("phase", "layer", "microbatch", "stage")
JOBS = (
    Job("ddp", "--mark-buckets --accumulate 2 --clip 1", ("phase", "layer", "microbatch", "bucket")),
    Job("ddp", "--data-parallel", LAYERS),
    Job("ddp", "--precision fp16 --clip 1", LAYERS),
    Job("ddp", "--precision fp8", LAYERS),
    Job("ddp", "--offload-activations cpu --offload-states cpu --offload-parameters cpu", LAYERS),
    Job("fsdp", "--strategy zero3 --backward-prefetch 1", LAYERS),
    Job("fsdp", "--strategy zero2 --checkpointing full", LAYERS),
    Job("fsdp", "--strategy zero1", LAYERS),
    Job("pipeline", "--schedule interleaved", PIPELINE),
    Job("pipeline", "--schedule zbv", PIPELINE),
    Job("tensor_parallel", "--sequence-parallel --loss-parallel", LAYERS),
    Job("context_parallel", "", LAYERS),
    Job("hybrid", "--dp 1 --pp 1 --tp RANKS", PIPELINE),
    Job("moe", "--capacity-factor 1.25", ("phase", "layer", "expert")),
    Job("parameter_server", "", LAYERS),
    Job("elastic", "--save-mode async", LAYERS),
    Job("collectives", "", ("layer", "microbatch")),
)


def values(events, column):
    """What a tag column of events holds, missing values left out."""
    if TABLES["events"].column(column).kind in ("str", "enum"):
        return {text for text in events.text(column) if text is not None}
    return set(events[column][events[column] >= 0].tolist())


def wrong(job, out, device, ranks):
    """What is wrong with the run of a job, in words."""
    run = dtprof.open_run(out)
    if sorted(part.rank for part in run.parts) != list(range(ranks)):
        yield f"it has {len(run.parts)} parts, not one for each of {ranks} ranks"
    for part in run.parts:
        events, who = run.table("events", part.ordinal), f"rank {part.rank}: "
        for collector in part.extra.get("collectors", []):
            if collector["state"] == "off":
                yield f"{who}{collector['name']} is off: {collector.get('failure')}"
        yield from (f"{who}no event has a tag {column}" for column in ("step", *job.tags) if not values(events, column))
        if "phase" in job.tags and (gone := PHASES - values(events, "phase")):
            yield f"{who}no event is of phase {', '.join(sorted(gone))}"
        if device == "cuda" and job.name != "collectives" and not values(events.take(events.is_("kind", "kernel")), "layer"):
            yield f"{who}no kernel has a tag layer"
    if job.name == "collectives":
        rows = [json.loads(line) for line in (out / "calibration.jsonl").read_text().splitlines()]
        if {row["backend"] for row in rows} != {"nccl" if device == "cuda" else "gloo"}:
            yield "calibration.jsonl holds no measurement of this backend"


def exercised(report):
    """One line per path, from what a report holds: what, and whether it was exercised."""
    ranks = report["ranks"]
    yield "kernels recorded", all(rank["device"]["compute_ns"] > 0 for rank in ranks)
    yield f"device steps on {len(ranks)} ranks", all(any(step["clock"] == "device" for step in rank["steps"]) for rank in ranks)
    yield "NCCL kernels recognised", any(rank["device"]["comm_kernels"] for rank in ranks)
    waits = [c for c in report["collectives"] if c["transfer_ns"] is not None]
    yield "collectives matched across ranks, wait and transfer", len(ranks) > 1 and bool(waits)
    yield "own cost measured", report["own_cost"] is not None


def say(done, what):
    """One line of the outcome."""
    print(f"{done:>14}  {what}", flush=True)


def check(job, device, ranks, out):
    """Run a job and check its run; whether all was well."""
    shutil.rmtree(out, ignore_errors=True)
    code = subprocess.run(job.command(device, ranks, out)).returncode
    if code:
        say("FAILED", f"{job}: exit code {code}")
        return False
    try:
        found = list(wrong(job, out, device, ranks))
    except (DtprofError, OSError, ValueError) as error:
        found = [str(error)]
    say("FAILED" if found else "exercised", f"{job}, {ranks} rank{'s' * (ranks > 1)}{': ' * bool(found)}{'; '.join(found)}")
    return not found


def main(words=None):
    """Run all jobs; exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=tuple(MODEL), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="folder of the runs (runs/gpu-check)")
    args = parser.parse_args(words)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: no CUDA device; nothing was exercised", file=sys.stderr)
        return 1
    if args.device == "cpu" and torch.cuda.is_available():
        print("gpu-check: jobs take the GPUs that there are; hide them with CUDA_VISIBLE_DEVICES=", file=sys.stderr)
        return 1
    ranks = min(torch.cuda.device_count(), 2) if args.device == "cuda" else 1
    possible = [(number, job) for number, job in enumerate(JOBS) if not job.impossible(args.device, ranks)]
    well = [check(job, args.device, ranks, args.out / str(number)) for number, job in possible]
    for job in JOBS:
        if job.impossible(args.device, ranks):
            say("NOT exercised", job)
    if well[0]:
        words = [sys.executable, "-m", "dtprof", "report", str(args.out / "0"), "--json"]
        for what, done in exercised(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)):
            say("exercised" if done else "NOT exercised", what)
    for what in (*(ONE_RANK if ranks == 1 else ()), *ELSEWHERE):
        say("NOT exercised", what)
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
