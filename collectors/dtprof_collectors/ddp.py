"""DistributedDataParallel without a communication hook: configuration, buckets, gradient-ready times, collectives.

Wrappers are found among the live objects when the session starts and, where there are none yet, at the end of its first
step. Gradient hooks are on the parameters only from two steps before the capture window to its end.

Raw files (fields: ``ddp_lines``; a ring of two pieces, see ``dtprof.jsonl``)
    ddp.jsonl           ``config`` of every wrapper; ``layout`` of its buckets whenever it has changed; ``grads`` and
                        ``timing`` of every watched step. ``model`` is 0, 1, … in the order found.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtprof.epoch import epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.table import Table
from dtprof_collectors import flight_recorder
from dtprof_collectors.ddp_lines import Bucket, Config, Grads, Layout, Line, Operation, Timing
from dtprof_collectors.ddp_tables import ddp_tables

FILE, COLLECTIVES = "ddp.jsonl", "collectives.jsonl"
LEAD_STEPS = 2
MAX_READY = 100_000
_DEFAULT_SAMPLE_RATE = 100
_TIMES = tuple(f for f in Timing.__struct_fields__ if f not in ("model", "step"))


class DdpCollector:
    """Watches every DistributedDataParallel of the process; see the module for what it writes."""

    name = "ddp"

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._lines: Appender | None = None
        self._borders: list[tuple[int, int]] = []
        self._watching = False

    def start(self, context: Context) -> None:
        """Look for wrappers that exist already; begin at once if the window is near."""
        self._context, self._status = context, context.status
        self._first, self._end = context.capture
        self._first_step = context.first_step
        self._find()
        self._prepare(context.first_step)

    def _find(self) -> None:
        for model in find_models():
            number = len(self._models)
            wrapped = _Model(number, model)
            self._models.append(wrapped)
            if self._watching:
                wrapped.watch()
            self._write(wrapped.config)
            self._status.facts.setdefault("models", []).append(wrapped.summary())
            self._status.changed = True

    def _write(self, row: Line) -> None:
        if self._lines is None:
            self._lines = Appender(self._context.folder / FILE)
        self._lines.add(row)

    def _prepare(self, coming: int) -> None:
        """Step ``coming`` is about to begin."""
        wanted = self._first >= 0 and self._first - LEAD_STEPS <= coming < self._end
        if wanted and not self._watching:
            for model in self._models:
                model.watch()
        elif self._watching and not wanted:
            for model in self._models:
                model.unwatch()
        self._watching = wanted
        if self._first <= coming <= self._end and self._first >= 0:
            self._borders.append((coming, epoch_ns()))

    def on_step(self, step: int) -> None:
        """Write what the step showed; read the flight recorder when the window has just closed."""
        if self._watching:
            for model in self._models:
                for row in model.rows(step):
                    self._write(row)
        if step == self._first_step and not self._models:
            self._find()
        if self._first >= 0 and self._first - LEAD_STEPS - 1 <= step < self._end:
            self._prepare(step + 1)
            if step + 1 == self._end:
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
        lines = Appender(self._context.folder / COLLECTIVES)
        for order, row in enumerate(rows):
            lines.add(Operation(order=order, **row))
        lines.close()
        self._status.facts.update(collectives=len(rows), flight_recorder_ms=(time.perf_counter() - began) * 1e3)
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
        self._watching = False
        if self._borders:
            self._borders.append((self._borders[-1][0] + 1, epoch_ns()))
            self._collectives()
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``grads`` and ``buckets`` of the watched steps, and ``quality``."""
        lines, bad = read_lines(folder / FILE, Line)
        operations, _ = read_lines(folder / COLLECTIVES, Operation)
        return ddp_tables(lines, operations, bad)


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
        self._used_in: set[int] = set()
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
        )

    def summary(self) -> dict[str, Any]:
        """The configuration without the list of parameters, for part.json."""
        config: dict[str, Any] = msgspec.to_builtins(self.config)
        return {**{k: v for k, v in config.items() if k not in ("type", "parameters")}, "n_parameters": len(self._names)}

    def watch(self) -> None:
        """Put a hook on every parameter; have DDP time every iteration (CPU only)."""
        ddp = self._reference()
        self._ready.clear()
        if ddp is None:
            return
        for index, (_, parameter) in enumerate(self._parameters(ddp)):
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._on_ready(index)))
        self._sample_rate(ddp, 1)

    def _on_ready(self, index: int) -> Callable[[Any], None]:
        ready = self._ready

        def hook(_parameter: Any) -> None:
            if len(ready) < MAX_READY:
                ready.append((index, epoch_ns()))

        return hook

    def unwatch(self) -> None:
        """Take the hooks away; DDP samples as before."""
        ddp = self._reference()
        if self._handles and ddp is not None:
            self._sample_rate(ddp, _DEFAULT_SAMPLE_RATE)
        while self._handles:
            self._handles.pop().remove()

    def _sample_rate(self, ddp: Any, rate: int) -> None:
        set_rate = getattr(ddp.reducer, "_set_ddp_runtime_logging_sample_rate", None)
        if set_rate is not None and self._on_cpu:
            set_rate(rate)

    def rows(self, step: int) -> Iterator[Line]:
        """The lines that the end of a watched step gives."""
        ddp = self._reference()
        if ddp is None:
            return
        ready = self._ready.copy()
        self._ready.clear()
        seen = {index for index, _ in ready}
        if seen:
            self._used_in.add(step)
        yield Grads(
            model=self.number,
            step=step,
            ready=ready,
            unused=[i for i in range(len(self._names)) if i not in seen],
            join=bool(getattr(getattr(ddp, "_join_config", None), "enable", False)),
            sync=bool(ddp.require_backward_grad_sync),
        )
        read = getattr(ddp, "_get_ddp_logging_data", None)
        data = dict(read()) if read is not None else {}
        rebuilt, buckets = _buckets(data, self._names)
        if buckets and buckets != self._buckets:
            self._buckets = buckets
            yield Layout(model=self.number, step=step, rebuilt=rebuilt, buckets=buckets)
        times = {k: data[k] for k in _TIMES if k in data}
        if times and self._on_cpu:
            yield Timing(model=self.number, step=step, **times)

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
