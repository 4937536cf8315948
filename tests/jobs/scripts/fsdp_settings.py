"""One rank: a measured stretch of an FSDP2 job, then several settings of it by turns, step by step.

    python fsdp_settings.py OUT EMULATION STEPS SETTING [SETTING …]      in the environment of a rank

A setting is the options of the job fsdp in one word, as "--strategy zero2 --async-gathers"; the first one is captured, as the
run OUT/run. Writes OUT/rank0.json: {setting: seconds of every step}.
"""

import gc
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dtprof
from dtprof_sample_jobs import fsdp
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.setup import make_model

WARM, PLAIN, CAPTURED = 4, 12, 8


class Job:
    """A sharded model, its data and its optimizer."""

    def __init__(self, me, emulation, words):
        args = fsdp.parser().parse_args(["--emulate", emulation, *words.split()])
        fsdp.check(args, me.size)
        torch.manual_seed(0)
        model = make_model(args, me.device)
        self.tokens = torch.randint(0, 256, (2, 17))
        self.marks = BackwardMarks(model.blocks.named_children())
        self.module = fsdp.shard(model, args, me, fsdp.mesh_of(args, me.size).device_mesh("cpu"))
        self.optimizer = fsdp.optimizer_of(self.module, args)

    def step(self):
        with dtprof.annotate("forward"):
            loss = self.module(self.tokens)
        with dtprof.annotate("backward"):
            loss.backward()
            self.marks.close()
        with dtprof.annotate("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def profile(job, out):
    """The first setting, measured as a user would."""
    first = WARM + PLAIN
    with dtprof.profile(out / "run", capture=(first, first + CAPTURED)) as session:
        for _ in range(first + CAPTURED + 4):
            job.step()
            session.step()


def by_turns(jobs, steps):
    """Seconds of every step, all settings by turns in random order."""
    for job in jobs.values():
        for _ in range(WARM):
            job.step()
    gc.collect()
    gc.disable()
    chance, found = random.Random(1), {words: [] for words in jobs}
    for _ in range(steps):
        order = list(jobs)
        chance.shuffle(order)
        for words in order:
            began = time.perf_counter()
            jobs[words].step()
            found[words].append(time.perf_counter() - began)
    return found


def main(out, emulation, steps, *settings):
    out = Path(out)
    torch.set_num_threads(1)
    with fsdp.world(0) as me:
        profile(Job(me, emulation, settings[0]), out)
        dist.barrier()
        found = by_turns({words: Job(me, emulation, words) for words in settings}, int(steps))
        if me.rank == 0:
            (out / "rank0.json").write_text(json.dumps(found))
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
