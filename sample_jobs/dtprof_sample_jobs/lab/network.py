"""The lab's network: a namespace per host, joined by a bridge or by the delaying relay, shaped where it leaves a host.

    h0: eth0 (tbf) ── p0 ┐                           h0: eth0 (tbf) ── TAP ┐
    h1: eth0 (tbf) ── p1 ┼ bridge in the hub   or    h1: eth0 (tbf) ── TAP ┼ relay, which holds frames for rtt / 2
    …                    ┘                           …                     ┘

No interface is made in the namespace of the machine, and nothing connects the lab to it: all traffic stays inside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtprof.errors import DtprofError, InputError, MissingExtra
from dtprof_sample_jobs.lab import keeper, relay
from dtprof_sample_jobs.lab.cgroups import limit_cpus
from dtprof_sample_jobs.lab.spec import LabSpec

INTERFACE = "eth0"
MTU = 9000
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
# a queue of 50 ms, 4 MB at least; a bucket of 200 us, and never less than one unsegmented frame of 64 KiB
_QUEUE_S, _QUEUE_BYTES = 0.05, 4_000_000
_BURST_S, _BURST_BYTES = 200e-6, 70_000
# a connection starts anew at full speed and may fill a long fat pipe: the same in every run
_SETTINGS = {
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_rmem": "4096 1048576 67108864",
    "net/ipv4/tcp_wmem": "4096 1048576 67108864",
}
_numbers = itertools.count()


@dataclass(frozen=True)
class Lab:
    """A lab that is up: its name, what was asked, and rank -> cgroup for ranks with a limit."""

    name: str
    spec: LabSpec
    cgroups: dict[int, Path]

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"10.77.0.{host + 1}"

    def inside(self, rank: int, command: list[str]) -> list[str]:
        """The command line that runs ``command`` where a rank lives: in its host's namespace and in its cgroup."""
        enter = [*_enter(f"{self.name}-h{self.spec.host_of(rank)}"), *command]
        group = self.cgroups.get(rank)
        return enter if group is None else ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), *enter]


@contextlib.contextmanager
def lab(spec: LabSpec) -> Iterator[Lab]:
    """Set the lab up, and take it down at the end, also when this process is killed meanwhile.

    Raises MissingExtra where a program is missing and InputError where the machine does not permit it.
    """
    require_programs()
    for name in keeper.stale():
        keeper.remove(name)
    name = keeper.lab_name(next(_numbers))
    program = [sys.executable, "-I", "-S", keeper.__file__, name]
    watch = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    relays: list[subprocess.Popen[str]] = []
    try:
        _build(name, spec, relays)
        yield Lab(name, spec, limit_cpus(name, spec.cpus))
    finally:
        with contextlib.suppress(BrokenPipeError):
            watch.communicate(b"ended")
        if watch.returncode and (left := keeper.remove(name)):
            raise DtprofError(f"the lab could not be taken down: {', '.join(left)}", "remove it by hand")
        for process in relays:
            process.wait()


def require_programs() -> None:
    """MissingExtra with the install command unless the programs that make a lab are there."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise MissingExtra(f"the lab needs the program {program}, which is not installed", f"apt-get install {package}")


def _build(name: str, spec: LabSpec, relays: list[subprocess.Popen[str]]) -> None:
    hub, hosts = f"{name}-hub", [f"{name}-h{h}" for h in range(spec.hosts)]
    for space in (hub, *hosts):
        _call(["ip", "netns", "add", space])
        _settle(space)
    if spec.rtt_us:
        relays.append(_start_relay(hub, hosts, spec.rtt_us))
    else:
        _call(["ip", "-n", hub, "-batch", "-"], f"link add br0 type bridge\nlink set br0 mtu {MTU} up\n")
    for number, host in enumerate(hosts):
        if not spec.rtt_us:
            port = f"p{number}"
            _call(["ip", "link", "add", INTERFACE, "netns", host, "type", "veth", "peer", "name", port, "netns", hub])
            _call(["ip", "-n", hub, "link", "set", port, "master", "br0", "mtu", str(MTU), "up"])
        lines = [
            "link set lo up",
            f"addr add 10.77.0.{number + 1}/24 dev {INTERFACE}",
            f"link set {INTERFACE} mtu {MTU} txqueuelen 10000 up",
        ]
        _call(["ip", "-n", host, "-batch", "-"], "\n".join(lines) + "\n")
        if number in spec.rates:
            _call(["tc", "-n", host, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *bucket(spec.rates[number])])


def bucket(rate: int) -> list[str]:
    """Arguments of tc-tbf(8) for a rate in bits per second."""
    burst = max(_BURST_BYTES, round(rate / 8 * _BURST_S))
    limit = max(_QUEUE_BYTES, round(rate / 8 * _QUEUE_S))
    return ["rate", f"{rate}bit", "burst", str(burst), "limit", str(limit)]


def _enter(space: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{space}"]


def _settle(space: str) -> None:
    """TCP settings of a namespace; no IPv6, whose neighbour discovery would be the only other traffic."""
    lines = [f"echo {value} > /proc/sys/{key}" for key, value in _SETTINGS.items()]
    lines.append("for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $f ] || echo 1 > $f; done")
    _call([*_enter(space), "sh", "-e"], "\n".join(lines))


def _start_relay(hub: str, hosts: list[str], rtt_us: int) -> subprocess.Popen[str]:
    command = [*_enter(hub), sys.executable, "-I", "-S", relay.__file__, str(rtt_us // 2), INTERFACE, *hosts]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        if process.stdout.readline() != "ready\n":
            process.kill()
            said = process.stderr.read().strip().splitlines()
            process.wait()
            raise InputError(f"the lab's relay cannot open TAP devices ({said[-1] if said else 'no word'})", _hint("tun"))
    return process


def _call(command: list[str], text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise InputError(f"this machine does not permit the lab: {' '.join(command[:4])}: {said}", _hint("sch_tbf"))


def _hint(module: str) -> str:
    if os.geteuid():
        return "run it as root"
    return f"it needs CAP_SYS_ADMIN and CAP_NET_ADMIN (a container: --privileged) and the kernel module {module}"
