"""Which backward function belongs to which operator, by the sequence numbers that ``emit_nvtx`` writes into names.

Operators that create a backward function and the range in which autograd's engine runs it carry one number; of operators
nested in each other the innermost, which begins last, creates it (torch.autograd.profiler.emit_nvtx, "Forward-backward
correlation"). Numbers count per thread: those that several threads used before the backward pass are left alone.
"""

from __future__ import annotations

import numpy as np

from dtprof.ingest.kineto.events import Events
from dtprof.ingest.kineto.raw import Ints
from dtprof.ingest.kineto.spans import kind_code
from dtprof.ingest.nesting import inside
from dtprof.schema import MISSING

_ENGINE = "autograd::engine::evaluate_function: "


def links(events: Events) -> tuple[Ints, Ints]:
    """Events of the operators, and of their backward functions: as torch.profiler draws them, not the engine's ranges."""
    nothing = np.empty(0, np.int64)
    ops = np.flatnonzero((events.kind == kind_code("cpu_op")) & ~events.on_device)
    told = events.argument("Sequence number", ops)
    if told is None:
        return nothing, nothing
    engine = np.array([text.startswith(_ENGINE) for text in events.name.values] + [False], bool)
    ops, sequence = ops[told != MISSING], told[told != MISSING]
    backward = engine[events.name.codes[ops]]
    inner = ~backward & _within(events, ops[backward], ops)
    forward = ~(backward | inner)
    forward &= ~_on_several_threads(sequence, events.lane[ops], forward)
    # in this order the last operator before an engine's range is its own, and what follows it runs in it
    order = np.lexsort((events.ts[ops], sequence))
    ops, sequence, backward, inner, forward = (c[order] for c in (ops, sequence, backward, inner, forward))
    last = np.maximum.accumulate(np.where(forward, np.arange(len(ops)), -1))
    here = np.flatnonzero(backward & (last >= 0))
    here = here[sequence[last[here]] == sequence[here]]
    after = np.minimum(here + 1, len(ops) - 1)
    runs = inner[after] & (sequence[after] == sequence[here]) & (events.lane[ops[after]] == events.lane[ops[here]])
    return ops[last[here]], ops[np.where(runs, after, here)]


def _within(events: Events, outer: Ints, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of ``rows`` begin inside one of the ``outer`` events (in time order) of their thread."""
    found = np.zeros(len(rows), bool)
    for lane in np.unique(events.lane[outer]).tolist():
        holds = outer[events.lane[outer] == lane]
        mine = np.flatnonzero(events.lane[rows] == lane)
        ends = np.maximum.accumulate(events.ts[holds] + events.dur[holds])
        found[mine] = inside(events.ts[holds], ends, events.ts[rows[mine]]) >= 0
    return found


def _on_several_threads(sequence: Ints, lane: Ints, chosen: Ints) -> Ints:
    """Rows whose sequence number occurs on more than one thread among the ``chosen`` rows."""
    out = np.zeros(len(sequence), bool)
    rows = np.flatnonzero(chosen)
    if len(rows):
        numbers, places = np.unique(sequence[rows], return_inverse=True)
        low, high = np.full(len(numbers), np.iinfo(np.int64).max), np.full(len(numbers), -1)
        np.minimum.at(low, places, lane[rows])
        np.maximum.at(high, places, lane[rows])
        out[rows] = (low != high)[places]
    return out
