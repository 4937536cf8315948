"""What went over each TCP connection of the process, and for how long: Linux's own counters, per peer.

A collective lasts as long on all its ranks, whoever's link is slow; the counters of connections tell which one it is.

Raw files
    none: facts in part.json, read by the analysis ``links``
Facts in part.json: ``node``, torchrun's number of the node; ``connections``, the largest of them, each with ``local`` and
``peer`` (address:port), ``sent`` (bytes that the peer has acknowledged), ``busy_us`` (time in which something was on its way
or waiting to leave, microseconds) and ``unread_us`` (what of it the peer's full receive buffer is to blame for): tcp_info of
linux/tcp.h, there tcpi_bytes_acked, tcpi_busy_time and tcpi_rwnd_limited. Read every few seconds and at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtprof.protocols import Context
from dtprof.table import Table

INTERVAL_S = 5.0
LEAST_BYTES, MOST = 1 << 20, 64
# struct tcp_info: tcpi_bytes_acked, tcpi_busy_time (us), tcpi_rwnd_limited (us), all of 64 bits
_ACKED, _BUSY, _UNREAD, _SIZE = 120, 168, 176, 184
_FOLDER = "/proc/self/fd"


class SocketsCollector:
    """Reads the counters of this process's own connections, and of no other's."""

    name = "sockets"

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self._next = 0.0

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
        """Read again where the last reading is some seconds old: connections may be gone at the end."""
        if time.monotonic() >= self._next:
            self._read()

    def _read(self) -> None:
        self._next = time.monotonic() + INTERVAL_S
        if self._libc is None:
            return
        found = sorted(connections(self._libc), key=lambda c: -c["sent"])[:MOST]
        if found:
            self._status.facts["connections"] = found

    def stop(self) -> None:
        """The last reading."""
        self._read()

    def tables(self, folder: Path) -> Mapping[str, Table]:
        """None: what is noted are facts."""
        return {}


def connections(libc: ctypes.CDLL) -> Iterator[dict[str, Any]]:
    """The process's TCP connections over which LEAST_BYTES or more were sent; the sockets themselves are only asked."""
    for name in os.listdir(_FOLDER):
        with contextlib.suppress(OSError):
            if not os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                continue
            made = _counters(libc, int(name))
            if made is not None and made[0] >= LEAST_BYTES:
                ends = {"local": _address(libc.getsockname, int(name)), "peer": _address(libc.getpeername, int(name))}
                yield {**ends, "sent": made[0], "busy_us": made[1], "unread_us": made[2]}


def _counters(libc: ctypes.CDLL, descriptor: int) -> tuple[int, int, int] | None:
    """(bytes acknowledged, us busy, us of it for the peer's full buffer); None for what is no TCP, or on an older kernel."""
    buffer, size = ctypes.create_string_buffer(512), ctypes.c_uint32(512)
    failed = libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size))
    if failed or size.value < _SIZE:
        return None
    acked, busy, unread = (struct.unpack_from("=Q", buffer.raw, at)[0] for at in (_ACKED, _BUSY, _UNREAD))
    return acked, busy, unread


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
