"""What restarts cost: steps that a later attempt repeats are of kind ``lost``, the time between is a step of kind ``restart``.

A job that resumes tells its first step (``dtprof.profile(first_step=…)``): the steps of earlier attempts from there on were for
nothing. Where an attempt begins at step 0 nobody can tell whether it resumed, and no step is called lost. The restart of a part
goes from the last end of a step in the attempt before, on its own host where there was one, to the begin of its first step: the
part of a step that was cut short, noticing, starting, meeting, loading. Its number is that of the step before the first one.
"""

from __future__ import annotations

from typing import Any

from dtprof.run import Part
from dtprof.schema import MISSING
from dtprof.table import Table

Held = dict[int, dict[str, Table]]


def mark_attempts(parts: list[Part], held: Held) -> None:
    """Change the tables ``steps`` of a run with several attempts."""
    attempts = sorted({part.attempt for part in parts})
    if len(attempts) < 2:
        return
    stepping = [part for part in parts if len(held[part.ordinal].get("steps", Table.empty("steps")))]
    found = {part.ordinal: _known(held[part.ordinal]["steps"]) for part in stepping}
    restarts = {part.ordinal: _restart(part, stepping, found) for part in stepping}
    for part in stepping:
        firsts = [_first(p, found) for p in stepping if p.attempt > part.attempt]
        resumed = min(firsts, default=0)
        rows = found[part.ordinal]
        for row in rows:
            if 0 < resumed <= row["step"]:
                row["kind"] = "lost"
        held[part.ordinal]["steps"] = Table.from_rows("steps", [*restarts[part.ordinal], *rows])


def _known(table: Table) -> list[dict[str, Any]]:
    return [table.row(i) for i in range(len(table))]


def _first(part: Part, found: dict[int, list[dict[str, Any]]]) -> int:
    """The first step of a part, as it said or as it is seen."""
    said = part.extra.get("first_step")
    return said if isinstance(said, int) else int(found[part.ordinal][0]["step"])


def _restart(part: Part, parts: list[Part], found: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The row of a part that was started again; none for others, and where no time can be told."""
    before = max((p.attempt for p in parts if p.attempt < part.attempt), default=None)
    if before is None or part.window:
        return []
    theirs = [p for p in parts if p.attempt == before]
    near = [p for p in theirs if p.host == part.host] or theirs
    ends = [row["host_ts"] + row["host_dur"] for p in near for row in found[p.ordinal] if MISSING not in _span(row)]
    begin = found[part.ordinal][0]["host_ts"]
    if not ends or begin in (None, MISSING) or begin < max(ends):
        return []
    number = _first(part, found) - 1
    return [
        {
            "step": number, "host_ts": max(ends), "host_dur": begin - max(ends), "complete": False, "kind": "restart",
            "marked": "inferred", "captured": False,
        }
    ]  # fmt: skip


def _span(row: dict[str, Any]) -> tuple[int, int]:
    return tuple(MISSING if row[key] is None else row[key] for key in ("host_ts", "host_dur"))  # type: ignore[return-value]
