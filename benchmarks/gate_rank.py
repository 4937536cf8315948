"""A rank that has loaded torch already: it waits at a socket and runs jobs in children, in the environment of who asks.

    python benchmarks/gate_rank.py SOCKET                  wait, until killed; prints a line when it is ready
    python benchmarks/gate_rank.py SOCKET,SOCKET WORDS…    have both run ``dtprof job ddp WORDS…``; ends as they end

A gate starts its command some thirty times, and loading torch takes seconds of CPU each time.
"""

import json
import os
import random
import socket
import sys

FIRST_PORT, PORTS = 20000, 10000


def serve(path):
    """One job after the other, each in a process of its own."""
    # DDP loads it as soon as it wraps a model
    import torch._dynamo  # noqa: F401

    from dtprof_sample_jobs import ddp

    mine = dict(os.environ)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listening.accept()
            with asking:
                request, outputs, _, _ = socket.recv_fds(asking, 1 << 20, 2)
                job = os.fork()
                if job == 0:
                    listening.close()
                    work(ddp, json.loads(request), outputs, mine)
                for output in outputs:
                    os.close(output)
                asking.sendall(bytes([os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]) & 255]))


def work(ddp, asked, outputs, mine):
    """The job in this process, which ends with it."""
    for descriptor, output in enumerate(outputs, 1):
        os.dup2(output, descriptor)
        os.close(output)
    os.environ.clear()
    os.environ.update({**asked["environment"], **mine, "MASTER_PORT": str(asked["port"])})
    code = 1
    try:
        ddp.main(asked["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ask(paths, words):
    """Start the job on all ranks and wait; the exit code of the first that failed, else 0."""
    port = FIRST_PORT + random.randrange(PORTS)
    request = json.dumps({"words": words, "port": port, "environment": dict(os.environ)}).encode()
    ranks = []
    for path in paths:
        rank = socket.socket(socket.AF_UNIX)
        rank.connect(path)
        socket.send_fds(rank, [request], [1, 2])
        ranks.append(rank)
    return next((code for code in [rank.recv(1)[0] for rank in ranks] if code), 0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(ask(sys.argv[1].split(","), sys.argv[2:]))
