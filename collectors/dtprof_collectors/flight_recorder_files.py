"""torch's flight-recorder dumps as files: JSON, or the pickle that a timed-out process group leaves behind.

A dump is a dict with ``entries`` (one per operation), ``pg_config`` and, in newer torch, ``pg_status``. Its pickles hold plain
values only, so that nothing else is ever loaded from one: no class, no function, no persistent object.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtprof.errors import InputError
from dtprof.jsonl import Int64

HEAD_BYTES = 64 << 10
_PICKLE = re.compile(rb"^\x80[\x02-\x05]")
_KEYS = (b"profiling_name", b"pg_config", b"pg_status", b"collective_seq_id")
_TAKE = "give the dump of one rank: nccl_trace_rank_N, or the JSON of _dump_nccl_trace_json"
_RANK = re.compile(r"rank[-_=.]?(\d+)", re.I)


def is_dump(path: Path) -> bool:
    """Is this file a flight-recorder dump? Looks at its first 64 KiB; never raises."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    known = any(key in head for key in _KEYS)
    if _PICKLE.match(head):
        return known
    return known and head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and b'"entries"' in head


def rank_in(name: str) -> int | None:
    """The rank in a file name such as nccl_trace_rank_3, or the number at its end."""
    found = _RANK.search(name) or re.search(r"(\d+)(?:\.(?:json|pickle|pkl))?$", name)
    return int(found[1]) if found else None


# what an unpickler may raise on damaged bytes, whichever opcode the damage makes of them
DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError,
    RecursionError, NotImplementedError, MemoryError,
)  # fmt: skip


def read_dump(path: Path) -> dict[str, Any]:
    """The dump, checked in outline; InputError names the file where it is none, is cut off, or holds more than plain values."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", "check its permissions") from error
    try:
        found = _Plain(io.BytesIO(data)).load() if _PICKLE.match(data) else json.loads(data)
    except Forbidden as error:
        raise InputError(f"{path}: refused: {error}", "a flight-recorder dump holds plain values only") from error
    except DAMAGED as error:
        raise InputError(f"{path}: cut off or damaged ({type(error).__name__}: {error})", _TAKE) from error
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise InputError(f"{path}: no flight-recorder dump: it has no list of entries", _TAKE)
    return found


class Entry(msgspec.Struct, kw_only=True):
    """What an entry must be, as far as it is read; keys beyond these are ignored, and in newer versions there are some."""

    record_id: Int64 | None = None
    process_group: list[str] = []
    collective_seq_id: Int64 | None = None
    p2p_seq_id: Int64 | None = None
    op_id: Int64 | None = None
    profiling_name: str = ""
    time_created_ns: Int64 | None = None
    duration_ms: float | None = None
    input_sizes: list[list[Int64]] | None = None
    input_dtypes: list[str] | None = None
    output_sizes: list[list[Int64]] | None = None
    output_dtypes: list[str] | None = None
    state: str | None = None
    time_discovered_started_ns: Int64 | None = None
    time_discovered_completed_ns: Int64 | None = None
    retired: bool | None = None
    is_p2p: bool = False
    frames: Any = None


def entries_of(found: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The entries of a dump, and how many are none."""
    good = []
    for raw in found["entries"]:
        with contextlib.suppress(msgspec.ValidationError):
            good.append(msgspec.structs.asdict(msgspec.convert(raw, Entry)))
    return good, len(found["entries"]) - len(good)


class Forbidden(pickle.UnpicklingError):
    """A pickle asks for something that is no plain value."""


class _Plain(pickle._Unpickler):
    """Loads dicts, lists, tuples, texts, bytes and numbers.

    The one in Python, for its memo is a dict: the one in C makes an array as long as any number that the file names.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise Forbidden(f"it asks for {module}.{name}")

    def get_extension(self, code: int) -> Any:
        raise Forbidden(f"it asks for the extension {code}")

    def persistent_load(self, pid: Any) -> Any:
        raise Forbidden("it asks for a persistent object")
