"""PowerSGD as DDP's hook does it on gloo: one bucket, three reductions in turn, and the work around them.

T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019;
torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py. A gradient of n x m travels as n r + m r numbers where that is
less than half of n m; all others travel whole, first. Several buckets abort on gloo, so all gradients lie in one, and
nothing of it is hidden behind the backward pass. How the losses change is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtprof.edits import Edit
from dtprof.model.ddp.observe import Seen
from dtprof.model.ddp.predict import DdpModel
from dtprof.model.outcome import Outcome, withheld
from dtprof.numbers import percent, size, time
from dtprof.run import Run

KEY = "comm.powersgd_rank"
MODEL = "PowerSGD on gloo"
# the hook's min_compression_rate
_LEAST_RATE = 2
# what the hook does beside sending, least, middle and most: as many copies of all bytes as its passes over memory are worth;
# FLOP/s of its products; ns of its small operations for each matrix
_COPIES = (3.0, 5.5, 9.0)
_FLOPS = (60e9, 20e9, 5e9)
_PER_MATRIX_NS = (0.1e6, 0.25e6, 0.6e6)
_SIGMAS = 1.96


@dataclass(frozen=True)
class Sent:
    """Bytes of the three reductions; ``matrices`` that are compressed, ``elements`` in them."""

    whole: int
    p: int
    q: int
    matrices: int
    elements: int


def sent(sizes: Sequence[int], shapes: Sequence[tuple[int, int]], rank: int) -> Sent:
    """What PowerSGD of ``rank`` sends of gradients of ``sizes`` bytes and (rows, columns)."""
    whole = p = q = matrices = elements = 0
    for held, (rows, columns) in zip(sizes, shapes, strict=True):
        count = rows * columns
        each = held // max(count, 1)
        r = min(rows, columns, rank)
        if (rows + columns) * r * _LEAST_RATE < count:
            p, q = p + rows * r * each, q + columns * r * each
            matrices, elements = matrices + 1, elements + count
        else:
            whole += held
    return Sent(whole, p, q, matrices, elements)


def predict_powersgd(run: Run, seen: Seen, model: DdpModel, edits: Sequence[Edit]) -> Outcome:
    """The step with PowerSGD; the range of what its work costs is in the interval."""
    if len(edits) > 1:
        return withheld(edits, (f"{KEY} is predicted alone",), model.replay_error, MODEL)
    shapes = _shapes(run, seen)
    if shapes is None:
        reason = "the shapes of the parameters are not in the run, which an older dtprof recorded: record it again"
        return withheld(edits, (reason,), model.replay_error, MODEL)
    rank = int(edits[0].value)  # type: ignore[arg-type]
    bytes_of = sent(seen.sizes, shapes, rank)
    if bytes_of.matrices == 0:
        return withheld(edits, (f"no gradient is a matrix that rank {rank} makes smaller",), model.replay_error, MODEL)
    changes = np.array([
        [_length(model, step, bytes_of, place, rank) - model.base[step].length for step in model.works] for place in range(3)
    ])  # fmt: skip
    least, middle, most = np.median(changes, axis=1).tolist()
    spread = model.cost.spread * _transfers(model, bytes_of)
    noise = float(np.hypot(_SIGMAS * np.std(changes[1]) / changes.shape[1] ** 0.5, spread))
    value = seen.typical_ns + middle
    off = model.replay_error * value
    total = sum(seen.sizes)
    travels = bytes_of.whole + bytes_of.p + bytes_of.q
    work = [time(_work_ns(model, bytes_of, place, rank)) for place in (0, 2)]
    notes = (
        f"{size(travels)} travel instead of {size(total)} ({percent(travels / total)}), in one bucket after the backward pass: "
        "several abort on gloo",
        f"what the hook itself computes is not measured: {work[0]} to {work[1]} per step",
        "the losses will differ, which no prediction of time shows",
        f"costs of communication from {model.cost.source}",
    )
    return Outcome(
        edits=tuple(edits), model=MODEL, measured_ns=seen.typical_ns, predicted_ns=value,
        low_ns=seen.typical_ns + least - noise - off, high_ns=seen.typical_ns + most + noise + off,
        replay_error=model.replay_error, unexplained=None, withheld=(), notes=notes,
    )  # fmt: skip


def _shapes(run: Run, seen: Seen) -> list[tuple[int, int]] | None:
    part = next(p for p in run.parts if len(run.table("grads", p.ordinal)))
    grads = run.table("grads", part.ordinal)
    known = dict(zip(grads.text("parameter"), zip(grads["rows"].tolist(), grads["columns"].tolist(), strict=True), strict=True))
    found = [known[name] for name in seen.names]
    return found if all(rows > 0 and columns > 0 for rows, columns in found) else None


def _transfers(model: DdpModel, bytes_of: Sent) -> float:
    """ns of the three reductions, one after the other."""
    return sum(model.cost.alone(held) + model.extra for held in (bytes_of.whole, bytes_of.p, bytes_of.q))


def _work_ns(model: DdpModel, bytes_of: Sent, place: int, rank: int) -> float:
    """ns that the hook computes on the rank that copies slowest."""
    copy = float(np.median([max(w.copy for w in works) for works in model.works.values()]))
    products = 6 * bytes_of.elements * rank / _FLOPS[place] * 1e9
    return _COPIES[place] * copy * sum(model.seen.sizes) + products + bytes_of.matrices * _PER_MATRIX_NS[place]


def _length(model: DdpModel, step: int, bytes_of: Sent, place: int, rank: int) -> float:
    """One captured step, ns: all gradients ready on all ranks, the hook's work and its reductions, copies back, the rest."""
    works, sizes = model.works[step], model.seen.sizes
    begin = max(float(w.ready.max()) + w.copy * sizes[int(np.argmax(w.ready))] + w.per_op for w in works)
    done = begin + _work_ns(model, bytes_of, place, rank) + _transfers(model, bytes_of)
    return max(done + w.copy * sum(sizes) + w.tail for w in works)
