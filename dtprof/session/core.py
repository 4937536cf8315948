"""Session: the training side between ``profile()`` and ``stop()``; see the package's docstring for what it promises."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dtprof.epoch import epoch_ns
from dtprof.jsonl import Appender
from dtprof.protocols import Collector, Context, Status
from dtprof.schema import STEP_KINDS
from dtprof.session import collecting, description, inputs, launched, marks, metrics, rows
from dtprof.session.anomaly import AnomalyOptions, Watcher
from dtprof.session.collecting import Collecting
from dtprof.session.description import Layout as Layout
from dtprof.session.folder import PartFolder, to_plain
from dtprof.session.guard import Guard, caught
from dtprof.session.identity import Identity, identify, run_key, versions
from dtprof.session.meter import Meter
from dtprof.session.phases import MAX_EVENTS, PhaseClock
from dtprof.session.windows import MAX_CAPTURED_STEPS as MAX_CAPTURED_STEPS
from dtprof.session.windows import NOTHING, Windows
from dtprof.session.windows import parse_capture as parse_capture

logger = logging.getLogger("dtprof")

ALWAYS_STEPS = 32
SAMPLE_NS = 500_000_000

_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_active: Session | None = None


class Session:
    """One measured stretch of training in one process. Made by ``dtprof.profile``; ``step()`` ends a step."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        capture: str | tuple[int, int] | None,
        collectors: Sequence[str | Collector | type[Collector]] | None,
        *,
        job: str | None,
        knobs: Mapping[str, Any] | None,
        options: Mapping[str, Mapping[str, Any]] | None,
        first_step: int,
        layout: Layout | None = None,
        anomaly: AnomalyOptions | None = None,
    ) -> None:
        self.inferred = False
        self.out = Path(out)
        self.asked = parse_capture(capture)
        first, end = self.asked
        self.capture = (first, min(end, first + MAX_CAPTURED_STEPS))
        self.guard = Guard()
        self._job, self._knobs, self._options = None if job is None else str(job), dict(knobs or {}), dict(options or {})
        self._layout = layout or Layout()
        self._wanted = collectors
        self._collectors: Collecting = []
        self._stepping, self._always = self._collectors, self._collectors
        self._is_asked = False
        self._asked_at = 0
        self._first = self._step = first_step
        self._meter, self._hidden_before = Meter(), 0
        self._late = threading.RLock()
        self._ended_ns: int | None = None
        self._input, self._phases = inputs.InputClock(), PhaseClock()
        self._metrics = metrics.MetricLog(self.guard, self._note)
        self._windows: Windows | None = None
        self._anomaly = anomaly
        self._watcher: Watcher | None = None
        self._notes: list[str] = []
        self._on = False
        self._folder: PartFolder | None = None
        self._lines: Appender | None = None
        self._who: Identity | None = None
        self._written_failures = 0

    # -- life

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Begin: claim the part folder, start the collectors. Whatever fails, training goes on."""
        global _active
        if _active is not None and _active.inferred and not self.inferred:
            _active.discard()
        if self._on or _active is not None:
            logger.warning("dtprof: a session is already running in this process; this one measures nothing")
            return
        _active = self
        _sessions.add(self)
        if self.guard.call("session", "start", self._step, self._start):
            self._on = True
            _listen(self._input, self._phases, self._metrics)
            atexit.register(self.stop)
        else:
            _active = None
        self._began = time.perf_counter_ns()

    def _start(self) -> None:
        self._started_ns = epoch_ns()
        self._thread = threading.get_ident()
        self._range_price = marks.price_ns()
        asked = launched.plan()
        if asked is not None:
            launched.agree_on_run_id(asked)
        self._who = identify()
        key = run_key()
        self._folder = PartFolder(self.out, self._who, key, self._started_ns)
        self._lines = Appender(self._folder.path / "steps.jsonl", make=lambda ended: rows.line(ended, self._phases))
        if self.asked != self.capture:
            self._notes.append(f"capture shortened to {self.capture[0]}:{self.capture[1]} ({MAX_CAPTURED_STEPS} steps at most)")
        if self._who.rank == 0 and self._who.attempt == 0:
            self._folder.set_others_aside(self._who)
        run, attempt = self._folder.out, self._who.attempt
        self._windows = Windows(self.capture, run, key, attempt, self._started_ns)
        if self._anomaly is not None:
            self._watcher = Watcher(self._anomaly, run, key, attempt, self._who.rank)
        self._describe()
        for name, collector in collecting.make(self._wanted, self.guard, self._step):
            status = Status(ask=self._ask)
            options = self._options.get(name, {})
            context = Context(
                self._who.rank, self._who.world_size, self._folder.path, self.capture, options, self._first, status,
                self._windows.current,
            )  # fmt: skip
            self._collectors.append((name, collector, status))
            if not self.guard.call(name, "start", self._step, collector.start, context):
                self.guard.call(name, "stop", self._step, collector.stop)
        self._stepping = [one for one in self._collectors if not one[2].idle]
        self._always = [one for one in self._stepping if not one[2].sampled]
        self._describe()

    def _ask(self) -> None:
        self._is_asked = True

    def stop(self) -> None:
        """End: stop the collectors, write what waits, describe the part. Safe to call twice, and at exit."""
        global _active
        if not self._on:
            return
        self._on = False
        if _active is self:
            _active = None
            _listen()
        atexit.unregister(self.stop)
        self.guard.call("session", "stop", self._step, self._stop)

    def discard(self) -> None:
        """End, and leave nothing behind: the script has begun a session of its own."""
        self.stop()
        self._ended_ns = None
        if self._folder is not None:
            shutil.rmtree(self._folder.path, ignore_errors=True)

    def _stop(self) -> None:
        for name, collector, status in self._collectors:
            status.late = self._describe_late
            if not self.guard.is_off(name):
                self.guard.call(name, "stop", self._step, collector.stop)
        if self._lines is not None and not self.guard.is_off("steps"):
            self.guard.call("steps", "close", self._step, self._lines.close)
        self.guard.call("metrics", "close", self._step, self._metrics.close)
        self._say_what_is_missing()
        if self._windows is not None:
            self._windows.finish(self._step)
        if self._folder is not None:
            self._folder.release_reserve()
        with self._late:
            self._ended_ns = epoch_ns()
            self._describe(ended=True)

    def _say_what_is_missing(self) -> None:
        done = self._step - self._first
        first, end = self.capture
        if done == 0:
            self._notes.append("step() was never called: no step is known")
            logger.warning("dtprof: step() was never called; call prof.step() at the end of every step")
        elif first >= 0 and self._step < end:
            got = f"the loop ended after step {self._step - 1}"
            self._notes.append(f"capture {first}:{end} is incomplete: {got}")
            logger.warning("dtprof: capture %d:%d is incomplete: %s", first, end, got)

    # -- steps

    def step(
        self,
        *,
        loss: Any = None,
        tokens: int | None = None,
        samples: int | None = None,
        kind: str | None = None,
    ) -> None:
        """End the current step and begin the next one.

        ``loss`` may be a number or a tensor on the CPU; one on a device is not read, for that would wait for the device.
        ``tokens`` and ``samples`` are those of this rank. ``kind`` is train, eval, checkpoint or warm-up (the default of
        the first step).
        """
        if not self._on:
            return
        entered = time.perf_counter_ns()
        error = caught(self._end_step, entered, loss, tokens, samples, kind)
        if error is not None:
            self.guard.fail("session", "step", self._step, error)
            self.stop()

    def _end_step(self, entered: int, loss: Any, tokens: int | None, samples: int | None, kind: str | None) -> None:
        step, windows = self._step, self._windows
        duration = entered - self._began
        if windows is None:
            return
        captured = windows.is_current(step) and self._is_traced()
        if step == self._first:
            self._settle()
        sampling = self._is_sampling(step, entered)
        if (sampling or windows.busy or self._watcher is not None) and not self.guard.is_off("captures"):
            self.guard.call("captures", "look", step, self._look, windows, step, duration, kind, sampling)
        near = windows.near(step)
        everyone = sampling or near or self._is_asked
        called = self._stepping if everyone else self._always
        hidden = self._call(called, everyone, step)
        own_ns = time.perf_counter_ns() - entered
        waited, calls = self._input.take()
        given: dict[str, float] = {}
        if tokens is not None or samples is not None or loss is not None:
            self._read(given, step, (("tokens", tokens, int), ("samples", samples, int), ("loss", loss, float)))
        told = self._kind(kind, step, called)
        phases = self._phases.take(entered)
        if phases.is_full:
            self._note(f"phases are not known of steps with more than {MAX_EVENTS // 2} ranges")
        input_ns = waited if calls else None
        self._write_line(rows.Ended(step, self._began, duration, captured, told, own_ns, input_ns, phases, given))
        if windows.changed or len(self.guard.failures) != self._written_failures or (called and _has_changed(called)):
            self._describe()
        self._step = step + 1
        self._began = time.perf_counter_ns()
        if step > self._first and not near:
            self._meter.add(self._began - entered + hidden - self._hidden_before, duration)
        self._hidden_before = hidden

    def _call(self, called: Collecting, everyone: bool, step: int) -> int:
        """Call collectors at the end of a step; what all are known to have cost beside ``step()`` since the start, ns."""
        for name, collector, _ in called:
            if not self.guard.is_off(name):
                self._hook(name, collector, step)
        if not everyone:
            return self._hidden_before
        self._is_asked = False
        return sum(status.own_ns for _, _, status in self._stepping)

    def _write_line(self, ended: rows.Ended) -> None:
        if self._lines is not None and not self.guard.is_off("steps") and self._lines.queue(ended):
            self.guard.call("steps", "write", ended.step, self._lines.flush)
        if self._folder is not None and self._metrics.waiting and not self.guard.is_off("metrics"):
            self.guard.call("metrics", "write", ended.step, self._metrics.write, self._folder.path, ended.step)

    def _is_sampling(self, step: int, now: int) -> bool:
        """Are sampled collectors asked, and captures looked for, at the end of this step, too?"""
        if step - self._first >= ALWAYS_STEPS and now - self._asked_at < SAMPLE_NS:
            return False
        self._asked_at = now
        return True

    def _is_traced(self) -> bool:
        return any(status.tracing for _, _, status in self._stepping)

    def _hook(self, name: str, collector: Collector, step: int) -> None:
        if not self.guard.call(name, "on_step", step, collector.on_step, step):
            self.guard.call(name, "stop", step, collector.stop)

    def _look(self, windows: Windows, step: int, duration: int, kind: str | None, asked: bool) -> None:
        """Is a capture asked for, or is the step so slow that we ask for one ourselves? ``asked``: read what is new now."""
        if self._watcher is not None and kind in (None, "train") and step > self._first and not windows.near(step):
            asked |= self._watcher.see(step, duration, epoch_ns(), windows.told)
        windows.look(step + 1, now=asked)

    def _settle(self) -> None:
        """After the first step the process group and the device exist: correct what was only read from the environment."""
        before, self._who = self._who, identify()
        if before is not None and before.rank != self._who.rank:
            self._note(f"rank {self._who.rank} from torch.distributed; at the start it was {before.rank} ({before.rank_from})")
        self._describe()

    def _read(self, given: dict[str, float], step: int, values: Sequence[tuple[str, Any, Callable[[Any], float]]]) -> None:
        for key, value, make in values:
            if value is None or self.guard.is_off(key):
                continue
            if type(value) is make:
                given[key] = value
            else:
                self.guard.call(key, "read", step, self._add, given, key, value, make)

    def _add(self, given: dict[str, float], key: str, value: Any, make: Callable[[Any], float]) -> None:
        """Keep a number that the job gave; one on a device is left alone."""
        device = getattr(value, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            self._note(f"{key} lies on a device and was not read; pass {key}.item() if the wait is acceptable")
            return
        given[key] = make(value.detach() if hasattr(value, "detach") else value)

    def _kind(self, kind: str | None, step: int, called: Collecting) -> str:
        if kind is None:
            warming = step == self._first or (called and any(status.warm_up for _, _, status in called))
            return "warm-up" if warming else "train"
        if kind not in STEP_KINDS:
            self._note(f"kind={kind!r} is none of {', '.join(STEP_KINDS)}; taken as train")
            return "train"
        return kind

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # -- description

    def _describe(self, ended: bool = False) -> None:
        """Write part.json, and manifest.json on rank 0. A failure here is noted and costs only the description."""
        self._written_failures = len(self.guard.failures)
        for _, _, status in self._collectors:
            status.changed = False
        if self._windows is not None:
            self._windows.changed = False
        if not self.guard.is_off("description") or ended:
            self.guard.call("description", "write", self._step, self._write_description, ended)

    def _describe_late(self) -> None:
        """A collector has finished something after the end; it may call from a thread of its own."""
        with self._late:
            if self._ended_ns is not None:
                self._describe(ended=True)

    def _write_description(self, ended: bool) -> None:
        who, folder = self._who, self._folder
        if who is None or folder is None:
            return
        steps = self._step - self._first
        own_cost = self._meter.result(self._phases.calls / max(steps, 1), self._range_price)
        states = description.states_of(self._collectors, self.guard.failures)
        extra = {
            "run_key": folder.key, "started_ns": folder.started_ns, "ended_ns": self._ended_ns,
            "steps_done": steps, "first_step": self._first,
            "steps": launched.INFERRED if self.inferred else launched.MARKED,
            "launch": to_plain(launched.facts),
            "capture": list(self.capture) if self.capture != NOTHING else None,
            "captures": self._windows.told if self._windows else [],
            "anomaly": self._watcher.described() if self._watcher else None,
            "collectors": states, "failures": self.guard.failures, "notes": self._notes,
            "own_cost": own_cost, "versions": versions(),
            "limits": {"captured_steps": MAX_CAPTURED_STEPS, "jsonl_bytes": self._lines.cap_bytes if self._lines else None},
        }  # fmt: skip
        part = description.part_of(who, folder, extra)
        folder.write_part(part, patient=ended)
        if who.rank == 0:
            knobs = {**self._knobs, **launched.knobs()}
            manifest = description.manifest_of(part, self._job, self._layout, knobs, states, own_cost)
            folder.write_manifest(manifest, patient=ended)

    def forget(self) -> None:
        """In a forked child: this process measures nothing and writes nothing."""
        self._on = False


def _has_changed(called: Collecting) -> bool:
    return any(status.changed for _, _, status in called)


def active() -> Session | None:
    """The session that is running in this process, or None."""
    return _active


def _listen(clock: Any = None, phases: PhaseClock | None = None, log: metrics.MetricLog | None = None) -> None:
    inputs.listen(clock)
    marks.listen(phases)
    metrics.listen(log)


def _after_fork_in_child() -> None:
    global _active
    for session in _sessions:
        session.forget()
    if _active is not None:
        _listen()
    _active = None


os.register_at_fork(after_in_child=_after_fork_in_child)
