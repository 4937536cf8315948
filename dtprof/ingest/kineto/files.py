"""Which files of a folder are traces, and what their names say about rank, host, process and capture window."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dtprof.errors import InputError
from dtprof.ingest.kineto.scan import sniff

_ENDINGS = (".json", ".json.gz", ".gz", ".json.tmp")
_RANK = (
    re.compile(r"(?:^|[^a-z])rank[-_=.]?(\d+)", re.I),
    re.compile(r"(?:^|[^a-z])worker[-_=.]?(\d+)", re.I),
)
# a folder names a rank only where that is what it is called: "lora_rank16" is an experiment
_RANK_FOLDER = re.compile(r"^(?:(?:node|host)[-_]?\w*[-_])?(?:rank|worker)[-_=.]?(\d+)$", re.I)
# torch's tensorboard_trace_handler: HOST_PID.NANOSECONDS.pt.trace.json; the host may hold dots and underscores
_HANDLER = re.compile(r"^(?P<host>.+)_(?P<pid>\d+)\.(?P<stamp>\d{10,20})\.pt\.trace\.json(?:\.gz)?$")
_WINDOW = re.compile(r"\.(\d{10,20})\.pt\.trace\.json(?:\.gz)?$")
_LIBKINETO = re.compile(r"^libkineto_activities_(?P<pid>\d+)(?:[._].*)?\.json(?:\.gz)?$")


@dataclass(frozen=True)
class FileHint:
    """What a file name says: ``window_ns`` orders the captures of one process (as written, its unit is the writer's)."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    window_ns: int | None = None


def hint_of(path: Path) -> FileHint:
    """Rank, host, process and window from a file name, or from its folder's name for the rank."""
    name = path.name
    rank = _rank_in(name)
    handler, library, window = _HANDLER.match(name), _LIBKINETO.match(name), _WINDOW.search(name)
    if handler and rank is None:
        return FileHint(_rank_of(path.parent), handler["host"], int(handler["pid"]), int(handler["stamp"]))
    return FileHint(
        rank if rank is not None else _rank_of(path.parent),
        pid=int(library["pid"]) if library else None,
        window_ns=int(window[1]) if window else None,
    )


def _rank_of(folder: Path) -> int | None:
    found = _RANK_FOLDER.match(folder.name)
    return int(found[1]) if found else None


def _rank_in(name: str) -> int | None:
    return next((int(found[1]) for found in (pattern.search(name) for pattern in _RANK) if found), None)


@dataclass(frozen=True)
class Found:
    """The traces under a path, and the JSON or gzip files beside them that are none."""

    traces: tuple[Path, ...]
    passed_over: tuple[Path, ...]


def find(path: Path | str) -> Found:
    """Look at a file, or at a folder and the folders in it; content decides, not names."""
    path = Path(path)
    if path.is_file():
        return Found((path,), ())
    try:
        every = _walk(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})", "check the path and its permissions") from error
    candidates = [p for p in every if p.is_dir() or p.name.lower().endswith(_ENDINGS)]
    traces = [p for p in candidates if not p.is_dir() and sniff(p)]
    return Found(tuple(sorted(traces, key=_order)), tuple(sorted(set(candidates) - set(traces))))


def trace_files(path: Path | str) -> list[Path]:
    """The traces under ``path``, in the order of the numbers in their names; ``find`` also says what was passed over.

    A file is returned as it is. Raises InputError where the path does not exist or cannot be read.
    """
    return list(find(path).traces)


def _walk(folder: Path) -> list[Path]:
    """Files of a folder and of the folders in it; a folder among the results is one that may not be read."""
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not os.access(entry, os.R_OK | os.X_OK):
            found.append(entry)
        elif entry.is_dir():
            found += [p for p in entry.iterdir() if p.is_file() and not p.name.startswith(".")]
        elif entry.is_file() or (entry.is_symlink() and not entry.exists()):
            found.append(entry)
    return found


def _order(path: Path) -> tuple[str, list[tuple[int, str]]]:
    parts = re.split(r"(\d+)", path.name)
    return str(path.parent), [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
