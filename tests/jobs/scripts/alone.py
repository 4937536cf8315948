"""One process without a process group: threads, forks, and profilers of the job's own.

usage: alone.py OUT SCENARIO…    each writes the run OUT/SCENARIO
"""

import atexit
import os
import sys
import threading
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

import dtprof

model = nn.Linear(32, 32)


def loop(prof, steps, at_step=None):
    for step in range(steps):
        with dtprof.annotate("forward"):
            model(torch.ones(4, 32)).sum().backward()
        if at_step:
            at_step(step)
        prof.step()


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def own(**kwargs):
    return profile(activities=[ProfilerActivity.CPU], **kwargs)


def operators(profiler):
    return sum(e.name.startswith("aten::") for e in profiler.events())


def all_in_a_thread(out):
    def body():
        with dtprof.profile(out, capture="2:4") as prof:
            loop(prof, 6)

    in_thread(body)


def loop_in_a_thread(out):
    with dtprof.profile(out, capture="2:4") as prof:
        in_thread(loop, prof, 6)


def loop_in_a_thread_from_the_start(out):
    with dtprof.profile(out, capture="0:2") as prof:
        in_thread(loop, prof, 4)


def left_open_in_a_thread(out):
    prof = dtprof.profile(out, capture="2:9")
    in_thread(lambda: (prof.start(), loop(prof, 4)))


def jobs_profiler_around(out):
    with own() as theirs, dtprof.profile(out, capture="2:4") as prof:
        loop(prof, 6)
    assert operators(theirs) > 20


def jobs_profiler_warming_up(out):
    theirs = own(schedule=schedule(wait=0, warmup=3, active=2, repeat=1))
    with theirs, dtprof.profile(out, capture="2:4") as prof:
        loop(prof, 6, lambda step: theirs.step())
    assert operators(theirs) > 5


def jobs_profiler_inside_the_window(out):
    theirs = own()

    def at_step(step):
        if step == 3:
            with theirs:
                model(torch.ones(4, 32))

    with dtprof.profile(out, capture="2:5") as prof:
        loop(prof, 6, at_step)
    assert operators(theirs) > 1


def jobs_profiler_inside_and_beyond_the_window(out):
    theirs = own()
    with dtprof.profile(out, capture="2:5") as prof:
        loop(prof, 6, lambda step: theirs.start() if step == 3 else None)
    theirs.stop()
    assert operators(theirs) > 5


def jobs_profiler_in_our_warm_up(out):
    theirs = own()

    def at_step(step):
        if step == 1:
            with theirs:
                model(torch.ones(4, 32))

    with dtprof.profile(out, capture="2:4") as prof:
        loop(prof, 6, at_step)
    assert operators(theirs) > 1


def jobs_profiler_afterwards(out):
    original = torch.autograd.profiler.profile._prepare_trace
    with dtprof.profile(out, capture="1:3") as prof:
        loop(prof, 4)
        with own() as theirs:
            loop(prof, 2)
    assert operators(theirs) > 5
    assert torch.autograd.profiler.profile._prepare_trace is original


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        dtprof.step()
        with dtprof.annotate("item"):
            return torch.full((32,), float(index))


def loader_workers(out):
    seen = []
    with dtprof.profile(out, capture="1:3") as prof:
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            model(batch).sum().backward()
            seen.append(batch[0, 0].item())
            prof.step()
    assert seen == [0, 4, 8, 12, 16, 20]


def forked_exit(out):
    with dtprof.profile(out, capture="1:3") as prof:
        loop(prof, 2)
        child = os.fork()
        if child == 0:
            atexit.register(print, "the job's own exit handler ran in the child")
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        loop(prof, 3)


def compiled(out):
    @torch.compile(backend="eager", fullgraph=True)
    def forward(x):
        with dtprof.annotate("inner", microbatch=1):
            return model(x).sum()

    with dtprof.profile(out, capture="2:4") as prof:
        for _ in range(6):
            forward(torch.ones(4, 32)).backward()
            prof.step()
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    for scenario in sys.argv[2:]:
        globals()[scenario](Path(sys.argv[1]) / scenario)
