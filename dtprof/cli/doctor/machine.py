"""What the system permits and what the disk gives: tried, where trying is harmless, instead of guessed from settings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dtprof.cli.doctor.item import Item

SYSTEM, DISK = "system", "disk"
WRITE_BYTES = 32 << 20
_LEAST_FREE = 2 << 30
_LEAST_SPEED = 50e6
_PTRACE_SEIZE = 0x4206
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "arm64": 241}


def schedstat() -> list[Item]:
    """/proc/self/schedstat: how long a thread could run and had no core."""
    gives = "time in which a rank waits for a core"
    try:
        ran = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError as error:
        return [Item(SYSTEM, "schedstat", "missing", f"cannot be read ({error.strerror})", gives)]
    if len(ran) < 2 or ran[0] == "0":
        return [Item(SYSTEM, "schedstat", "missing", "this kernel does not count", gives, "sysctl kernel.sched_schedstats=1")]
    return [Item(SYSTEM, "schedstat", "ok", "counts", gives)]


def ptrace() -> list[Item]:
    """May one process look into another one of the same user?"""
    gives = "stacks of a process that hangs, from outside"
    with _sleeper() as child:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        allowed = libc.ptrace(_PTRACE_SEIZE, child.pid, None, None) == 0
        why = os.strerror(ctypes.get_errno())
    if not allowed:
        get = "start the container with --cap-add=SYS_PTRACE"
        return [Item(SYSTEM, "ptrace", "missing", f"refused ({why})", gives, get)]
    scope = _number("/proc/sys/kernel/yama/ptrace_scope") or 0
    if scope > 0 and not _may("CAP_SYS_PTRACE"):
        found = f"own children only (kernel.yama.ptrace_scope = {scope})"
        return [Item(SYSTEM, "ptrace", "limited", found, gives, "sysctl kernel.yama.ptrace_scope=0   # as root")]
    return [Item(SYSTEM, "ptrace", "ok", "allowed", gives)]


@contextlib.contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that waits; gone afterwards."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


_CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def _may(capability: str) -> bool:
    """Has this process the capability?"""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAPABILITIES[capability] & 1)
    return False


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def perf() -> list[Item]:
    """May this user count processor events? Tried with a cycle counter, then with the processor clock."""
    gives = "processor time below Python (perf record)"
    level = _number("/proc/sys/kernel/perf_event_paranoid")
    said = "" if level is None else f" (kernel.perf_event_paranoid = {level})"
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return [Item(SYSTEM, "perf events", "unknown", f"not tried on {platform.machine()}", gives)]
    clock = _perf_opens(number, 1, 0)
    if clock:
        get = "sysctl kernel.perf_event_paranoid=1   # as root; in a container also --cap-add=PERFMON"
        return [Item(SYSTEM, "perf events", "missing", f"refused: {clock}{said}", gives, get)]
    cycles = _perf_opens(number, 0, 0)
    if cycles:
        return [Item(SYSTEM, "perf events", "limited", f"clock only; no cycle counter here ({cycles}){said}", gives)]
    return [Item(SYSTEM, "perf events", "ok", f"allowed{said}", gives)]


def _perf_opens(number: int, kind: int, config: int) -> str:
    """Open and close one event of this process, in user mode; what went wrong, or nothing."""
    disabled_and_user_only = 1 | 1 << 5 | 1 << 6
    attributes = struct.pack("IIQQQQQ", kind, 112, config, 0, 0, 0, disabled_and_user_only).ljust(112, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(number, ctypes.c_char_p(attributes), 0, -1, -1, 0)
    if fd < 0:
        return os.strerror(ctypes.get_errno())
    os.close(fd)
    return ""


def shared_memory() -> list[Item]:
    """/dev/shm, through which data-loader workers and NCCL pass data."""
    gives = "data-loader workers; NCCL within a host"
    try:
        about = os.statvfs("/dev/shm")
    except OSError:
        return [Item(SYSTEM, "/dev/shm", "missing", "not there", gives, "start the container with --ipc=host")]
    free = about.f_bavail * about.f_frsize
    small = free < 1 << 30
    get = "start the container with --shm-size=8g or --ipc=host" if small else None
    return [Item(SYSTEM, "/dev/shm", "limited" if small else "ok", f"{_size(free)} free", gives, get)]


def disk(runs: Path) -> list[Item]:
    """Space and speed of the folder that runs are written into, or of the nearest one above it that exists."""
    gives = "raw files of a run: up to 64 MiB a collector and rank, and the traces"
    folder = runs.absolute()
    try:
        while not folder.is_dir() and folder != folder.parent:
            folder = folder.parent
        about = os.statvfs(folder)
        free = about.f_bavail * about.f_frsize
        speed = _write_speed(folder, min(WRITE_BYTES, free // 4))
    except OSError as error:
        get = "give a folder that can be written to: --out DIR"
        return [Item(DISK, "runs", "missing", f"{folder}: cannot be written to ({error.strerror})", gives, get)]
    found = f"{folder}: {_size(free)} free, {speed / 1e6:,.0f} MB/s"
    poor = free < _LEAST_FREE or speed < _LEAST_SPEED
    return [
        Item(DISK, "runs", "limited" if poor else "ok", found, gives, "a local disk with space: --out DIR" if poor else None)
    ]


def _write_speed(folder: Path, size: int) -> float:
    """Bytes per second of a synchronised write; the file has no name and leaves nothing behind."""
    data = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(max(size >> 20, 1)):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return max(size, 1 << 20) / (time.perf_counter() - began)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.0f} MiB"
