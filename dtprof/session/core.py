"""Session: the training side between ``profile()`` and ``stop()``; see the package's docstring for what it promises."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from dtprof import plugins
from dtprof.epoch import OFFSET_NS, epoch_ns
from dtprof.errors import InputError
from dtprof.jsonl import Appender
from dtprof.protocols import Collector, Context, Status
from dtprof.run import Manifest, Part
from dtprof.schema import STEP_KINDS
from dtprof.session import inputs, launched, marks
from dtprof.session.folder import PartFolder, to_plain
from dtprof.session.guard import Guard, from_signal_handler
from dtprof.session.identity import Identity, device_name, identify, process_group, run_key, versions
from dtprof.session.meter import Meter

logger = logging.getLogger("dtprof")

MAX_CAPTURED_STEPS = 100
NOTHING = (-1, -1)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_active: Session | None = None


@dataclass(frozen=True)
class Layout:
    """What a job says of its parallelism: ``mesh``, ``coordinates`` and ``groups`` of the manifest."""

    mesh: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)


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
        self._collectors: list[tuple[str, Collector, Status]] = []
        self._first = self._step = first_step
        self._meter = Meter()
        self._input = inputs.InputClock()
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
            inputs.listen(self._input)
            atexit.register(self.stop)
        else:
            _active = None
        self._began = time.perf_counter_ns()

    def _start(self) -> None:
        self._started_ns = epoch_ns()
        self._thread = threading.get_ident()
        marks.look_for_listeners()
        self._idle_price = marks.idle_price_ns()
        self._idle_before = marks.idle_calls
        asked = launched.plan()
        if asked is not None:
            launched.agree_on_run_id(asked)
        self._who = identify()
        key = run_key()
        self._folder = PartFolder(self.out, self._who, key, self._started_ns)
        self._lines = Appender(self._folder.path / "steps.jsonl")
        if self.asked != self.capture:
            self._notes.append(f"capture shortened to {self.capture[0]}:{self.capture[1]} ({MAX_CAPTURED_STEPS} steps at most)")
        if self._who.rank == 0 and self._who.attempt == 0:
            self._folder.set_others_aside(self._who)
        self._describe()
        for name, collector in self._make_collectors():
            status = Status()
            options = self._options.get(name, {})
            context = Context(
                self._who.rank, self._who.world_size, self._folder.path, self.capture, options, self._first, status
            )
            self._collectors.append((name, collector, status))
            if not self.guard.call(name, "start", self._step, collector.start, context):
                self.guard.call(name, "stop", self._step, collector.stop)
        self._describe()

    def _make_collectors(self) -> list[tuple[str, Collector]]:
        """Collectors by entry point, or those that were asked for; one that cannot be loaded is noted, never fatal."""
        made: list[tuple[str, Collector]] = []
        wanted = self._wanted
        if wanted is None:
            wanted = [entry.name for entry in plugins.announced("collectors")]
        for item in wanted:
            name, factory = _name_of(item), item
            if isinstance(item, str):
                plugin = plugins.find("collectors", item)
                problem = "not installed" if plugin is None else plugin.error
                if plugin is None or problem:
                    self.guard.fail(name, "load", self._step, ImportError(problem))
                    continue
                factory = plugin.value

            def make(name: str = name, factory: Any = factory) -> None:
                made.append((name, factory() if isinstance(factory, type) else factory))

            self.guard.call(name, "load", self._step, make)
        return made

    def stop(self) -> None:
        """End: stop the collectors, write what waits, describe the part. Safe to call twice, and at exit."""
        global _active
        if not self._on:
            return
        self._on = False
        if _active is self:
            _active = None
            inputs.listen(None)
        atexit.unregister(self.stop)
        self.guard.call("session", "stop", self._step, self._stop)

    def discard(self) -> None:
        """End, and leave nothing behind: the script has begun a session of its own."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder.path, ignore_errors=True)

    def _stop(self) -> None:
        self._ended_ns = epoch_ns()
        for name, collector, _ in self._collectors:
            if not self.guard.is_off(name):
                self.guard.call(name, "stop", self._step, collector.stop)
        if self._lines is not None and not self.guard.is_off("steps"):
            self.guard.call("steps", "close", self._step, self._lines.close)
        self._say_what_is_missing()
        if self._folder is not None:
            self._folder.release_reserve()
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
        try:
            self._end_step(entered, loss, tokens, samples, kind)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.guard.fail("session", "step", self._step, error)
            self.stop()

    def _end_step(self, entered: int, loss: Any, tokens: int | None, samples: int | None, kind: str | None) -> None:
        step = self._step
        traced = any(status.tracing for _, _, status in self._collectors)
        if step == self._first:
            self._settle()
        for name, collector, _ in self._collectors:
            if not self.guard.is_off(name):
                self._hook(name, collector, step)
        duration = entered - self._began
        hidden = sum(status.own_ns for _, _, status in self._collectors)
        row = {
            "step": step,
            "host_ts": self._began + OFFSET_NS,
            "host_dur": duration,
            "captured": traced and self.capture[0] <= step < self.capture[1],
            "kind": self._kind(kind, step),
            "own_ns": time.perf_counter_ns() - entered,
        }
        waited, calls = self._input.take()
        if calls:
            row["input_ns"] = waited
        for key, value, make in (("tokens", tokens, int), ("samples", samples, int), ("loss", loss, float)):
            if value is not None and not self.guard.is_off(key):
                self.guard.call(key, "read", step, self._add, row, key, value, make)
        if self._lines is not None and not self.guard.is_off("steps"):
            self.guard.call("steps", "write", step, self._lines.add, row)
        if len(self.guard.failures) != self._written_failures or any(s.changed for _, _, s in self._collectors):
            self._describe()
        self._step = step + 1
        self._began = time.perf_counter_ns()
        if self._is_plain(step):
            self._meter.add(self._began - entered + hidden - self._hidden_before, duration)
        self._hidden_before = hidden

    _hidden_before = 0

    def _hook(self, name: str, collector: Collector, step: int) -> None:
        if not self.guard.call(name, "on_step", step, collector.on_step, step):
            self.guard.call(name, "stop", step, collector.stop)

    def _is_plain(self, step: int) -> bool:
        first, end = self.capture
        return step > self._first and not (first >= 0 and first - 3 <= step <= end)

    def _settle(self) -> None:
        """After the first step the process group and the device exist: correct what was only read from the environment."""
        before, self._who = self._who, identify()
        if before is not None and before.rank != self._who.rank:
            self._note(f"rank {self._who.rank} from torch.distributed; at the start it was {before.rank} ({before.rank_from})")
        self._describe()

    def _add(self, row: dict[str, Any], key: str, value: Any, make: Callable[[Any], float]) -> None:
        """Put a number that the job gave into the row; one on a device is left alone."""
        device = getattr(value, "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            self._note(f"{key} lies on a device and was not read; pass {key}.item() if the wait is acceptable")
            return
        row[key] = make(value.detach() if hasattr(value, "detach") else value)

    def _kind(self, kind: str | None, step: int) -> str:
        if kind is None:
            return "warm-up" if step == self._first else "train"
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
        if not self.guard.is_off("description") or ended:
            self.guard.call("description", "write", self._step, self._write_description, ended)

    def _write_description(self, ended: bool) -> None:
        who, folder = self._who, self._folder
        if who is None or folder is None:
            return
        idle_per_step = (marks.idle_calls - self._idle_before) / max(self._step - self._first, 1)
        own_cost = self._meter.result(idle_per_step, self._idle_price)
        states = [self._state_of(name, status) for name, _, status in self._collectors]
        made = {name for name, _, _ in self._collectors}
        states += [{"name": f["name"], "state": "off", "failure": f} for f in self.guard.failures if f["name"] not in made]
        part = Part(
            ordinal=folder.ordinal, rank=who.rank, attempt=who.attempt, window=folder.window, world_size=who.world_size,
            host=who.host, pid=who.pid, device=device_name(), backend=who.backend,
            source=folder.path.name, rank_from=who.rank_from + (f"; {who.conflict}" if who.conflict else ""),
            extra={
                "run_key": folder.key,
                "started_ns": folder.started_ns,
                "ended_ns": self._ended_ns if ended else None,
                "steps_done": self._step - self._first,
                "first_step": self._first,
                "steps": launched.INFERRED if self.inferred else launched.MARKED,
                "launch": to_plain(launched.facts),
                "capture": list(self.capture) if self.capture != NOTHING else None,
                "collectors": states,
                "failures": self.guard.failures,
                "notes": self._notes,
                "own_cost": own_cost,
                "versions": versions(),
                "limits": {"captured_steps": MAX_CAPTURED_STEPS, "jsonl_bytes": self._lines.cap_bytes if self._lines else None},
            },
        )  # fmt: skip
        folder.write_part(part)
        if who.rank == 0:
            folder.write_manifest(self._manifest(part, states, own_cost))

    def _state_of(self, name: str, status: Status) -> dict[str, Any]:
        failure = next((f for f in self.guard.failures if f["name"] == name), None)
        state: dict[str, Any] = {"name": name, "state": "off" if failure else "on", "facts": to_plain(status.facts)}
        if failure:
            state["failure"] = failure
        if status.missing:
            state["missing"] = list(status.missing)
        return state

    def _manifest(self, part: Part, states: list[dict[str, Any]], own_cost: dict[str, Any] | None) -> Manifest:
        dist = process_group()
        groups = []
        if dist is not None:
            groups.append({"name": "default_pg", "ranks": list(range(dist.get_world_size())), "backend": part.backend})
        groups += [{"backend": part.backend, **to_plain(group)} for group in self._layout.groups]
        cost = {k: float(own_cost[k]) for k in ("fraction", "low", "high")} if own_cost else None
        return Manifest(
            run_id=str(part.extra["run_key"]), job=self._job, command=list(sys.orig_argv), world_size=part.world_size,
            mesh=to_plain(self._layout.mesh), coordinates=to_plain(self._layout.coordinates), groups=groups,
            knobs=to_plain({**self._knobs, **launched.knobs()}), hosts=[part.host or ""], devices=[part.device or ""],
            versions=versions(), collectors=states, own_cost=cost, parts=[part],
        )  # fmt: skip

    def forget(self) -> None:
        """In a forked child: this process measures nothing and writes nothing."""
        self._on = False


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


def active() -> Session | None:
    """The session that is running in this process, or None."""
    return _active


def _name_of(item: Any) -> str:
    if isinstance(item, str):
        return item
    return str(getattr(item, "name", None) or getattr(item, "__name__", None) or type(item).__name__)


def _after_fork_in_child() -> None:
    global _active
    for session in _sessions:
        session.forget()
    inputs.listen(None)
    _active = None


os.register_at_fork(after_in_child=_after_fork_in_child)
