"""Ranks in a lab: started without torchrun, in the environment that torchrun would give them, and ended together."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping

from dtprof_sample_jobs.lab.network import INTERFACE, Lab, lab
from dtprof_sample_jobs.lab.spec import LabSpec

PORT = 29500
_GRACE_S = 10.0
_OTHER_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI")


def run_ranks(spec: LabSpec, command: list[str], environment: Mapping[str, str], *, stdout: int | None = None) -> int:
    """Run ``command`` once per rank in a lab of its own; returns the exit code of the rank that failed first, else 0.

    ``environment`` replaces this process's own; what a launcher around it says of ranks is left out. When one rank fails, the
    others are asked to end, and killed after 10 s.
    """
    inherited = {k: v for k, v in environment.items() if not k.startswith(_OTHER_LAUNCHERS)}
    with lab(spec) as made:
        ranks = []
        try:
            for rank in range(spec.ranks):
                words = made.inside(rank, command)
                env = {**inherited, **rank_environment(made, rank)}
                ranks.append(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=stdout))
            return _wait(ranks)
        finally:
            _end(ranks)


def rank_environment(made: Lab, rank: int) -> dict[str, str]:
    """What a rank learns from its environment. CUDA devices are hidden: NCCL would go past the lab's network."""
    spec = made.spec
    host, per_host = spec.host_of(rank), spec.ranks // spec.hosts
    return {
        "RANK": str(rank), "WORLD_SIZE": str(spec.ranks), "LOCAL_RANK": str(rank % per_host),
        "LOCAL_WORLD_SIZE": str(per_host), "GROUP_RANK": str(host), "MASTER_ADDR": made.address(0), "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE, "CUDA_VISIBLE_DEVICES": "",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # no warning for every address that has no name: there is no name server
    }  # fmt: skip


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code:
                print(f"dtprof: rank {rank} ended with {code}; the others are stopped", file=sys.stderr)
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, and SIGKILL for those that do not follow."""
    for process in ranks:
        process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0))
        process.kill()
        process.wait()
