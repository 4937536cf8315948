"""A program of its own: reads one allocator snapshot in a process with bounded memory, and writes its plain columns.

    python -I unpickle.py SNAPSHOT LIMIT_BYTES > COLUMNS

It imports the standard library alone and is run by path, so that starting it takes a few hundredths of a second and nothing
of a hostile file can reach the process that asked. Pickles of protocols 2 to 5 are read with an unpickler that knows no
global at all: dicts, lists, tuples, numbers and texts load, and anything that would need a class or a function is refused,
by name, before it is made. The output is a line of JSON ({name: [type code, count]} and the texts), then the columns, in order.
A refusal is one line on stderr, ``message<TAB>remedy``, and exit code 3.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import pickle
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
STATES = ("active_allocated", "active_pending_free", "inactive")
_CODES = {action: code for code, action in enumerate(ACTIONS)}
_OLD_STATES = {"active_awaiting_free": "active_pending_free"}
FRAMES = 16
COLUMNS = {
    "events": ("device", "action", "address", "size", "time_us", "stack"),
    "blocks": ("device", "segment", "address", "size", "requested", "state", "stack"),
    "segments": ("device", "address", "size", "expandable"),
}
TOO_MANY = ("it expands to more entries than it has bytes", "record the snapshot again")
_NONE = -(2**63)


# what an unpickler may raise on damaged bytes, whichever opcode the damage makes of them
DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError,
    RecursionError, NotImplementedError,
)  # fmt: skip


class RefusedError(Exception):
    """What is wrong, and the remedy."""


class PlainUnpickler(pickle.Unpickler):
    """Loads plain containers, numbers and texts, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every global."""
        what = f"its pickle asks for {module}.{name}, which no allocator snapshot needs; nothing of it was run"
        raise RefusedError(what, "load only files that torch.cuda.memory wrote")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to things outside the file."""
        raise RefusedError("its pickle refers to objects outside the file", "load only files that torch.cuda.memory wrote")


class Columns:
    """The columns of a snapshot as they grow; ``skipped`` counts entries that are none."""

    def __init__(self, most: int) -> None:
        self.data = {f"{table}.{c}": array.array("q") for table, columns in COLUMNS.items() for c in columns}
        self._append = {t: [self.data[f"{t}.{c}"].append for c in columns] for t, columns in COLUMNS.items()}
        self.stacks: dict[str, int] = {}
        self.skipped = 0
        self._by_object: dict[int, int] = {}
        self._left = most

    def reserve(self, count: int) -> None:
        """So many rows come; a file whose rows outnumber its bytes refers to the same ones again and again, and is refused."""
        self._left -= count
        if self._left < 0:
            raise RefusedError(*TOO_MANY)

    def add(self, table: str, *values: int) -> None:
        """One row."""
        self.reserve(1)
        for append, value in zip(self._append[table], values, strict=True):
            append(value)

    def skip(self) -> None:
        """An entry that is none; it counts against the limit too."""
        self.skipped += 1
        self.reserve(1)

    def stack(self, frames: Any) -> int:
        """Number of a stack, innermost frame first, -1 for none; lists that the file shares are looked at once."""
        if not isinstance(frames, list) or not frames:
            return -1
        known = self._by_object.get(id(frames))
        if known is None:
            text = "\n".join(_frame(f) for f in frames[:FRAMES] if isinstance(f, dict))
            known = self._by_object[id(frames)] = self.stacks.setdefault(text, len(self.stacks)) if text else -1
        return known

    def write(self, out: BinaryIO, extra: dict[str, Any]) -> None:
        """The header line, then every column."""
        header = {"columns": {k: len(v) for k, v in self.data.items()}, "stacks": list(self.stacks), **extra}
        out.write(json.dumps(header).encode("ascii") + b"\n")
        for column in self.data.values():
            out.write(column.tobytes())


def _frame(frame: dict[Any, Any]) -> str:
    name, file, line = (frame.get(k) for k in ("name", "filename", "line"))
    return f"{str(name)[:200]} ({str(file)[-200:]}:{line})"


def number(value: Any, default: int = 0) -> int:
    """An int that 64 bits hold, else the default; an address may use the sign bit."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return value if -(2**63) < value < 2**63 else value - 2**64 if 0 <= value < 2**64 else default


def read(path: Path) -> dict[str, Any]:
    """The snapshot as plain containers."""
    try:
        with path.open("rb") as file:
            loaded = PlainUnpickler(file).load()
    except RefusedError:
        raise
    except (MemoryError, OverflowError) as error:
        remedy = "record fewer entries (max_entries of torch.cuda.memory._record_memory_history)"
        raise RefusedError("it needs more memory than reading it may take", remedy) from error
    except DAMAGED as error:
        what = f"the pickle is damaged at byte {file_position(path, error)}({type(error).__name__}: {error})"
        raise RefusedError(what, "copy or record the snapshot again") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("segments"), list):
        raise RefusedError("a pickle, but no snapshot of the CUDA allocator", "give a file of torch.cuda.memory._dump_snapshot")
    return loaded


def file_position(path: Path, error: Exception) -> str:
    """Where a cut file ends; the unpickler reads ahead and does not say where it stopped otherwise."""
    return f"{path.stat().st_size} " if isinstance(error, EOFError) or "truncated" in str(error) else "unknown "


def dicts(value: Any, columns: Columns) -> Iterator[dict[Any, Any]]:
    """The dicts of a list; what is none is counted."""
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, dict):
            yield item
        else:
            columns.skip()


def segments(snapshot: dict[str, Any], columns: Columns) -> None:
    """Segments and their blocks; a block without an address follows the one before it, as in files of older torch."""
    for i, segment in enumerate(dicts(snapshot["segments"], columns)):
        device, base = number(segment.get("device")), number(segment.get("address"))
        columns.add("segments", device, base, number(segment.get("total_size")), int(segment.get("is_expandable") is True))
        at = base
        for block in dicts(segment.get("blocks"), columns):
            state = _OLD_STATES.get(str(block.get("state")), block.get("state"))
            size = number(block.get("size"))
            address = number(block.get("address"), at)
            at = address + size
            if state not in STATES or size < 0:
                columns.skip()
                continue
            requested = number(block.get("requested_size"), size)
            columns.add("blocks", device, i, address, size, requested, STATES.index(state), columns.stack(block.get("frames")))


def traces(snapshot: dict[str, Any], columns: Columns) -> None:
    """Events of every device, in order. Markers that move no memory are passed over, unknown actions counted."""
    every = snapshot.get("device_traces")
    for device, trace in enumerate(every if isinstance(every, list) else ()):
        if isinstance(trace, list):
            columns.reserve(len(trace))
            _events(trace, device, columns)


def _events(trace: list[Any], device: int, columns: Columns) -> None:
    """The rows of one device: a loop for millions, so it does without a call where the value is what it should be."""
    to_device, to_action, to_address, to_size, to_time, to_stack = (columns.data[f"events.{c}"] for c in COLUMNS["events"])
    stack = columns.stack
    for event in trace:
        action = event.get("action") if isinstance(event, dict) else None
        if action == "snapshot":
            continue
        code = _CODES.get(action) if isinstance(action, str) else None
        size = number(event.get("size"), -1) if code is not None else -1
        if code is None or size < 0:
            columns.skipped += 1
            continue
        to_device.append(device)
        to_action.append(code)
        to_address.append(number(event.get("addr")))
        to_size.append(size)
        to_time.append(number(event.get("time_us"), _NONE))
        to_stack.append(stack(event.get("frames")))


def main(path: Path, limit: int) -> int:
    """Read, and write the columns to stdout. Millions of dicts are made and none is garbage, so none is looked for."""
    gc.disable()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        snapshot = read(path)
        columns = Columns(path.stat().st_size)
        segments(snapshot, columns)
        traces(snapshot, columns)
    except RefusedError as refused:
        sys.stderr.write("\t".join(" ".join(str(a).split()) for a in refused.args) + "\n")
        return 3
    except MemoryError:
        sys.stderr.write("it needs more memory than reading it may take\trecord fewer entries (max_entries)\n")
        return 3
    columns.write(sys.stdout.buffer, {"skipped": columns.skipped})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
