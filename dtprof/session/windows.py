"""Which steps are captured: the window that was configured, and those that are asked for while the job runs.

A request is one line of RUN/captures.jsonl, appended by ``dtprof capture`` or by a rank that met an anomaly: run_key,
attempt, id, first and end (steps first to end - 1), why (asked, anomaly), asked_ns, and for an anomaly rank, step, dur_ns
and limit_ns. Every rank reads the lines in the order of the file, at most every POLL_S seconds, with one ``stat``; what it
makes of them depends on the lines alone. So all ranks capture the same steps without talking to each other, as long as
``first`` lies further ahead than it takes them to look. A rank that looks too late captures what is left, and says so.

Lines are left out that are of another run or attempt, older than the session, damaged, that overlap a window before them,
or that follow the last accepted anomaly within ``gap_s`` (anomalies only).
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dtprof.errors import InputError
from dtprof.protocols import Window

FILE = "captures.jsonl"
NOTHING = (-1, -1)
POLL_S = 0.25
MAX_CAPTURED_STEPS = 100
MAX_REQUESTS = 200
MAX_READ = 1 << 20
# a tracer is prepared in the step before a window, and ends after it
BETWEEN = 2

Step = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


def parse_capture(capture: str | tuple[int, int] | None) -> tuple[int, int]:
    """``"5:8"`` or (5, 8): steps 5, 6 and 7; None: no step."""
    if capture is None:
        return NOTHING
    try:
        first, end = (int(x) for x in (capture.split(":") if isinstance(capture, str) else capture))
    except (ValueError, TypeError) as error:
        raise InputError(f"capture={capture!r} is no window of steps", 'write it as "5:8" for steps 5, 6 and 7') from error
    if not 0 <= first < end:
        raise InputError(f"capture={capture!r} holds no step", 'write it as "5:8" for steps 5, 6 and 7')
    return first, end


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of captures.jsonl."""

    run_key: str
    attempt: int
    id: str
    first: Step
    end: Step
    why: str
    asked_ns: int
    gap_s: float = 0.0
    rank: int | None = None
    step: int | None = None
    dur_ns: int | None = None
    limit_ns: int | None = None


def append(run: Path, request: Request) -> None:
    """Add one line with a single write, which keeps lines of several writers whole on a local disk."""
    data = b"\n" + msgspec.json.encode(request) + b"\n"  # what a killed writer left before stays a line of its own
    fd = os.open(run / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def new_id() -> str:
    """A name for a request."""
    return uuid.uuid4().hex[:12]


class Windows:
    """The windows of one session. ``current`` is shared with the collectors and moves on; ``told`` goes to part.json.

    A row of ``told`` is a request: id, why, asked [first, end], and state: planned, tracing, done, partial (``reason``),
    missed or refused. An accepted one has its number (1, 2, … in the order of the file) and its steps [first, end].
    """

    def __init__(self, capture: tuple[int, int], run: Path, key: str, attempt: int, started_ns: int) -> None:
        self.current = Window(*capture)
        self._before = Window()
        self._path, self._key, self._attempt, self._started_ns = str(run / FILE), key, attempt, started_ns
        self._offset = 0
        self._due = 0.0
        self._taken = [list(capture)] if capture[0] >= 0 else []
        self._accepted = 0
        self._anomaly_ns = -(1 << 62)
        configured = {"number": 0, "steps": list(capture)}
        self._running: dict[str, Any] | None = configured if capture[0] >= 0 else None
        self._plan: list[dict[str, Any]] = [configured] if capture[0] >= 0 else []
        self.told: list[dict[str, Any]] = []
        self.changed = False

    def look(self, coming: int, *, now: bool = False) -> None:
        """Before the collectors learn that step ``coming`` is next: read what is new, where that is due, and move on."""
        clock = time.monotonic()
        if now or clock >= self._due:
            self._due = clock + POLL_S
            for line in self._new_lines():
                self._take(line)
        if self._plan:
            self._move(coming)

    def _new_lines(self) -> list[bytes]:
        # asking first: an exception is dear beside a training step, and there is hardly ever a file
        if not os.access(self._path, os.R_OK):
            return []
        try:
            size = os.stat(self._path).st_size
        except OSError:
            return []
        if size == self._offset:
            return []
        with open(self._path, "rb") as file:
            self._offset = min(self._offset, size)
            file.seek(self._offset)
            data = file.read(MAX_READ)
        whole = len(data) if len(data) == MAX_READ else data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].split(b"\n")

    def _take(self, line: bytes) -> None:
        try:
            asked = msgspec.json.decode(line, type=Request)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if asked.run_key != self._key or asked.attempt != self._attempt or asked.asked_ns < self._started_ns:
            return
        if asked.why == "anomaly" and asked.asked_ns - self._anomaly_ns < asked.gap_s * 1e9:
            return
        if len(self.told) >= MAX_REQUESTS:
            return
        told: dict[str, Any] = {"id": asked.id, "why": asked.why, "asked": [asked.first, asked.end], "state": "planned"}
        told["asked_ns"] = asked.asked_ns
        told |= {k: v for k in ("rank", "step", "dur_ns", "limit_ns") if (v := getattr(asked, k)) is not None}
        self.told.append(told)
        self.changed = True
        steps = [asked.first, min(asked.end, asked.first + MAX_CAPTURED_STEPS)]
        overlap = next((o for o in self._taken if steps[0] < o[1] + BETWEEN and o[0] < steps[1] + BETWEEN), None)
        if steps[0] >= steps[1]:
            told.update(state="refused", reason="it holds no step")
        elif overlap:
            told.update(state="refused", reason=f"too near to steps {overlap[0]}:{overlap[1]}, which are captured already")
        else:
            if asked.why == "anomaly":
                self._anomaly_ns = asked.asked_ns
            self._taken.append(steps)
            self._accepted += 1
            told.update(number=self._accepted, steps=steps)
            self._plan.append(told)
            self._plan.sort(key=lambda entry: int(entry["steps"][0]))

    def _move(self, coming: int) -> None:
        """The earliest window that is not over becomes the current one; one that is seen too late loses its first steps."""
        while self._plan:
            entry = self._plan[0]
            first, end = entry["steps"]
            if entry is self._running and coming <= end:
                if coming >= first and entry.get("state") == "planned":
                    self._set(entry, "tracing")
                return
            if coming < end:
                break
            self._plan.pop(0)
            if entry is self._running:
                self._running = None
                self._set(entry, "partial" if self.current.first > first else "done")
            else:
                self._set(entry, "missed", f"seen before step {coming} only")
        if self._plan:
            self._begin(self._plan[0], coming)

    def _begin(self, entry: dict[str, Any], coming: int) -> None:
        first, end = entry["steps"]
        if self.current.first >= 0 and self.current.end <= coming:
            self._before = Window(self.current.first, self.current.end)
        self.current.first, self.current.end, self.current.number = max(first, coming), end, entry["number"]
        self._running = entry
        if coming > first:
            self._set(entry, "tracing", f"seen before step {coming} only")

    def _set(self, entry: dict[str, Any], state: str, reason: str | None = None) -> None:
        if entry["number"]:
            entry["state"] = state
            if reason:
                entry["reason"] = reason
            self.changed = True

    @property
    def busy(self) -> bool:
        """Is a window running or planned, which moves on by steps?"""
        return bool(self._plan)

    def is_current(self, step: int) -> bool:
        """Is the step one of the window that is current?"""
        return self.current.first <= step < self.current.end

    def near(self, step: int) -> bool:
        """Is the step captured, or so near to a window that a tracer's beginning or end makes it another one?"""
        return _is_near(self.current, step) or _is_near(self._before, step)

    def finish(self, coming: int) -> None:
        """The loop has ended before step ``coming``: what is not over now is cut short."""
        why = f"the loop ended after step {coming - 1}"
        for entry in self._plan:
            running = entry is self._running and coming > self.current.first
            if running and coming >= self.current.end:
                self._set(entry, "partial" if self.current.first > entry["steps"][0] else "done")
            else:
                self._set(entry, "partial" if running else "missed", why)
        self._plan, self._running = [], None


def _is_near(window: Window, step: int) -> bool:
    return window.first >= 0 and window.first - 3 <= step <= window.end
