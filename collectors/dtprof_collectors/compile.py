"""torch.compile: compilations, recompilations and graph breaks of every step; nothing where torch._dynamo is not loaded.

Raw file
    compile.jsonl   one ``CompileLine`` per step in which something was compiled or a graph broke

A step in which something was compiled is a warm-up step, unless the job says what it is. Compilations are heard of through
the callbacks of ``torch._dynamo.callback``; those that went by before it was loaded, or after ``torch._dynamo.reset()``
and before the next reading, half a second later, are counted from ``torch._dynamo.utils.counters`` and have no time.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtprof.epoch import epoch_ns
from dtprof.jsonl import Appender, read_lines
from dtprof.protocols import Context
from dtprof.run import quality_rows
from dtprof.table import Table

FILE = "compile.jsonl"
MOST_REASONS = 8
REASON_LENGTH = 300
_FRAME = re.compile(r"/(\d+)")
_METRICS = (("compiles", ""), ("recompiles", ""), ("compile_time", "ns"), ("graph_breaks", ""))


class CompileLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step. ``recompiles`` are those of ``compiles`` that were not the first of their code; ``compile_time`` is ns.

    ``reasons`` say why guards failed, ``breaks`` why graphs broke, both as torch puts it, shortened.
    """

    step: int
    ts: int
    compiles: int
    recompiles: int
    compile_time: int
    graph_breaks: int
    reasons: list[str] = []
    breaks: list[str] = []


class CompileCollector:
    """Listens to torch._dynamo, as soon as the job has loaded it."""

    name = "compile"

    def __init__(self) -> None:
        self._lines: Appender | None = None
        self._began = 0
        self._ids: list[str] = []
        self._ns = 0
        self._frames = 0
        self._breaks: Counter[str] = Counter()
        self._seen_metrics = 0

    def start(self, context: Context) -> None:
        """Begin to listen, if there is something to listen to."""
        self._context, self._status = context, context.status
        self._status.sampled, self._status.warm_up = True, False
        if self._listen():
            self._frames, self._breaks = _frames(), _breaks()
            self._seen_metrics = len(_metrics())

    def _listen(self) -> bool:
        handler = _handler()
        if handler is None:
            return False
        # torch._dynamo.reset() forgets everybody
        if self._on_start not in handler.start_callbacks:
            handler.register_start_callback(self._on_start)
            handler.register_end_callback(self._on_end)
        return True

    def _on_start(self, args: Any) -> None:
        self._status.ask()
        self._began = time.perf_counter_ns()
        self._ids.append(str(getattr(args, "compile_id", "")))

    def _on_end(self, _args: Any) -> None:
        if self._began:
            self._ns += time.perf_counter_ns() - self._began
        self._began = 0

    def on_step(self, step: int) -> None:
        """Write what was compiled in the step, if anything was."""
        self._status.warm_up = False
        if not self._listen():
            return
        ids, self._ids = self._ids, []
        took, self._ns = self._ns, 0
        frames = _frames()
        if not ids and frames == self._frames:
            return
        unheard = max(frames - self._frames, 0) if not ids else 0
        breaks = _breaks()
        broken = breaks - self._breaks
        self._frames, self._breaks = frames, breaks
        self._status.warm_up = bool(ids or unheard)
        # the next step is none any more
        self._status.ask()
        self._write(step, ids, unheard, took, broken)

    def _write(self, step: int, ids: list[str], unheard: int, took: int, broken: Counter[str]) -> None:
        metrics = _metrics()
        new, self._seen_metrics = metrics[self._seen_metrics :] if len(metrics) > self._seen_metrics else [], len(metrics)
        reasons = dict.fromkeys(text for m in new if (text := _short(getattr(m, "recompile_reason", None))))
        if self._lines is None:
            self._lines = Appender(self._context.folder / FILE)
        line = CompileLine(
            step=step, ts=epoch_ns(), compiles=len(ids) + unheard, recompiles=sum(map(_is_again, ids)), compile_time=took,
            graph_breaks=sum(broken.values()), reasons=list(reasons)[:MOST_REASONS],
            breaks=[_short(text) for text in list(broken)[:MOST_REASONS]],
        )  # fmt: skip
        self._lines.add(line)

    def stop(self) -> None:
        """Stop listening, close the file."""
        handler = _handler()
        if handler is not None:
            for listeners, own in ((handler.start_callbacks, self._on_start), (handler.end_callbacks, self._on_end)):
                if own in listeners:
                    listeners.remove(own)
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """``metrics``: compiles, recompiles, compile_time and graph_breaks of the steps that had any; ``quality``: why."""
        lines, bad = read_lines(folder / FILE, CompileLine)
        rows = [
            {"step": line.step, "metric": metric, "value": float(getattr(line, metric)), "unit": unit}
            for line in lines
            for metric, unit in _METRICS
        ]
        tables = {"metrics": Table.from_rows("metrics", rows)}
        why = [("recompiled", Counter(r for line in lines for r in line.reasons), "those steps are warm-up steps")]
        why.append(("graph break", Counter(b for line in lines for b in line.breaks), "what follows is another graph"))
        told = [("torch.compile", f"{what}: {text}", count, effect) for what, of, effect in why for text, count in of.items()]
        if bad:
            told.append((FILE, "torn lines", bad, "those compilations are not known"))
        if told:
            tables["quality"] = quality_rows(told)
        return tables


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)


def _counters() -> Any:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})


def _frames() -> int:
    """How many frames were handed to the compiler so far."""
    counters = _counters()
    return int(counters["frames"].get("total", 0)) if "frames" in counters else 0


def _breaks() -> Counter[str]:
    """Graph breaks so far, by reason."""
    counters = _counters()
    return Counter(counters["graph_break"]) if "graph_break" in counters else Counter()


def _metrics() -> list[Any]:
    """What torch keeps of its last compilations."""
    read = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    return list(read()) if read is not None else []


def _is_again(compile_id: str) -> bool:
    """Is "frame/compilation" another one than the first of its frame?"""
    found = _FRAME.search(compile_id)
    return found is not None and int(found.group(1)) > 0


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:REASON_LENGTH] if text else ""
