"""One rank of benchmarks/buckets.py: a measured stretch with DDP's default buckets, then all bucket sizes by turns.

    python buckets_rank.py MODEL OUT CAPS STEPS      in the environment of a rank

Writes the run OUT/run (default buckets, captured), then OUT/rank0.json: seconds of every step of every configuration, where
"default" and "default again" are two wrappers of one kind.
"""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from by_turns import WARM, by_turns
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof_sample_jobs.common.emulate import Emulated, emulation
from dtprof_sample_jobs.common.model import GPT

HERE = Path(__file__).parent
PLAIN, CAPTURED = 16, 12


class Job:
    """A wrapped model, its data and its optimizer."""

    def __init__(self, model, cap):
        torch.manual_seed(0)
        self.tokens = torch.randint(0, 512, (2, 65))
        inner = GPT(512, 12, 256, 4, 64) if model == "tfm12" else Emulated(emulation(path_of(model)), 512)
        self.model = DistributedDataParallel(inner, **({} if cap is None else {"bucket_cap_mb": cap}))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self):
        with dtprof.annotate("forward"):
            loss = self.model(self.tokens)
        with dtprof.annotate("backward"):
            loss.backward()
        with dtprof.annotate("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def path_of(model):
    """The emulation file of a model's name; names of the package stay."""
    path = HERE / "emulations" / f"{model}.toml"
    return str(path) if path.exists() else model


def profile(model, out):
    """The default buckets, measured as a user would."""
    first = WARM + PLAIN
    job = Job(model, None)
    with dtprof.profile(out / "run", capture=(first, first + CAPTURED)) as session:
        for _ in range(first + CAPTURED):
            job.step()
            session.step()


def measure(model, caps, steps):
    """Seconds of every step, all configurations by turns in random order."""
    jobs = {"default": Job(model, None), "default again": Job(model, None), **{str(cap): Job(model, cap) for cap in caps}}
    return by_turns(jobs, steps)


def main(model, out, caps, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out = Path(out)
    profile(model, out)
    gc.collect()
    dist.barrier()
    found = measure(model, [float(c) for c in caps.split(",")], int(steps))
    if dist.get_rank() == 0:
        (out / "rank0.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
