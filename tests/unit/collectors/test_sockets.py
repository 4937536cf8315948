"""Counters of the process's own connections: what was sent, whom to, and nothing touched."""

from __future__ import annotations

import ctypes
import socket
import sys
import threading

import pytest

from dtprof.protocols import Context
from dtprof_collectors.sockets import LEAST_BYTES, SocketsCollector, connections, open_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's counters")


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def pair(request):
    """Two ends of a connection over which twice LEAST_BYTES went one way."""
    home = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    try:
        server = socket.create_server((home, 0), family=request.param)
    except OSError:
        pytest.skip("no such address here")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        other, _ = server.accept()
        with other:
            data = bytes(2 * LEAST_BYTES)
            sender = threading.Thread(target=client.sendall, args=(data,))
            sender.start()
            left = len(data)
            while left:
                left -= len(other.recv(1 << 16))
            sender.join()
            yield client, other


def named(end):
    return f"{end[0]}:{end[1]}"


def read():
    return list(connections(ctypes.CDLL(None, use_errno=True), open_sockets()))


def context(folder):
    return Context(rank=0, world_size=1, folder=folder, capture=(-1, -1), options={})


def test_a_connection_is_told_with_both_ends_and_its_bytes(pair):
    client, other = pair
    found = [c for c in read() if c.ends[0] == named(client.getsockname())]
    assert [c.ends[1] for c in found] == [named(client.getpeername())] == [named(other.getsockname())]
    assert found[0].sent == pytest.approx(2 * LEAST_BYTES, abs=1)  # Linux counts the opening of a connection as a byte
    assert found[0].busy_us >= found[0].unread_us >= 0
    # what the other end sent is too little to be told
    assert named(other.getsockname()) not in {c.ends[0] for c in read()}


def test_a_socket_keeps_its_mode_whatever_the_default_is(pair, monkeypatch):
    client, _ = pair
    client.setblocking(True)
    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 5.0)
    socket.setdefaulttimeout(5.0)
    try:
        read()
    finally:
        socket.setdefaulttimeout(None)
    assert client.getblocking()


def test_the_collector_keeps_the_last_reading_when_connections_are_gone(pair, tmp_path, monkeypatch):
    client, other = pair
    made, where = SocketsCollector(), context(tmp_path)
    monkeypatch.setenv("GROUP_RANK", "3")
    made.start(where)
    made.on_step(0)
    assert "connections" not in where.status.facts  # too early for a reading
    made._next = 0.0
    made.on_step(1)
    told = where.status.facts["connections"]
    assert [c["readings"] for c in told if c["local"] == named(client.getsockname())] == [1]
    client.close()
    other.close()
    made.stop()
    assert where.status.facts["connections"] == told
    assert where.status.facts["node"] == "3"


def test_where_there_are_no_counters_it_is_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    made.stop()
    assert where.status.idle
    assert where.status.facts == {}


def test_readings_are_counted_and_a_descriptor_that_is_gone_does_no_harm(pair, tmp_path):
    client, _ = pair
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    for step in range(3):
        made._next = 0.0
        made.on_step(step)
    mine = next(c for c in where.status.facts["connections"] if c["local"] == named(client.getsockname()))
    assert mine["readings"] == 3 and len(mine["limited"]) <= 3
    client.close()
    made._next = 0.0
    made.on_step(3)
    assert mine in where.status.facts["connections"]


def test_connections_that_are_gone_are_forgotten(pair, tmp_path):
    """A job that opens ever new ones must not make the collector grow."""
    client, other = pair
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    made._next = 0.0
    made.on_step(0)
    mine = named(client.getsockname())
    assert mine in {ends[0] for ends in made._seen}
    client.close()
    other.close()
    made.stop()
    assert mine not in {ends[0] for ends in made._seen}
