"""Counters of the process's own connections: what was sent, whom to, and nothing touched."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from dtprof.protocols import Context
from dtprof_collectors import sockets
from dtprof_collectors.sockets import LEAST_BYTES, Connection, Kernel, SocketsCollector, connections, open_sockets

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
    """Every connection of this process, read once."""
    kernel = Kernel()
    found = list(connections(kernel, open_sockets()))
    for one in found:
        one.see(kernel.counters(one.descriptor))
    return found


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


@pytest.fixture
def collecting(tmp_path, monkeypatch):
    """A collector and its context; it is started, its next look is due, and its thread reads as fast as it can."""
    monkeypatch.setattr(sockets, "INTERVAL_S", 0.001)
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    made._look = 0.0
    yield made, where
    made.stop()


def until(true, made):
    """Steps, until something is true of the collector's thread."""
    for step in range(10_000):
        made.on_step(step)
        if true():
            return
        made._ended.wait(0.001)
    pytest.fail("the thread has read nothing")


def of(where, end):
    """What is told of the connection with this end here."""
    return [c for c in where.status.facts.get("connections", ()) if c["local"] == named(end.getsockname())]


def test_the_collector_keeps_the_last_reading_when_connections_are_gone(pair, collecting):
    client, other = pair
    made, where = collecting
    until(lambda: of(where, client), made)
    (told,) = of(where, client)
    assert told["readings"] >= 1 and told["sent"] == pytest.approx(2 * LEAST_BYTES, abs=1)
    name = told["local"]
    client.close()
    other.close()
    made.stop()
    assert [c["sent"] for c in where.status.facts["connections"] if c["local"] == name] == [told["sent"]]


def test_nothing_is_read_before_the_first_look_and_all_at_the_end(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "3")
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    made.on_step(0)
    assert made._thread is None and "connections" not in where.status.facts
    made.stop()
    assert [c["readings"] for c in of(where, pair[0])] == [1]
    assert where.status.facts["node"] == "3"


def test_where_there_are_no_counters_it_is_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    made, where = SocketsCollector(), context(tmp_path)
    made.start(where)
    made.on_step(0)
    made.stop()
    assert where.status.idle
    assert where.status.facts == {}


def test_bytes_that_wait_to_leave_are_seen_while_they_do(pair, collecting):
    """The other end reads nothing, so that its room and what may be on its way are full soon."""
    client, _ = pair
    client.setblocking(False)
    for _ in range(100):
        try:
            client.send(bytes(1 << 20))
        except BlockingIOError:
            break
    made, where = collecting
    until(lambda: any(c["queued"] >= 3 for c in of(where, client)), made)
    (told,) = of(where, client)
    assert 3 <= told["queued"] <= told["readings"]


def test_bytes_that_have_left_do_not_wait(pair, collecting):
    client, _ = pair
    made, where = collecting
    until(lambda: any(c["readings"] >= 5 for c in of(where, client)), made)
    assert of(where, client)[0]["queued"] == 0


def test_another_connection_with_the_same_descriptor_changes_nothing():
    one = Connection(7, ("10.0.0.1:1", "10.0.0.2:2"))
    one.see((0, 5 << 20, 0, 10**8, 500, 20))
    one.see((0, 1 << 20, 9, 10**6, 100, 0))
    assert (one.sent, one.busy_us, one.readings, one.queued, list(one.limited)) == (5 << 20, 500, 1, 0, [10**8])
    one.see((1, 6 << 20, 9, 10**6, 600, 20))
    assert (one.sent, one.readings, one.queued, list(one.limited)) == (6 << 20, 2, 1, [10**8])  # limited by its sender


def test_connections_that_are_gone_are_forgotten(pair, collecting):
    """A job that opens ever new ones must not make the collector grow."""
    client, other = pair
    made, _ = collecting
    made.on_step(0)
    mine = named(client.getsockname())
    assert mine in {one.ends[0] for one in made._open}
    client.close()
    other.close()
    made._look = 0.0
    made.on_step(1)
    assert mine not in {one.ends[0] for one in made._open}


def test_the_thread_ends_with_the_collector_and_its_failure_reaches_the_session(pair, collecting, monkeypatch):
    made, _ = collecting
    made.on_step(0)
    thread = made._thread
    assert thread.daemon
    monkeypatch.setattr(Connection, "see", lambda self, counters: 1 // 0)
    thread.join(10)
    with pytest.raises(ZeroDivisionError):
        made.on_step(1)
    monkeypatch.undo()
    made.stop()
    assert not thread.is_alive()
