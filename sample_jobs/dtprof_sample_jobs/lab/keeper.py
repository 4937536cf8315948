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
_ENDED_GRACE_S, _KILLED_GRACE_S = 0.1, 1.0


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


def remove(name: str, grace_s: float = 0.0) -> list[str]:
    """Remove one lab; returns in words what would not go away.

    The launcher may have started a process that is still on its way into the lab: such are waited for, for ``grace_s``.
    The namespaces are held open meanwhile, so that their numbers, by which processes are recognised, belong to no other.
    """
    end, deadline = time.monotonic() + grace_s, time.monotonic() + _PATIENCE_S
    left = []
    with contextlib.ExitStack() as held:
        spaces = _identities(_open(namespaces(name), held))
        while _kill_all(name, spaces) and time.monotonic() < deadline:
            time.sleep(0.02)
        for space in namespaces(name):
            done = subprocess.run(["ip", "netns", "del", space.name], capture_output=True, text=True, check=False)
            if done.returncode and space.exists():
                left.append(f"namespace {space.name} ({done.stderr.strip()})")
        while _kill_all(name, spaces) or _refused(name) or time.monotonic() < end:
            if time.monotonic() > deadline:
                left += [str(group) for group in cgroups(name)]
                break
            time.sleep(0.02)
    return left


def members(name: str) -> set[int]:
    """Processes that live in a namespace or in a cgroup of the lab."""
    return _members(name, _identities(namespaces(name)))


def _members(name: str, spaces: set[tuple[int, int]]) -> set[int]:
    pids = {int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _identities([p / "ns" / "net"]) & spaces}
    for group in cgroups(name):
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in (group / "cgroup.procs").read_text().split()}
    return pids - {os.getpid()}


def _open(paths: Iterable[Path], held: contextlib.ExitStack) -> list[int]:
    files = []
    for path in paths:
        with contextlib.suppress(OSError):
            files.append(held.enter_context(path.open("rb")).fileno())
    return files


def _identities(places: Iterable[Path | int]) -> set[tuple[int, int]]:
    """Device and inode of namespaces; this process's own is never among them."""
    own, found = os.stat("/proc/self/ns/net"), set()
    for place in places:
        with contextlib.suppress(OSError):
            status = os.stat(place)
            found.add((status.st_dev, status.st_ino))
    return found - {(own.st_dev, own.st_ino)}


def _kill_all(name: str, spaces: set[tuple[int, int]]) -> bool:
    """Kill the members of the lab, and no other process that has got the number of one meanwhile; True if there were any."""
    found = _members(name, spaces)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid in _members(name, spaces):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return bool(found)


def _refused(name: str) -> bool:
    """Remove the cgroups of the lab; True if one would not go: someone has entered it, or has not quite left."""
    refused = False
    for group in cgroups(name):
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            refused = True
    return refused


def main(name: str) -> int:
    """Wait for standard input to end, then remove the lab; it ends without a word when the launcher was killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ended = sys.stdin.buffer.read()
    left = remove(name, _ENDED_GRACE_S if ended else _KILLED_GRACE_S)
    for what in left:
        print(f"dtprof: the lab left {what}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
