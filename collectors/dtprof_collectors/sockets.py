"""What went over each TCP connection of the process, and for how long: Linux's own counters, per peer.

A collective lasts as long on all its ranks, whoever's link is slow; the counters of connections tell which one it is.

Raw files
    none: facts in part.json, read by the analysis ``links``
Facts in part.json: ``node``, torchrun's number of the node; ``connections``, the largest of them, each with ``local`` and
``peer`` (address:port), ``sent`` (bytes that the peer has acknowledged), ``busy_us`` (time in which something was on its way
or waiting to leave, microseconds), ``unread_us`` (what of it the peer's full receive buffer is to blame for), ``readings``
(how often it was read) and ``limited``, bytes per second of the newest readings at which the network, not the sender, was the
limit: tcp_info of linux/tcp.h, there tcpi_bytes_acked, tcpi_busy_time, tcpi_rwnd_limited and tcpi_delivery_rate without
tcpi_delivery_rate_app_limited (Cheng and Cardwell, Delivery Rate Estimation, IETF draft). Read twice a second at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dtprof.protocols import Context
from dtprof.table import Table

INTERVAL_S = 0.4
# between two looks for new connections, at most
LOOK_S = 5.0
LEAST_BYTES, MOST = 1 << 20, 64
# struct tcp_info: tcpi_delivery_rate_app_limited (the lowest bit of its byte), tcpi_bytes_acked, tcpi_delivery_rate (bytes/s),
# tcpi_busy_time (us), tcpi_rwnd_limited (us), all of 64 bits
_APP_LIMITED, _ACKED, _RATE, _BUSY, _UNREAD, _SIZE = 7, 120, 160, 168, 176, 184
# rates of one connection that are kept, the newest ones
_KEPT = 512
_FOLDER = "/proc/self/fd"


Ends = tuple[str, str]


class Connection(NamedTuple):
    """One reading of a connection; ``rate`` is 0 where the sender, not the network, was the limit."""

    ends: Ends
    sent: int
    busy_us: int
    unread_us: int
    rate: int
    descriptor: int


@dataclass
class Seen:
    """How often a connection was read, and the rates at which the network was the limit."""

    readings: int = 0
    limited: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))


class SocketsCollector:
    """Reads the counters of this process's own connections, and of no other's."""

    name = "sockets"

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self._next = 0.0
        self._look, self._pause = 0.0, INTERVAL_S
        self._open: tuple[int, ...] = ()
        self._seen: dict[Ends, Seen] = {}

    def start(self, context: Context) -> None:
        """Nothing but on Linux; elsewhere there are no such counters."""
        self._status = context.status
        self._status.sampled = True
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" and os.path.isdir(_FOLDER) else None
        self._status.idle = self._libc is None
        self._next = time.monotonic() + INTERVAL_S
        # torchrun's number of the node
        if (node := os.environ.get("GROUP_RANK")) is not None:
            self._status.facts["node"] = node

    def on_step(self, step: int) -> None:
        """Read again where the last reading is some time old: connections may be gone at the end."""
        if time.monotonic() >= self._next:
            self._read()

    def _read(self) -> None:
        now = time.monotonic()
        if self._libc is None:
            return
        look = now >= self._look
        if look:
            # twice as long to the next look each time: most connections are made at the beginning
            self._pause = min(2 * self._pause, LOOK_S)
            self._look, self._open = now + self._pause, open_sockets()
        found = sorted(connections(self._libc, self._open), key=lambda c: -c.sent)[:MOST]
        if look:
            self._open = tuple(one.descriptor for one in found)
            self._seen = {one.ends: self._seen.get(one.ends, Seen()) for one in found}
        self._next = now + INTERVAL_S if found else self._look
        for one in found:
            seen = self._seen.setdefault(one.ends, Seen())
            seen.readings += 1
            if one.rate:
                seen.limited.append(one.rate)
        if found:
            self._status.facts["connections"] = [self._told(one) for one in found]

    def _told(self, one: Connection) -> dict[str, Any]:
        seen = self._seen[one.ends]
        ends = dict(zip(("local", "peer"), one.ends, strict=True))
        counted = {"sent": one.sent, "busy_us": one.busy_us, "unread_us": one.unread_us}
        return {**ends, **counted, "readings": seen.readings, "limited": list(seen.limited)}

    def stop(self) -> None:
        """The last reading."""
        self._look = 0.0
        self._read()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: what is noted are facts."""
        return {}


def open_sockets() -> tuple[int, ...]:
    """Descriptors of the process that are sockets."""
    found = []
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError):
            if os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                found.append(int(name))
    return tuple(found)


def connections(libc: ctypes.CDLL, descriptors: Iterable[int]) -> Iterator[Connection]:
    """The TCP connections among these over which LEAST_BYTES or more were sent; the sockets themselves are only asked."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            raw = _counters(libc, descriptor)
            if raw is None:
                continue
            sent, rate, busy, unread = (struct.unpack_from("=Q", raw, at)[0] for at in (_ACKED, _RATE, _BUSY, _UNREAD))
            if sent >= LEAST_BYTES:
                ends = _address(libc.getsockname, descriptor), _address(libc.getpeername, descriptor)
                yield Connection(ends, sent, busy, unread, 0 if raw[_APP_LIMITED] & 1 else rate, descriptor)


def _counters(libc: ctypes.CDLL, descriptor: int) -> bytes | None:
    """struct tcp_info; None for what is no TCP, or on an older kernel."""
    buffer, size = ctypes.create_string_buffer(512), ctypes.c_uint32(512)
    failed = libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size))
    return None if failed or size.value < _SIZE else buffer.raw


def _address(ask: Any, descriptor: int) -> str:
    """address:port of one end (sockaddr_in, sockaddr_in6); an IPv4 address inside IPv6 is written as the former."""
    buffer, size = ctypes.create_string_buffer(128), ctypes.c_uint32(128)
    if ask(descriptor, buffer, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "no address")
    family, port = struct.unpack_from("=H", buffer.raw)[0], struct.unpack_from("!H", buffer.raw, 2)[0]
    if family == socket.AF_INET6:
        return f"{socket.inet_ntop(socket.AF_INET6, buffer.raw[8:24]).removeprefix('::ffff:')}:{port}"
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, buffer.raw[4:8])}:{port}"
    raise OSError(0, "no internet address")
