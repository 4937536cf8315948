"""``metric``: a number of the current step that only the job knows, such as tokens per expert, staleness, a loss scale.

    dtprof.metric("moe_tokens", 812, unit="tokens", layer="blocks.3", expert=5)

It becomes a row of the table ``metrics``. Does nothing where no session runs, and may be called from any thread. A tensor on a
device is not read, for that would wait for the device; at most MAX_PER_STEP numbers of a step are kept. Both are said in
part.json. What is no number switches the metrics of that name off, and is noted.

Raw file ``metrics.jsonl`` (a ring of two pieces, see ``dtprof.jsonl``): one line per step that had any, ``{"step", "metrics":
[[name, value, unit, layer, expert, bucket], …]}``, null for what was not given and for a value that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtprof.jsonl import Appender
from dtprof.session.guard import Guard

FILE = "metrics.jsonl"
MAX_PER_STEP = 20_000

Row = tuple[str, float, str, str | None, int | None, int | None]


class MetricLog:
    """The numbers of one session; ``note`` is told, once or more often, what is left out."""

    def __init__(self, guard: Guard, note: Callable[[str], None]) -> None:
        self.guard, self._note = guard, note
        self._rows: list[Row] = []
        self._lines: Appender | None = None

    @property
    def waiting(self) -> bool:
        """Are there numbers of the step that ends?"""
        return bool(self._rows)

    def add(self, name: str, value: Any, unit: str, layer: str | None, expert: int | None, bucket: int | None) -> None:
        """Keep one number until the step ends."""
        if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
            self._note(f"metric {name} lies on a device and was not read; pass .item() if the wait is acceptable")
        elif len(self._rows) >= MAX_PER_STEP:
            self._note(f"more than {MAX_PER_STEP} metrics in a step; the rest is left out")
        else:
            place = None if layer is None else str(layer)
            self._rows.append((str(name), float(value), str(unit), place, _whole(expert), _whole(bucket)))

    def write(self, folder: Path, step: int) -> None:
        """The step has ended: one line of what it had."""
        rows, self._rows = self._rows, []
        if rows:
            self._lines = self._lines or Appender(folder / FILE)
            self._lines.add({"step": step, "metrics": rows})

    def close(self) -> None:
        """Write what waits."""
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()


_log: MetricLog | None = None


def listen(log: MetricLog | None) -> None:
    """From now on metrics go to this log; None: nowhere."""
    global _log
    _log = log


def metric(
    name: str,
    value: Any,
    *,
    unit: str = "",
    layer: str | None = None,
    expert: int | None = None,
    bucket: int | None = None,
) -> None:
    """Record a number (or a tensor of one element on the CPU) of the current step of the running session."""
    log = _log
    if log is not None and not log.guard.is_off(f"metric {name}"):
        log.guard.call(f"metric {name}", "add", -1, log.add, name, value, unit, layer, expert, bucket)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
