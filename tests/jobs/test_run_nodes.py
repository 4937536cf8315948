"""Two nodes without a shared disk, each with its own ``dtprof run``: one run id, and one run after ``dtprof merge``."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dtprof.session.folder import describe

DTPROF = str(Path(sys.executable).with_name("dtprof"))
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@pytest.mark.slow
def test_two_nodes_agree_and_are_merged(tmp_path, scripts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env = {k: v for k, v in env.items() if k != "DTPROF_RUN_ID" and not k.startswith("TORCHELASTIC")}
    nodes = []
    for node in (0, 1):
        meeting = [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}", "--local-addr=127.0.0.1"]
        loop = [TORCHRUN, "--nnodes=2", "--nproc-per-node=1", *meeting, str(scripts / "run_loop.py"), "plain", "10"]
        words = [DTPROF, "run", "--out", str(tmp_path / f"node{node}"), "--", *loop]
        nodes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [node.communicate(timeout=250)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    parts = [describe(tmp_path / f"node{n}" / f"part0000{n}") for n in (0, 1)]
    assert [part.rank for part in parts] == [0, 1]
    assert parts[0].extra["run_key"] == parts[1].extra["run_key"] != ""
    out = tmp_path / "run"
    merged = subprocess.run([DTPROF, "merge", "--json", tmp_path / "node1", tmp_path / "node0", "-o", out], capture_output=True)
    document = json.loads(merged.stdout)
    assert (document["ranks"], document["missing"], document["notes"]) == ([0, 1], [], [])
    report = subprocess.run([DTPROF, "report", "--json", out], capture_output=True, check=True)
    matched = [c for c in json.loads(report.stdout)["collectives"] if c["n_present"] == 2]
    assert matched
