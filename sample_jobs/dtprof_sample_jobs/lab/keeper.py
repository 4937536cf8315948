"""Takes a lab down: processes, cgroups, namespaces. Also a program of its own, which outlives the launcher.

Everything of a lab carries its name, ``dtprof-lab-<pid namespace>-<pid>-<start>-<number>``: the launcher's pid and the
time since boot at which it started, so that the name tells for ever whether its launcher still lives. As a program
(``python keeper.py NAME``) it waits for its standard input to end, which happens when the launcher closes it or dies of
whatever cause, and then removes the lab. If both were killed, the next lab to start removes what they left. Nothing
without such a name is touched. Standard library only: it starts in 20 ms and needs nothing installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PREFIX = "dtprof-lab-"
NETNS = Path("/run/netns")
_NAME = re.compile(rf"({PREFIX}(\d+)-(\d+)-(\d+)-\d+)-(?:hub|h\d+|r\d+)")
_PATIENCE_S = 10.0


def lab_name(number: int) -> str:
    """Name of this process's lab of that number."""
    pid = os.getpid()
    return f"{PREFIX}{_pid_namespace()}-{pid}-{_started(pid)}-{number}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, None where there is none (proc(5), field 22 of stat)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def cpu_cgroups() -> list[tuple[int, Path]]:
    """(1 or 2, this process's own cgroup) for each mounted hierarchy that may limit CPU time (cgroups(7))."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        version = {"cgroup": 1, "cgroup2": 2}.get(kind)
        wanted = version == 2 or (version == 1 and "cpu" in options.split(","))
        mine = own.get("" if version == 2 else "cpu")
        if version and wanted and mine is not None:
            found.append((version, Path(mount) / os.path.relpath(mine, root)))
    return sorted(found)


def namespaces(name: str = "") -> list[Path]:
    """Network namespaces of one lab, or of every lab."""
    return sorted(p for p in NETNS.glob(f"{PREFIX}*") if _belongs(p, name))


def cgroups(name: str = "") -> list[Path]:
    """Cgroups of one lab, or of every lab that was started in the cgroup of this process."""
    return sorted(p for _, own in cpu_cgroups() for p in own.glob(f"{PREFIX}*") if _belongs(p, name))


def _belongs(path: Path, name: str) -> bool:
    found = _NAME.fullmatch(path.name)
    return found is not None and name in ("", found[1])


def stale() -> set[str]:
    """Names of labs whose launcher is gone. Those of another pid namespace cannot be judged and are left alone."""
    names = set()
    for path in [*namespaces(), *cgroups()]:
        found = _NAME.fullmatch(path.name)
        if found and int(found[2]) == _pid_namespace() and _started(int(found[3])) != int(found[4]):
            names.add(found[1])
    return names


def remove(name: str) -> list[str]:
    """Remove one lab; returns in words what would not go away."""
    deadline = time.monotonic() + _PATIENCE_S
    while members(name) and time.monotonic() < deadline:
        for pid in members(name):
            _kill(pid, name)
        time.sleep(0.02)
    left = []
    for group in cgroups(name):
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            left.append(f"cgroup {group} ({error.strerror})")
    for space in namespaces(name):
        done = subprocess.run(["ip", "netns", "del", space.name], capture_output=True, text=True, check=False)
        if done.returncode and space.exists():
            left.append(f"namespace {space.name} ({done.stderr.strip()})")
    return left


def members(name: str) -> set[int]:
    """Processes that live in a namespace or in a cgroup of the lab."""
    spaces = _identities(namespaces(name))
    pids = {int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _identities([p / "ns" / "net"]) & spaces}
    for group in cgroups(name):
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
    return pids - {os.getpid()}


def _identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Device and inode of namespaces; this process's own is never among them."""
    own, found = os.stat("/proc/self/ns/net"), set()
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found.add((status.st_dev, status.st_ino))
    return found - {(own.st_dev, own.st_ino)}


def _kill(pid: int, name: str) -> None:
    """Kill a member of the lab, and no other process that has got its number meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if pid in members(name):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def main(name: str) -> int:
    """Wait for standard input to end, then remove the lab."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    left = remove(name)
    for what in left:
        print(f"dtprof: the lab left {what}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
