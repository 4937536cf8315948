"""The order in which a rank does its passes, by schedule.

GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019 (PipeDream-flush). Interleaved: Narayanan et al. 2021, section 2.2. Zero
bubble: Qi et al. 2024, the backward pass parted into that for the input and that for the weights, the latter delayed.
Rounds of interleaved schedules are torch.distributed.pipelining's: as many micro-batches as divide evenly over the rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from dtprof.analyse.pipeline import Kind


class Action(NamedTuple):
    """One pass: F forward, B whole backward, I backward for the input, W backward for the weights."""

    kind: Kind
    stage: int
    microbatch: int


Order = dict[int, list[Action]]


def order(schedule: str, ranks: int, microbatches: int, per_rank: int = 1) -> Order:
    """Rank -> its actions; stage s lies on rank s modulo ``ranks``. ValueError says why there is no such schedule."""
    if ranks < 2:
        raise ValueError("one rank is no pipeline")
    if schedule in ("gpipe", "1f1b"):
        if per_rank != 1:
            raise ValueError(f"{schedule} has one stage per rank")
        if schedule == "1f1b" and microbatches < ranks:
            raise ValueError(f"1f1b needs a micro-batch for each of {ranks} stages")
        return {rank: _one_stage(schedule, rank, ranks, microbatches) for rank in range(ranks)}
    if schedule not in ("interleaved", "zero-bubble"):
        raise ValueError(f"{schedule} is not modelled")
    rounds = max(microbatches // ranks, 1)
    if microbatches % rounds:
        raise ValueError(f"{microbatches} micro-batches cannot be parted into {rounds} rounds")
    parted = schedule == "zero-bubble"
    return {rank: _looped(rank, ranks, microbatches, per_rank, microbatches // rounds, parted) for rank in range(ranks)}


def _one_stage(schedule: str, rank: int, ranks: int, count: int) -> list[Action]:
    ahead = count if schedule == "gpipe" else min(ranks - rank, count)
    forward = [Action("F", rank, m) for m in range(count)]
    backward = [Action("B", rank, m) for m in range(count)]
    out = forward[:ahead]
    for done in range(count):
        out.append(backward[done])
        out += forward[ahead + done : ahead + done + 1]
    return out


def _looped(rank: int, ranks: int, count: int, per_rank: int, in_round: int, parted: bool) -> list[Action]:
    """Interleaved 1F1B over the stages of a rank; ``parted``: with the backward pass in two, the weights' part later."""
    total = count * per_rank
    warm = min((per_rank - 1) * in_round + (1 if parted else 2) * (ranks - 1 - rank), total)
    later = rank if parted else 0
    forward = _numbered(rank, ranks, total, per_rank, in_round, down=False)
    backward = _numbered(rank, ranks, total, per_rank, in_round, down=True)
    out = [Action("F", *place) for place in forward[:warm]]
    weights = 0
    for done in range(total):
        if warm + done < total:
            out.append(Action("F", *forward[warm + done]))
        out.append(Action("I" if parted else "B", *backward[done]))
        if parted and done >= later:
            out.append(Action("W", *backward[weights]))
            weights += 1
    return out + ([Action("W", *place) for place in backward[weights:]] if parted else [])


def _numbered(rank: int, ranks: int, total: int, per_rank: int, in_round: int, *, down: bool) -> list[tuple[int, int]]:
    """(stage, micro-batch) of each pass of one direction: a round of micro-batches on one stage, then on the next."""
    seen: dict[int, int] = {}
    out = []
    for number in range(total):
        local = (number // in_round) % per_rank
        stage = (per_rank - 1 - local if down else local) * ranks + rank
        out.append((stage, seen.get(stage, 0)))
        seen[stage] = seen.get(stage, 0) + 1
    return out
