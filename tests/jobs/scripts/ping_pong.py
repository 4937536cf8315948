"""Two plain processes over TCP: ``ping_pong.py server`` and ``ping_pong.py ADDRESS``, which prints the round trips in us."""

import json
import socket
import sys
import time

PORT, TRIPS = 5000, 60


def connect(address):
    for _ in range(200):
        try:
            return socket.create_connection((address, PORT), timeout=10)
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise SystemExit("nobody listens")


if sys.argv[1] == "server":
    with socket.create_server(("0.0.0.0", PORT)) as listener:
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while message := connection.recv(1):
            connection.sendall(message)
else:
    with connect(sys.argv[1]) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(TRIPS):
            begin = time.perf_counter_ns()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append((time.perf_counter_ns() - begin) / 1e3)
    print(json.dumps(trips))
