"""Killed jobs leave what they had; ranks are told apart however they are started; the command line around it all."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from dtprof.jsonl import read_lines
from dtprof.run import Part, read_manifest
from dtprof.session.folder import describe
from dtprof_collectors.ddp import DdpCollector
from dtprof_collectors.host import HostCollector


def steps_said(output):
    output.flush()
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), size, 0).count(b"\n")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_killed_job_leaves_readable_files(start, end, scripts, tmp_path, seed):
    chance = random.Random(seed)
    started = start(2, [str(scripts / "killed.py"), str(tmp_path)])
    deadline = time.monotonic() + 100
    while min(steps_said(output) for _, output in started) < chance.randrange(3, 60):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process, _ in started)
        time.sleep(chance.random() * 0.02)
    order = [process for process, _ in started]
    chance.shuffle(order)
    for process in order:
        process.send_signal(signal.SIGKILL)
    assert {r.code for r in end(started)} <= {-signal.SIGKILL, 1}
    for rank in (0, 1):
        part = tmp_path / f"part0000{rank}"
        described = msgspec.json.decode((part / "part.json").read_bytes(), type=Part)
        assert (described.rank, described.world_size, described.extra["ended_ns"]) == (rank, 2, None)
        rows, bad = read_lines(part / "steps.jsonl")
        assert bad <= 1
        assert [r["tokens"] for r in rows] == list(range(len(rows)))
        DdpCollector().tables(part)
        HostCollector().tables(part)
    assert read_manifest(tmp_path / "manifest.json").world_size == 2


def test_four_ranks_named_only_in_code_get_four_parts(tmp_path, scripts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TORCHELASTIC", "DTPROF_RUN"))}
    clean = {k: v for k, v in clean.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    words = [sys.executable, str(scripts / "rank_in_code.py"), str(tmp_path), str(port)]
    processes = [subprocess.Popen([*words, str(rank), "4"], env={**clean, "OMP_NUM_THREADS": "1"}) for rank in range(4)]
    assert [p.wait(120) for p in processes] == [0] * 4
    parts = [describe(p) for p in sorted(tmp_path.glob("part*"))]
    assert sorted(p.rank for p in parts) == [0, 1, 2, 3]
    assert sorted(p.ordinal for p in parts) == [0, 1, 2, 3]
    assert {(p.world_size, p.rank_from, p.backend) for p in parts} == {(4, "torch.distributed", "gloo")}
    manifest = read_manifest(tmp_path / "manifest.json")
    assert (manifest.world_size, manifest.parts[0].rank) == (4, 0)


def dtprof(*words, **kwargs):
    command = [sys.executable, "-m", "dtprof", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, **kwargs)


def test_the_job_command_runs_a_job_and_reports_on_it(tmp_path):
    out = tmp_path / "run"
    job = ["--steps", "10", "--capture", "4:7", "--layers", "2", "--dim", "64", "--inject", "slow_rank=1:20ms"]
    done = dtprof("job", "ddp", "--ranks", "2", "--out", str(out), "--json", *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["source"]["world_size"], report["source"]["steps"]) == (2, [4, 5, 6])
    assert "ddp: 10 steps on 2 ranks" in done.stderr
    assert "USDT" not in done.stderr
    manifest = read_manifest(out / "manifest.json")
    assert (manifest.job, manifest.knobs["steps"], manifest.knobs["inject"]) == ("ddp", 10, ["slow_rank=1:20ms"])
    assert os.listdir(tmp_path) == ["run"]


def test_the_job_command_lists_explains_and_refuses(tmp_path):
    listed = json.loads(dtprof("job", "--list", "--json").stdout)["jobs"]
    assert "ddp" in [j["name"] for j in listed]
    assert {"--steps", "--bucket-cap-mb", "--inject"} <= {o["option"] for o in listed[0]["options"]}
    assert dtprof("job", "ddp", "--help").stdout.startswith("usage: dtprof job ddp")
    for words in (["ddq"], [], ["ddp", "--nonsense"], ["ddp", "--inject", "slow_rank=1"], ["--ranks", "0", "ddp"]):
        refused = dtprof("job", *words, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert len(refused.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_the_job_command_ends_with_the_jobs_code(tmp_path):
    (tmp_path / "losses.rank0").mkdir()
    words = ["--ranks", "1", "--out", str(tmp_path / "r"), "--steps", "2", "--losses", "losses"]
    done = dtprof("job", "ddp", *words, cwd=tmp_path)
    assert done.returncode == 1
