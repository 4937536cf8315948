"""Which runs lie where the dashboard was pointed at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from dtprof.ingest import readers
from dtprof.ingest.recorded import RecordedReader
from dtprof.numbers import size
from dtprof.plugins import attempt
from dtprof.protocols import Reader

# folders are looked into this deep, and at most this many entries are looked at
DEEP, MOST = 2, 2000
# of a folder this many files are looked into to tell whether it holds traces
FEW = 12
# reading a run of so many bytes for the first time may take seconds
LARGE = 10_000_000
HERE = "."


@dataclass(frozen=True)
class Entry:
    """One run: ``name`` is its path below the root (``.`` is the root itself); ``changed_ns`` when it last changed.

    ``bytes`` is the size of its files, as they lie there: traces are often compressed.
    """

    name: str
    path: Path
    changed_ns: int
    recorded: bool
    bytes: int

    @property
    def label(self) -> str:
        """The name for people, with the size where that is large: it is told before the run is chosen."""
        name = self.path.resolve().name if self.name == HERE else self.name
        return f"{name} · {size(self.bytes)}" if self.bytes >= LARGE else name


def is_run(path: Path) -> bool:
    """Is it a recorded run, a file that a reader knows, or a folder of such files and without recorded runs of its own?

    A reader that knows a file need not know a folder of them: of allocator snapshots each is a run.
    """
    recorded = RecordedReader()
    if not path.is_dir():
        return _reader_of(path) is not None
    if recorded.sniff(path):
        return True
    children = _children(path)
    if any(child.is_dir() and recorded.sniff(child) for child in children[:MOST]):
        return False
    found = (_reader_of(child) for child in [c for c in children if c.is_file()][:FEW])
    return any(reader is not None and _knows(reader, path) for reader in found)


def _reader_of(path: Path) -> Reader | None:
    """The reader that knows the file. Looked into once while it is unchanged."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _sniffed(path, stat.st_mtime_ns, stat.st_size) if stat.st_size > 0 else None


@lru_cache(4 * MOST)
def _sniffed(path: Path, changed_ns: int, size: int) -> Reader | None:
    return next((reader for reader in readers() if _knows(reader, path)), None)


def _knows(reader: Reader, path: Path) -> bool:
    """A reader of a plugin that breaks knows nothing."""
    return bool(attempt(partial(reader.sniff, path))[0])


def entries(root: Path) -> list[Entry]:
    """The runs at and below ``root``, newest first; the root alone where it is a run."""
    if is_run(root):
        return [_entry(HERE, root)]
    found = [_entry(str(path.relative_to(root)), path) for path in _below(root)]
    return sorted(found, key=lambda e: (-e.changed_ns, e.name))


def _entry(name: str, path: Path) -> Entry:
    files = watermark(path)
    changed = max((stamp for _, stamp, _ in files), default=0)
    return Entry(name, path, changed, RecordedReader().sniff(path), sum(many for _, _, many in files))


def _below(root: Path) -> Iterator[Path]:
    """Runs below a folder, nearest first; a run is not looked into."""
    level, seen = [root], 0
    for _ in range(DEEP):
        following: list[Path] = []
        for folder in level:
            for path in _children(folder):
                seen += 1
                if seen > MOST:
                    return
                if is_run(path):
                    yield path
                elif path.is_dir() and not path.is_symlink():
                    following.append(path)
        level = following


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError:
        return []


def watermark(path: Path) -> tuple[tuple[str, int, int], ...]:
    """(name, modification time ns, bytes) of a file, or of the files in a folder and its part folders; () where it is gone."""
    found: list[tuple[str, int, int]] = []
    for name in (HERE, *_files(path)):
        try:
            stat = os.stat(path / name)
        except OSError:
            continue
        found.append((name, stat.st_mtime_ns, 0 if name == HERE and path.is_dir() else stat.st_size))
    return tuple(found)


def _files(path: Path) -> list[str]:
    """Files of a run by name; derived tables are left out."""
    if not path.is_dir():
        return []
    names: list[str] = []
    for child in _children(path)[:MOST]:
        if child.name.startswith("part") and child.is_dir():
            names += [str(p.relative_to(path)) for p in _children(child)[:MOST] if p.is_file()]
        elif child.is_file():
            names.append(child.name)
    return names
