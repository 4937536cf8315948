"""Real processes: ranks started directly on loopback, without torchrun's agent, which costs seconds."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def network_lab():
    """Skip where this machine does not permit a network lab, or lacks its programs; whatever else is wrong fails."""
    from dtprof.errors import InputError, MissingExtra
    from dtprof_sample_jobs.lab.network import lab
    from dtprof_sample_jobs.lab.spec import parse_lab

    try:
        with lab(parse_lab("rate=1gbit", ranks=2)):
            pass
    except (InputError, MissingExtra) as error:
        pytest.skip(str(error))


@dataclass
class Rank:
    """What one process left."""

    code: int
    output: str


def environment(rank, ranks, port, key):
    lo = {"GLOO_SOCKET_IFNAME": "lo"} if any(name == "lo" for _, name in socket.if_nameindex()) else {}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC", "NVTX", "DTPROF_"))}
    return {
        **clean, **lo, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000", "KINETO_LOG_LEVEL": "99",
        "DTPROF_RUN_ID": key, "PYTHONWARNINGS": "default",
    }  # fmt: skip


def begin(ranks, words, *, changes=None):
    """Start ``python words…`` once per rank; returns [(process, file of its output)]."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = uuid.uuid4().hex
    started = []
    for rank in range(ranks):
        env = {k: v for k, v in {**environment(rank, ranks, port, key), **(changes or {})}.items() if v is not None}
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in finish
        process = subprocess.Popen([sys.executable, *words], env=env, stdout=output, stderr=subprocess.STDOUT)
        started.append((process, output))
    return started


def finish(started, timeout=120):
    """Wait for all ranks; those that do not end are killed, and their code is -9."""
    deadline = time.monotonic() + timeout
    for process, _ in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
    done = []
    for process, output in started:
        process.kill()
        code = process.wait()
        with output:
            output.seek(0)
            done.append(Rank(code, output.read()))
    return done


@pytest.fixture(scope="session")
def start():
    """``start(ranks, words, changes={…})``: begin processes and return them with their output files."""
    return begin


@pytest.fixture(scope="session")
def end():
    """``end(started)``: wait for them."""
    return finish


@pytest.fixture(scope="session")
def run(request):
    """``run(ranks, words, changes={…})``: run to the end; all must succeed."""

    def go(ranks, words, *, changes=None):
        done = finish(begin(ranks, words, changes=changes))
        said = "\n".join(f"rank {n} ended with {rank.code}:\n{rank.output}" for n, rank in enumerate(done))
        assert all(rank.code == 0 for rank in done), said
        return done

    return go


@pytest.fixture(scope="session")
def scripts():
    """Where the scripts that ranks run lie."""
    return SCRIPTS
