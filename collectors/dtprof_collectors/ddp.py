"""DistributedDataParallel without a communication hook: configuration, buckets, gradient-ready times, collectives.

Wrappers are found among the live objects when the session starts and, where there are none yet, at the end of its first
step. Gradient hooks are on all parameters in the first FIRST_STEPS steps and from two steps before a capture window to its
end. In all other steps they are on the last member of each bucket alone, for DDP fills its buckets in the order in which
gradients became ready (and on the very first one): about 1 us per bucket and step.

Raw files (fields: ``ddp_lines``; a ring of two pieces, see ``dtprof.jsonl``)
    ddp.jsonl           ``config`` of every wrapper; ``layout`` of its buckets whenever it has changed; ``grads`` of every step
                        in which all parameters have hooks, ``ready`` of the others; ``timing`` of every step of a window.
                        ``model`` is 0, 1, … in the order found.
    collectives.jsonl   every operation of any group that this rank issued in the captured steps, in order, by the flight
                        recorder. Without it ``source`` is "ddp_layout": one all_reduce per bucket and step, with neither
                        seq nor time, other groups and operations unknown, and part.json says so.
Facts in part.json: ``models`` (the configuration of each), ``collectives`` (lines), ``flight_recorder_ms``.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dtprof.epoch import OFFSET_NS, epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context, Window
from dtprof.table import Table
from dtprof_collectors import flight_recorder
from dtprof_collectors.ddp_lines import Bucket, Config, Grads, Layout, Line, Operation, Ready, Timing
from dtprof_collectors.ddp_tables import ddp_tables

FILE, COLLECTIVES = "ddp.jsonl", "collectives.jsonl"
LEAD_STEPS = 2
FIRST_STEPS = 3
_HOOK_NS = 1000
MAX_READY = 100_000
MAX_CAPTURED = 100
_DEFAULT_SAMPLE_RATE = 100
_TIMES = tuple(f for f in Timing.__struct_fields__ if f not in ("model", "step"))


class DdpCollector:
    """Watches every DistributedDataParallel of the process; see the module for what it writes."""

    name = "ddp"

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._lines: Appender | None = None
        self._issued: Appender | None = None
        self._borders: list[tuple[int, int]] = []
        self._order = 0
        self._window = Window()
        self._in_window = False
        self._beginning = True

    def start(self, context: Context) -> None:
        """Look for wrappers that exist already; begin at once if the window is near."""
        self._context, self._status = context, context.status
        self._status.sampled = True
        self._window = context.window
        self._first_step = context.first_step
        self._find()
        self._prepare(context.first_step)

    def _find(self) -> None:
        for model in find_models():
            number = len(self._models)
            wrapped = _Model(number, model)
            self._beginning = True
            self._models.append(wrapped)
            wrapped.watch(True)
            wrapped.time_every_step(self._in_window)
            self._write(wrapped.config)
            self._status.facts.setdefault("models", []).append(wrapped.summary())
            self._status.changed = True

    def _write(self, row: Line | _Last) -> None:
        if self._lines is None:
            self._lines = Appender(self._context.folder / FILE, make=_made)
        self._lines.add(row)

    def _prepare(self, coming: int) -> None:
        """Step ``coming`` is about to begin."""
        window = self._window
        before = self._in_window
        self._in_window = window.first >= 0 and window.first - LEAD_STEPS <= coming < window.end
        if not (before or self._in_window or self._beginning):
            return
        self._beginning = any(model.seen_steps <= FIRST_STEPS for model in self._models)
        for model in self._models:
            model.watch(self._in_window or model.seen_steps < FIRST_STEPS)
            model.time_every_step(self._in_window)
        if window.first >= 0 and window.first <= coming <= window.end:
            self._borders.append((coming, epoch_ns()))

    def on_step(self, step: int) -> None:
        """Write what the step showed; read the flight recorder when a window has just closed."""
        for model in self._models:
            self._status.own_ns += model.fired * _HOOK_NS
            for row in model.rows(step, self._in_window):
                self._write(row)
        if step == self._first_step and not self._models:
            self._find()
        self._prepare(step + 1)
        if step + 1 == self._window.end:
            self._collectives()

    def _collectives(self) -> None:
        borders, self._borders = self._borders, []
        if len(borders) < 2:
            return
        began = time.perf_counter()
        found = flight_recorder.dump()
        rows = self._recorded(found, borders) if found else list(self._from_layout(borders))
        if not rows:
            return
        lines = self._issued = self._issued or Appender(self._context.folder / COLLECTIVES)
        for order, row in enumerate(rows, self._order):
            lines.add(Operation(order=order, **row))
        lines.flush()
        self._order += len(rows)
        self._status.facts.update(collectives=self._order, flight_recorder_ms=(time.perf_counter() - began) * 1e3)
        self._status.changed = True

    def _recorded(self, found: dict[str, Any], borders: list[tuple[int, int]]) -> list[dict[str, Any]]:
        begins, ends = borders[0][1], borders[-1][1]
        every = list(flight_recorder.operations(found))
        rows = [row for row in every if row["created_ns"] is not None and row["created_ns"] >= begins]
        if every and len(rows) == len(every) and (every[0]["record"] or 0) > 0:
            self._status.miss("collectives: the flight recorder is too small for the window; the first ones are lost")
        for row in rows:
            inside = row["created_ns"] < ends
            row["step"] = max((step for step, ts in borders[:-1] if ts <= row["created_ns"]), default=None) if inside else None
        return rows

    def _from_layout(self, borders: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
        if not self._models:
            return
        self._status.miss(
            "collectives: the flight recorder is off; set TORCH_FR_BUFFER_SIZE=5000 before the process group is made. "
            "Sizes are those of DDP's buckets; sequence numbers and other operations are unknown"
        )
        for step, _ in borders[:-1]:
            for model in self._models:
                yield from model.guessed_collectives(step)

    def stop(self) -> None:
        """Take the hooks away; keep what an unfinished window gave."""
        for model in self._models:
            model.unwatch()
        if self._borders:
            self._borders.append((self._borders[-1][0] + 1, epoch_ns()))
            self._collectives()
        files, self._lines, self._issued = (self._lines, self._issued), None, None
        for lines in files:
            if lines is not None:
                lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``grads`` and ``buckets`` of the watched steps, and ``quality``."""
        lines, bad = read_lines(folder / FILE, Line)
        operations, _ = read_lines(folder / COLLECTIVES, Operation)
        return ddp_tables(lines, operations, bad)


class _Last(NamedTuple):
    """What becomes a ``Ready`` when it is written; times are those of the monotonic clock, in ns."""

    model: int
    step: int
    join: bool
    sync: bool
    ready: list[tuple[int, int]]
    buckets: list[Bucket]


def _made(row: Line | _Last) -> Line:
    if not isinstance(row, _Last):
        return row
    last = {key: at + OFFSET_NS for key, at in row.ready}
    buckets = [last.get(bucket.bucket) for bucket in row.buckets]
    return Ready(model=row.model, step=row.step, join=row.join, sync=row.sync, first=last.get(-1), buckets=buckets)


def find_models() -> list[Any]:
    """Live DistributedDataParallel objects, subclasses included, without touching any; [] before there is a process group."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    base = getattr(module, "DistributedDataParallel", None)
    dist = sys.modules.get("torch.distributed")
    if base is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return []
    classes, todo = [], [base]
    while todo:
        classes.append(todo.pop())
        todo.extend(classes[-1].__subclasses__())
    return [o for o in gc.get_referrers(*classes) if isinstance(o, base) and hasattr(o, "reducer")]


class _Model:
    """One wrapper: reads its state, holds the hooks."""

    def __init__(self, number: int, ddp: Any) -> None:
        self.number = number
        self._reference = weakref.ref(ddp)
        named = self._parameters(ddp)
        self._names = [name for name, _ in named]
        self._on_cpu = all(p.device.type == "cpu" for _, p in named)
        self._ready: list[tuple[int, int]] = []
        self._handles: list[Any] = []
        self._buckets: list[Bucket] = []
        self._used_in: deque[int] = deque(maxlen=2 * MAX_CAPTURED)
        self._full: bool | None = None
        self.seen_steps = 0
        self._timed = False
        self.config = self._config(ddp, named)

    def _parameters(self, ddp: Any) -> list[tuple[str, Any]]:
        """Parameters that DDP reduces, in its order."""
        ignored = set(getattr(ddp, "parameters_to_ignore", ()))
        return [(n, p) for n, p in ddp.module.named_parameters() if p.requires_grad and n not in ignored]

    def _config(self, ddp: Any, named: list[tuple[str, Any]]) -> Config:
        import torch.distributed as dist

        hooks = getattr(ddp, "_comm_hooks", [])
        cap = getattr(ddp, "bucket_bytes_cap", None)
        absent = bool(getattr(ddp, "bucket_bytes_cap_default", False))
        return Config(
            model=self.number,
            module=type(ddp.module).__name__,
            bucket_cap_mb=None if absent or cap is None else cap / 2**20,
            bucket_cap_bytes=cap,
            find_unused_parameters=bool(ddp.find_unused_parameters),
            static_graph=bool(ddp.static_graph),
            gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
            broadcast_buffers=bool(ddp.broadcast_buffers),
            comm_hook=getattr(hooks[0][0], "__name__", type(hooks[0][0]).__name__) if hooks else None,
            ranks=dist.get_process_group_ranks(ddp.process_group),
            backend=str(dist.get_backend(ddp.process_group)),
            parameters=[(n, p.numel() * p.element_size(), str(p.dtype).removeprefix("torch.")) for n, p in named],
            matrices=[(rows, p.numel() // max(rows, 1)) for _, p in named for rows in [p.shape[0] if p.dim() else 1]],
        )

    def summary(self) -> dict[str, Any]:
        """The configuration without the list of parameters, for part.json."""
        config: dict[str, Any] = msgspec.to_builtins(self.config)
        return {
            **{k: v for k, v in config.items() if k not in ("type", "parameters", "matrices")},
            "n_parameters": len(self._names),
        }

    @property
    def fired(self) -> int:
        """How often a gradient hook was called since the last ``rows``."""
        return len(self._ready)

    def watch(self, full: bool) -> None:
        """Put a hook on every parameter, or (not ``full``) on the first of all and the last of each bucket; on none before
        the buckets are known.
        """
        ddp = self._reference()
        if ddp is None or full == self._full:
            return
        self.unwatch()
        self._full = full
        parameters = self._parameters(ddp)
        keys = [(i, i) for i in range(len(parameters))] if full else self._last_members()
        for key, index in keys:
            self._handles.append(parameters[index][1].register_post_accumulate_grad_hook(self._on_ready(key)))

    def _last_members(self) -> list[tuple[int, int]]:
        """(bucket number, or -1 for the first gradient of all; parameter index)."""
        number = {name: index for index, name in enumerate(self._names)}
        known = [(b.bucket, [number[name] for name in b.members or () if name in number]) for b in self._buckets]
        last = [(bucket, members[-1]) for bucket, members in known if members]
        return [(-1, known[0][1][0]), *last] if last and len(last) == len(known) else []

    def _on_ready(self, key: int) -> Callable[[Any], None]:
        ready, clock = self._ready, time.perf_counter_ns

        def hook(_parameter: Any) -> None:
            if len(ready) < MAX_READY:
                ready.append((key, clock()))

        return hook

    def unwatch(self) -> None:
        """Take the hooks away."""
        self._full = None
        self._ready.clear()
        while self._handles:
            self._handles.pop().remove()

    def time_every_step(self, wanted: bool) -> None:
        """Have DDP time every iteration (CPU only), or one of a hundred as it does by itself."""
        ddp = self._reference()
        if wanted == self._timed or ddp is None:
            return
        self._timed = wanted
        set_rate = getattr(ddp.reducer, "_set_ddp_runtime_logging_sample_rate", None)
        if set_rate is not None and self._on_cpu:
            set_rate(1 if wanted else _DEFAULT_SAMPLE_RATE)

    def rows(self, step: int, timed: bool) -> Iterator[Line | _Last]:
        """The lines that the end of a step gives: every gradient or the buckets alone; ``timed``: DDP's own times, too."""
        ddp = self._reference()
        if ddp is None:
            return
        ready = self._ready.copy()
        self._ready.clear()
        self.seen_steps += 1
        join = bool(getattr(getattr(ddp, "_join_config", None), "enable", False))
        sync = bool(ddp.require_backward_grad_sync)
        if not self._full:
            if ready:
                yield _Last(self.number, step, join, sync, ready, self._buckets)
            return
        if ready:
            self._used_in.append(step)
        seen = {index for index, _ in ready}
        yield Grads(
            model=self.number, step=step, join=join, sync=sync, ready=[(index, at + OFFSET_NS) for index, at in ready],
            unused=[i for i in range(len(self._names)) if i not in seen],
        )  # fmt: skip
        yield from self._logged_rows(ddp, step, timed)

    def _logged_rows(self, ddp: Any, step: int, timed: bool) -> Iterator[Line]:
        """What DDP's logging data says of buckets and times."""
        data = self._logged(ddp)
        rebuilt, buckets = _buckets(data, self._names)
        if buckets and buckets != self._buckets:
            self._buckets = buckets
            yield Layout(model=self.number, step=step, rebuilt=rebuilt, buckets=buckets)
        times = {k: data[k] for k in _TIMES if k in data}
        if times and timed and self._on_cpu:
            yield Timing(model=self.number, step=step, **times)

    def _logged(self, ddp: Any) -> dict[str, Any]:
        read = getattr(ddp, "_get_ddp_logging_data", None)
        return dict(read()) if read is not None else {}

    def guessed_collectives(self, step: int) -> Iterator[dict[str, Any]]:
        """What DDP must have issued in a step, judged by its buckets; nothing where a hook of the job does the work."""
        if self.config.comm_hook or step not in self._used_in:
            return
        for bucket in self._buckets:
            yield {
                "step": step, "group": "", "description": "", "ranks": self.config.ranks, "seq": None, "p2p": False,
                "op_id": None, "op": "all_reduce", "name": f"{self.config.backend}:all_reduce", "peer": None,
                "bytes_in": bucket.bytes, "bytes_out": bucket.bytes, "dtype": self.config.parameters[0][2],
                "created_ns": None, "record": None, "source": "ddp_layout",
            }  # fmt: skip


def _buckets(data: Mapping[str, Any], names: list[str]) -> tuple[bool, list[Bucket]]:
    """Buckets from DDP's logging data: texts such as "2101248, 2101248" and "3 2, 1 0" (parameter indices)."""
    rebuilt = bool(data.get("rebuilt_bucket_sizes"))
    sizes = str(data.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes") or "")
    members = str(data.get("rebuilt_per_bucket_param_indices") or "").split(",") if rebuilt else []
    buckets = []
    for number, size in enumerate(sizes.split(",") if sizes else []):
        indices = [int(x) for x in members[number].split()] if number < len(members) else []
        known = [names[i] for i in indices if i < len(names)] if indices else None
        buckets.append(Bucket(bucket=number, bytes=int(size), members=known))
    return rebuilt, buckets
