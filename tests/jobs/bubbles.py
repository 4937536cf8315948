"""Bubbles of a pipeline, from the tags of its ranges, and what theory says of them.

A bubble is time in which a rank waits for another one. Between two passes that follow each other at once a rank still needs
some time of its own (to send, to pick the next action, to record): most gaps are that, and their median is taken off every gap.
Gaps and passes are taken one by one as medians over the steps, whose order is always the same: what else the machine does hits
one here and one there.
"""

import itertools
from dataclasses import dataclass

import numpy as np

KINDS = {"forward": "F", "backward": "B", "backward input": "I", "backward weight": "W"}


@dataclass(frozen=True)
class Pass:
    """One pass of a stage on a micro-batch: times in ns."""

    kind: str
    stage: int
    microbatch: int
    start: int
    end: int


def passes_of(run, step):
    """Rank -> its passes of a step, in the order of time."""
    found = {}
    for part in run.parts:
        events = run.table("events", part.ordinal)
        rows = [n for n in np.flatnonzero(events["step"] == step) if (events.text("name")[n] or "").partition("#")[0] in KINDS]
        found[part.rank] = [
            Pass(
                KINDS[events.text("name")[n].partition("#")[0]], int(events["stage"][n]), int(events["microbatch"][n]),
                int(events["ts"][n]), int(events["ts"][n] + events["dur"][n]),
            )
            for n in rows
        ]  # fmt: skip
    return found


def bubble_share(steps):
    """Part of the ranks' time, from the first start to the last end of all, that is waiting; ``steps`` as of ``passes_of``."""
    waiting = busy = 0.0
    for rank in steps[0]:
        rows = []
        for passes in steps:
            first = min(p.start for mine in passes.values() for p in mine)
            last = max(p.end for mine in passes.values() for p in mine)
            mine = passes[rank]
            gaps = [b.start - a.end for a, b in itertools.pairwise(mine)]
            rows.append([mine[0].start - first, last - mine[-1].end, *gaps, *(p.end - p.start for p in mine)])
        usual = np.median(rows, axis=0)
        gaps, passes = usual[2 : 2 + len(gaps)], usual[2 + len(gaps) :]
        own = np.median(gaps)
        waiting += float(usual[:2].sum() + np.maximum(gaps - own, 0).sum())
        busy += float(passes.sum())
    return waiting / (waiting + busy)


def usual_ns(steps):
    """(kind, stage) -> median time of such a pass, ns."""
    found = {}
    for passes in steps:
        for p in itertools.chain(*passes.values()):
            found.setdefault((p.kind, p.stage), []).append(p.end - p.start)
    return {key: float(np.median(times)) for key, times in found.items()}


def simulated_ns(passes, durations, stages):
    """Mean waiting per rank of a schedule in which every pass takes its stated time (kind, stage -> ns) and sending takes none.

    A pass begins when the one before it on its rank has ended, and what it needs is there: of another stage the activations
    (forward), or the gradient (backward), and of its own stage the forward pass.
    """
    todo = {rank: list(mine) for rank, mine in passes.items()}
    free, ended, idle = dict.fromkeys(todo, 0), {}, dict.fromkeys(todo, 0)
    while any(todo.values()):
        before = sum(map(len, todo.values()))
        for rank, mine in todo.items():
            while mine and (ready := _ready(mine[0], ended, stages)) is not None:
                p = mine.pop(0)
                start = max(free[rank], ready)
                idle[rank] += start - free[rank]
                free[rank] = ended[p.kind, p.stage, p.microbatch] = start + durations[p.kind, p.stage]
        assert sum(map(len, todo.values())) < before, "the order of the passes deadlocks"
    end = max(free.values())
    return sum(idle[rank] + end - free[rank] for rank in free) / len(free)


def _ready(p, ended, stages):
    """When the inputs of a pass are there, or None."""
    needs = []
    if p.kind == "F" and p.stage > 0:
        needs.append(("F", p.stage - 1))
    if p.kind in "BI":
        needs.append(("F", p.stage))
        if p.stage < stages - 1:
            kind = "B" if ("B", p.stage + 1, p.microbatch) in ended else "I"
            needs.append((kind, p.stage + 1))
    if p.kind == "W":
        needs.append(("I", p.stage))
    times = [ended.get((kind, stage, p.microbatch)) for kind, stage in needs]
    return None if None in times else max(times, default=0)
