"""What went over each TCP connection of the process, and for how long: Linux's own counters, per peer.

A collective lasts as long on all its ranks, whoever's link is slow; the counters of connections tell which one it is. Where
there are any, a daemon thread reads them five times a second, later once a second, at times of chance: so they are seen while
an operation is under way, too, in the share of time that this takes. Connections are looked for as steps end, at most every
five seconds.

Raw files
    none: facts in part.json, read by the analysis ``links``
Facts in part.json: ``node``, torchrun's number of the node; ``connections``, the largest of them, each with ``local`` and
``peer`` (address:port), ``sent`` (bytes that the peer has acknowledged), ``busy_us`` (time in which something was on its way
or waiting to leave, microseconds), ``unread_us`` (what of it the peer's full receive buffer is to blame for), ``readings``
(how often it was read), ``queued`` (at how many of these there were bytes that had not left yet) and ``limited``, bytes per
second of the newest readings at which the network, not the sender, was the limit: tcp_info of linux/tcp.h, there
tcpi_bytes_acked, tcpi_busy_time, tcpi_rwnd_limited, tcpi_notsent_bytes and tcpi_delivery_rate without
tcpi_delivery_rate_app_limited (Cheng and Cardwell, Delivery Rate Estimation, IETF draft).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.session.guard import caught
from dtprof.table import Table

# between two readings, on average: the first MANY, and later ones
INTERVAL_S, LATER_S, MANY = 0.2, 1.0, 200
# to the first look for connections, and between two of them at most
FIRST_LOOK_S, LOOK_S = 0.4, 5.0
LEAST_BYTES, MOST = 1 << 20, 64
# of struct tcp_info, in its order: tcpi_delivery_rate_app_limited (the lowest bit of its byte), tcpi_bytes_acked,
# tcpi_notsent_bytes, tcpi_delivery_rate (bytes/s), tcpi_busy_time and tcpi_rwnd_limited (us)
_COUNTERS = struct.Struct("=7xB112xQ16xI12xQQQ")
_ROOM = 512
# rates of one connection that are kept, the newest ones
_KEPT = 128
_FOLDER, _JOIN_S = "/proc/self/fd", 1.0


@dataclass
class Connection:
    """A connection between ``ends`` (local, peer), its newest counters and what was seen at its ``readings``."""

    descriptor: int
    ends: tuple[str, str]
    sent: int = 0
    busy_us: int = 0
    unread_us: int = 0
    readings: int = 0
    queued: int = 0
    limited: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def see(self, counters: tuple[int, ...]) -> None:
        """Note one more reading; one with less bytes is of another connection that got its descriptor."""
        limits, sent, queued, rate, busy, unread = counters
        if sent < self.sent:
            return
        self.sent, self.busy_us, self.unread_us = sent, busy, unread
        self.readings += 1
        self.queued += queued > 0
        if rate and not limits & 1:
            self.limited.append(rate)

    def told(self) -> dict[str, Any]:
        """As it stands in part.json."""
        counted = {"sent": self.sent, "busy_us": self.busy_us, "unread_us": self.unread_us}
        seen = {"readings": self.readings, "queued": self.queued, "limited": list(self.limited)}
        return {**dict(zip(("local", "peer"), self.ends, strict=True)), **counted, **seen}


class SocketsCollector:
    """Reads the counters of this process's own connections, and of no other's."""

    name = "sockets"

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._look, self._pause = 0.0, FIRST_LOOK_S
        self._open: tuple[Connection, ...] = ()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._error: Exception | None = None

    def start(self, context: Context) -> None:
        """Nothing but on Linux; elsewhere there are no such counters."""
        self._status = context.status
        self._status.sampled = True
        self._status.idle = sys.platform != "linux" or not os.path.isdir(_FOLDER)
        # torchrun's number of the node
        if (node := os.environ.get("GROUP_RANK")) is not None:
            self._status.facts["node"] = node
        if not self._status.idle:
            self._kernel = Kernel()
            self._look = time.monotonic() + FIRST_LOOK_S

    def on_step(self, step: int) -> None:
        """Pass on what the thread has read, and look for connections where the last look is some time ago."""
        if self._error is not None:
            raise self._error
        self._tell()
        now = time.monotonic()
        if now >= self._look:
            # twice as long to the next look each time: most connections are made at the beginning
            self._pause = min(2 * self._pause, LOOK_S)
            self._look = now + self._pause
            self._find()
            if self._open and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dtprof-sockets", daemon=True)
                self._thread.start()

    def _find(self) -> None:
        if self._kernel is None:
            return
        known = {(one.descriptor, one.ends): one for one in self._open}
        found = sorted(connections(self._kernel, open_sockets()), key=lambda one: -one.sent)[:MOST]
        self._open = tuple(known.get((one.descriptor, one.ends), one) for one in found)

    def _tell(self) -> None:
        if told := [one.told() for one in self._open if one.readings]:
            self._status.facts["connections"] = told

    def stop(self) -> None:
        """End the thread, and read a last time."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        before = self._open
        self._find()
        if self._kernel is not None:
            self._read(self._kernel)
        # what is closed by now keeps its last reading
        still = {id(one) for one in self._open}
        self._open += tuple(one for one in before if id(one) not in still)
        self._tell()

    # -- the thread

    def _run(self) -> None:
        self._error = caught(self._read_until_stopped)

    def _read_until_stopped(self) -> None:
        # both are its own: no other thread writes into its kernel's place, and the job's numbers by chance stay what they are
        kernel, chance, readings = Kernel(), random.Random(), 0
        # by chance, so that readings do not keep time with steps
        while not self._ended.wait(chance.uniform(0.5, 1.5) * (INTERVAL_S if readings < MANY else LATER_S)):
            began = time.thread_time_ns()
            self._read(kernel)
            readings += 1
            self._status.own_ns += time.thread_time_ns() - began

    def _read(self, kernel: Kernel) -> None:
        for one in self._open:
            if counters := kernel.counters(one.descriptor):
                one.see(counters)

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: what is noted are facts."""
        return {}


class Kernel:
    """What the kernel is asked for. It is called with the interpreter's lock held, and into the same place each time: to give
    the lock up and get it back would take longer than the call does.
    """

    def __init__(self) -> None:
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._buffer, self._size = ctypes.create_string_buffer(_ROOM), ctypes.c_uint32()
        self._places = self._buffer, ctypes.byref(self._size)

    def counters(self, descriptor: int) -> tuple[int, ...] | None:
        """``_COUNTERS`` of a connection; None for what is no TCP, or on an older kernel."""
        self._size.value = _ROOM
        failed = self._libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, *self._places)
        return None if failed or self._size.value < _COUNTERS.size else _COUNTERS.unpack_from(self._buffer)

    def ends(self, descriptor: int) -> tuple[str, str]:
        """address:port of a connection here and there; OSError where it has none of the internet's."""
        return self._address(self._libc.getsockname, descriptor), self._address(self._libc.getpeername, descriptor)

    def _address(self, ask: Any, descriptor: int) -> str:
        """Of sockaddr_in or sockaddr_in6; an IPv4 address inside IPv6 is written as the former."""
        self._size.value = _ROOM
        if ask(descriptor, *self._places):
            raise OSError(ctypes.get_errno(), "no address")
        raw = self._buffer.raw
        family, port = struct.unpack_from("=H", raw)[0], struct.unpack_from("!H", raw, 2)[0]
        if family == socket.AF_INET6:
            return f"{socket.inet_ntop(socket.AF_INET6, raw[8:24]).removeprefix('::ffff:')}:{port}"
        if family == socket.AF_INET:
            return f"{socket.inet_ntop(socket.AF_INET, raw[4:8])}:{port}"
        raise OSError(0, "no internet address")


def open_sockets() -> tuple[int, ...]:
    """Descriptors of the process that are sockets."""
    found = []
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError):
            if os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                found.append(int(name))
    return tuple(found)


def connections(kernel: Kernel, descriptors: Iterable[int]) -> Iterator[Connection]:
    """The TCP connections among these over which LEAST_BYTES or more were sent, not read yet; sockets are only asked."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            _, sent, *_ = kernel.counters(descriptor) or (0, 0)
            if sent >= LEAST_BYTES:
                yield Connection(descriptor, kernel.ends(descriptor), sent)
