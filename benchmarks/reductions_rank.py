"""One rank of benchmarks/reductions.py: two measured stretches, then every way to reduce gradients by turns.

    python reductions_rank.py MODEL OUT MICRO STEPS      in the environment of a rank

Writes the runs OUT/plain (one pass per step) and OUT/forgotten (MICRO passes, all of which reduce), then OUT/rank0.json:
seconds of every step of every way.
"""

import contextlib
import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from buckets_rank import Job
from by_turns import WARM, by_turns
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import dtprof
from dtprof_sample_jobs.ddp import bf16_all_reduce

PLAIN, CAPTURED = 14, 8
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": bf16_all_reduce}


class Way(Job):
    """A wrapped model whose steps have so many passes, all of them reducing or the last one, with a hook or without."""

    def __init__(self, model, micro=1, sync=False, hook=None):
        super().__init__(model, None)
        self.micro, self.sync = micro, sync
        if hook:
            self.model.register_comm_hook(dist.group.WORLD, HOOKS[hook])

    def step(self):
        for m in range(self.micro):
            with self.model.no_sync() if m < self.micro - 1 and not self.sync else contextlib.nullcontext():
                with dtprof.annotate("forward"):
                    loss = self.model(self.tokens)
                with dtprof.annotate("backward"):
                    loss.backward()
        with dtprof.annotate("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def profile(way, out):
    """A run as a user would record it."""
    first = WARM + PLAIN
    with dtprof.profile(out, capture=(first, first + CAPTURED)) as session:
        for _ in range(first + CAPTURED):
            way.step()
            session.step()


def measure(model, micro, steps):
    """Seconds of every step, all ways by turns in random order."""
    ways = {
        "plain": Way(model), "plain again": Way(model), "accumulate": Way(model, micro),
        "forgotten": Way(model, micro, sync=True), **{hook: Way(model, hook=hook) for hook in HOOKS},
    }  # fmt: skip
    return by_turns(ways, steps)


def main(model, out, micro, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    out, micro = Path(out), int(micro)
    profile(Way(model), out / "plain")
    gc.collect()
    profile(Way(model, micro, sync=True), out / "forgotten")
    gc.collect()
    dist.barrier()
    found = measure(model, micro, int(steps))
    if dist.get_rank() == 0:
        (out / "rank0.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
