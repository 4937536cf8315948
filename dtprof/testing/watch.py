"""What a piece of code leaves behind in its process: files that it opens to write, threads, handlers, settings."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# audit event -> which of its arguments are paths that change
_CHANGES = {
    "os.mkdir": (0,), "os.rmdir": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
}  # fmt: skip
_THREADS = "threads"
_allowed: Path | None = None
_written: list[str] = []
_installed = False


@contextmanager
def writes_outside(folder: Path) -> Iterator[list[str]]:
    """Collect the paths outside ``folder`` that Python code of this process writes, makes, moves or removes meanwhile.

    Devices and byte-code caches do not count, nor do temporary files that are gone at the end. An audit hook cannot be
    removed; outside this context it does nothing.
    """
    global _allowed, _installed
    if not _installed:
        sys.addaudithook(_hear)
        _installed = True
    _written.clear()
    found: list[str] = []
    _allowed = folder.resolve()
    try:
        yield found
    finally:
        _allowed = None
        temporary = os.path.realpath(tempfile.gettempdir())
        found += [p for p in dict.fromkeys(_written) if os.path.lexists(p) or not Path(p).is_relative_to(temporary)]


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _allowed is None:
        return
    if event == "open":
        if isinstance(args[2], int) and args[2] & _WRITING:
            _note(args[0])
    elif event in _CHANGES:
        for place in _CHANGES[event]:
            _note(args[place], args[-1])


def _note(path: Any, dir_fd: Any = None) -> None:
    if _allowed is None or not isinstance(path, str | bytes | os.PathLike):
        return
    if isinstance(dir_fd, int) and dir_fd >= 0 and not os.path.isabs(path):
        return  # relative to an open folder, whose own path was noted when it was made
    full = os.path.realpath(os.fsdecode(path))
    if full.startswith(("/dev/", "/proc/")) or "__pycache__" in full:
        return
    if not Path(full).is_relative_to(_allowed):
        _written.append(full)


def changed(before: dict[str, Any]) -> list[str]:
    """Names of the settings that are not as they were, and of threads that were not there and keep the process alive."""
    after = settings()
    new = [t.name for t in threading.enumerate() if not t.daemon and t not in before[_THREADS]]
    names = [name for name, value in before.items() if name != _THREADS and after[name] != value]
    return names + [f"the thread {name}, which keeps the process alive" for name in new]


def settings() -> dict[str, Any]:
    """What a collector has to leave, or put back, as it found it: name -> value."""
    return {
        _THREADS: set(threading.enumerate()),
        "gc.callbacks": list(gc.callbacks),
        "the garbage collector's state": (gc.isenabled(), gc.get_threshold()),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "the working directory": os.getcwd(),
        "the environment": dict(os.environ),
    }
