"""The other side of ``dtprof.session.windows``: from outside, ask the ranks of a live run for a capture of the same steps."""

from __future__ import annotations

import math
import os
import re
import socket
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dtprof.epoch import epoch_ns
from dtprof.errors import InputError
from dtprof.run import Part
from dtprof.session.folder import describe
from dtprof.session.windows import Request, append, new_id

LEAST_LEAD = 3
# lines of steps.jsonl wait for about a second before they are written
UNWRITTEN_NS = 2 * 10**9
ENDED = ("done", "partial", "missed", "refused")
_TAIL = 1 << 16


@dataclass(frozen=True)
class Live:
    """One process that is training now, and its pace; ``step`` is the one that should be under way."""

    path: Path
    part: Part
    step: int
    step_ns: int


@dataclass(frozen=True)
class Answer:
    """What one process has made of a request. ``state``: unseen, a state of ``Windows``, or gone (the process ended first).

    ``whole``: traced as asked, and the trace is written; ``settled``: nothing more will come.
    """

    rank: int | None
    part: str
    state: str
    reason: str
    file: str | None
    bytes: int | None
    settled: bool

    @property
    def whole(self) -> bool:
        """All steps are traced, and the file is there."""
        return self.state == "done" and self.bytes is not None


def live_parts(run: Path) -> list[Live]:
    """Processes of the newest attempt that are training, as far as their files and this machine tell, by ordinal.

    Raises InputError where the folder is no run.
    """
    folders = sorted(p for p in run.glob("part[0-9]*") if re.fullmatch(r"part\d{5,}", p.name))
    if not folders:
        raise InputError(
            f"{run}: no part folder, so no run of dtprof", "give the folder that the job's dtprof session writes to"
        )
    parts = [(path, part) for path in folders if (part := describe(path)) is not None and not _ended(part)]
    newest = max((part.attempt for _, part in parts), default=0)
    found = []
    for path, part in parts:
        pace = _pace(path / "steps.jsonl")
        if part.attempt == newest and pace is not None:
            found.append(Live(path, part, *pace))
    return found


def _ended(part: Part) -> bool:
    return part.extra.get("ended_ns") is not None or _gone(part)


def _gone(part: Part) -> bool:
    """Is the process no more? False where another host would have to tell."""
    if part.host != socket.gethostname() or part.pid is None:
        return False
    try:
        os.kill(part.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class _Line(msgspec.Struct):
    step: int
    host_ts: int
    host_dur: int
    own_ns: int = 0


def _pace(path: Path) -> tuple[int, int] | None:
    """(step under way, median duration of the last steps in ns) from the end of a steps.jsonl; None before there is a line."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL, 0))
            tail = file.read()
    except OSError:
        return None
    lines = []
    for text in tail[: tail.rfind(b"\n") + 1].split(b"\n")[-21:]:
        try:
            lines.append(msgspec.json.decode(text, type=_Line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    if not lines:
        return None
    last = lines[-1]
    took = max(int(statistics.median(line.host_dur + line.own_ns for line in lines)), 1)
    since = min(max(epoch_ns() - last.host_ts - last.host_dur, 0), UNWRITTEN_NS + 2 * took)
    return last.step + 1 + since // took, took


def ask(run: Path, live: list[Live], steps: int, lead_s: float, at: int | None = None) -> Request:
    """Append the request; its first step is ``at``, or so far ahead that ``lead_s`` seconds pass before it on every rank.

    Raises InputError where the folder cannot be written or ``at`` is over.
    """
    now = max(one.step for one in live)
    first = now + LEAST_LEAD + math.ceil(lead_s * 1e9 / min(one.step_ns for one in live))
    if at is not None:
        if at <= now:
            raise InputError(f"--at {at}: step {now} is under way", "leave --at out, or name a later step")
        first = at
    name, asked_ns = new_id(), epoch_ns()
    made: Request | None = None
    # nodes without a common store may not have agreed on one key
    for key in sorted({str(one.part.extra.get("run_key")) for one in live}):
        made = Request(
            run_key=key, attempt=live[0].part.attempt, id=name, first=first, end=first + steps, why="asked", asked_ns=asked_ns
        )
        try:
            append(run, made)
        except OSError as error:
            raise InputError(f"{run}: cannot be written ({error.strerror})", "ask as the user who runs the job") from error
    assert made is not None
    return made


def answers(live: list[Live], request: Request) -> list[Answer]:
    """What each process says of the request now."""
    return [_answer(one, request) for one in live]


def _answer(one: Live, request: Request) -> Answer:
    part = describe(one.path) or one.part
    told: dict[str, Any] = next((t for t in part.extra.get("captures") or [] if t.get("id") == request.id), {})
    ended = _ended(part)
    over = _gone(part)
    state = str(told.get("state", "unseen"))
    if ended and state not in ENDED:
        state = "gone"
    trace = _trace(part, told.get("number"))
    written = trace is None or trace.get("write_ms") is not None or over
    reason = str(told.get("reason", "")) or str((trace or {}).get("problem", ""))
    if state == "done" and trace is None:
        reason = "no trace: its collector torch_profiler is off, or another profiler was in use"
    size = (trace or {}).get("bytes")
    file = str(one.path / trace["file"]) if trace and size is not None else None
    settled = over or (state in ENDED and written) or state == "gone"
    return Answer(part.rank, one.path.name, state, reason, file, size, settled)


def _trace(part: Part, number: Any) -> dict[str, Any] | None:
    """The facts that the tracer gave of the window of that number, or None."""
    for state in part.extra.get("collectors") or []:
        if state.get("name") == "torch_profiler":
            return next((w for w in state["facts"].get("windows", []) if w.get("number") == number), None)
    return None
