"""Bubbles of a pipeline: what its schedule's own order of passes says they are, and what the tags of a run say.

A bubble is time in which a rank waits for what another one computes. Between two passes that follow each other at once a rank
still needs some milliseconds (to send, to receive, to pick the next action, to record). Bubbles are whole passes long, so that
a gap of less than a quarter of one is none; from the others the median gap is taken off. Gaps and passes are taken one by one
as medians over the steps, whose order is always the same: what else the machine does hits one here and one there.
"""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from dtprof.ranges import parse_range
from dtprof_sample_jobs import pipeline

# stages that sleep: 60 ms forward, 120 ms backward
EMULATION = """
width_bytes = 1024
[[layers]]
name = "stage"
repeat = {stages}
forward_ms = 60
backward_ms = 120
tensors = [1024]
"""
KINDS = {"forward": "F", "backward": "B", "backward input": "I", "backward weight": "W"}
ACTIONS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


@dataclass(frozen=True)
class Pass:
    """One pass of a stage on a micro-batch: times in ns."""

    key: tuple[str, int, int]  # F, B, I or W; stage; micro-batch
    start: int
    end: int


def passes_of(run, steps):
    """For each step: rank -> its passes, in the order of time."""
    found = {step: {part.rank: [] for part in run.parts} for step in steps}
    for part in run.parts:
        events = run.table("events", part.ordinal)
        rows = events.take(np.isin(events["step"], list(steps)) & events.is_("kind", "range"))
        columns = [rows[name].tolist() for name in ("step", "stage", "microbatch", "ts", "dur")]
        for text, step, stage, microbatch, ts, dur in zip(rows.text("name"), *columns, strict=True):
            if (name := parse_range(text)[0]) in KINDS:
                found[step][part.rank].append(Pass((KINDS[name], stage, microbatch), ts, ts + dur))
    return list(found.values())


def bubble_share(steps, shortest):
    """Part of the ranks' time, from the first start to the last end of all, that is waiting.

    ``steps`` as of ``passes_of``, ``shortest`` the least time of a pass in ns.
    """
    waiting = busy = 0.0
    for rank in steps[0]:
        rows = []
        for passes in steps:
            first = min(p.start for mine in passes.values() for p in mine)
            last = max(p.end for mine in passes.values() for p in mine)
            mine = passes[rank]
            gaps = [b.start - a.end for a, b in itertools.pairwise(mine)]
            rows.append([*gaps, mine[0].start - first, last - mine[-1].end, *(p.end - p.start for p in mine)])
        usual = np.median(rows, axis=0)
        gaps, passes = usual[: len(gaps) + 2], usual[len(gaps) + 2 :]
        own = np.median(gaps)
        waiting += float((gaps - own)[gaps > shortest / 4].sum())
        busy += float(passes.sum())
    return waiting / (waiting + busy)


def order_of(schedule, ranks, micro):
    """Rank -> its actions in torch's own order for a schedule: each a tuple of the keys of one pass, or of two done as one."""
    stages = pipeline.stages_of(schedule, ranks)
    mine = [
        SimpleNamespace(
            stage_index=n, is_first=n == 0, is_last=n == stages - 1, num_stages=stages, group_size=ranks, group_rank=0,
            submod=torch.nn.Identity(),
        )
        for n in pipeline.stages_on(schedule, 0, ranks)
    ]  # fmt: skip
    made = pipeline.SCHEDULES[schedule](mine[0] if schedule in pipeline.ONE_STAGE else mine, micro)
    found = {}
    for rank, actions in made.pipeline_order.items():
        parts = [action.sub_actions or (action,) for action in actions if action is not None]
        computing = [[a for a in action if a.computation_type.name in ACTIONS] for action in parts]
        found[rank] = [
            tuple((ACTIONS[a.computation_type.name], a.stage_index, a.microbatch_index) for a in action)
            for action in computing
            if action
        ]
    return found


def simulated_share(order, stages, forward, backward):
    """Bubble share of an order in which a stage's forward and backward take the stated times, and sending takes none.

    A pass begins when the one before it on its rank has ended, and what it needs is there: of another stage the activations
    (forward), or the gradient (backward), and of its own stage the forward pass. What an action gives is there when all of it
    has ended. A parted backward takes half of its time for the input and half for the weights, but on the first stage, whose
    input needs no gradient, all of it for the weights.
    """
    takes = {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2}
    first = {**takes, "I": 0, "W": backward}
    todo, free, ended = {rank: list(actions) for rank, actions in order.items()}, dict.fromkeys(order, 0), {}
    busy = 0
    while any(todo.values()):
        before = sum(map(len, todo.values()))
        for rank, actions in todo.items():
            while actions and None not in (ready := [_ready(key, ended, stages) for key in actions[0]]):
                action = actions.pop(0)
                for (kind, stage, _), there in zip(action, ready, strict=True):
                    lasts = takes[kind] if stage else first[kind]
                    free[rank] = max(free[rank], there) + lasts
                    busy += lasts
                ended |= dict.fromkeys(action, free[rank])
        assert sum(map(len, todo.values())) < before, "the order of the passes deadlocks"
    whole = max(free.values()) * len(free)
    return (whole - busy) / whole


def _ready(key, ended, stages):
    """When the inputs of a pass are there, or None."""
    kind, stage, microbatch = key
    needs = []
    if kind == "F" and stage > 0:
        needs.append(("F", stage - 1))
    if kind in "BI":
        needs.append(("F", stage))
        if stage < stages - 1:
            needs.append(("B" if ("B", stage + 1, microbatch) in ended else "I", stage + 1))
    if kind == "W":
        needs.append(("I", stage))
    times = [ended.get((kind, stage, microbatch)) for kind, stage in needs]
    return None if None in times else max(times, default=0)
