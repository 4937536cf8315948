"""What the end of a step leaves behind: noted at once, made a line of steps.jsonl when lines are written."""

from __future__ import annotations

from typing import Any, NamedTuple

from dtprof.epoch import OFFSET_NS
from dtprof.session.phases import PhaseClock, Taken


class Ended(NamedTuple):
    """A step that has ended; times in ns, ``began`` by the monotonic clock. ``given``: tokens, samples, loss of the job."""

    step: int
    began: int
    duration: int
    captured: bool
    kind: str
    own_ns: int
    input_ns: int | None
    phases: Taken
    given: dict[str, float]


def line(ended: Ended, clock: PhaseClock) -> dict[str, Any]:
    """The line of a step; what is not known is left out."""
    row: dict[str, Any] = {
        "step": ended.step,
        "host_ts": ended.began + OFFSET_NS,
        "host_dur": ended.duration,
        "captured": ended.captured,
        "kind": ended.kind,
        "own_ns": ended.own_ns,
    }
    if ended.input_ns is not None:
        row["input_ns"] = ended.input_ns
    if phases := clock.spent(ended.phases):
        row["phases"] = phases
    return row | ended.given
