"""The job elastic: a killed rank costs the steps since the last whole checkpoint and no others, and the run says so."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import dtprof  # noqa: E402
from dtprof.advise import findings  # noqa: E402
from dtprof.analyse import study_of  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import elastic  # noqa: E402
from dtprof_sample_jobs.common.checkpoints import Checkpoints, found_in  # noqa: E402
from dtprof_sample_jobs.common.setup import World  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SMALL = ["--layers", "2", "--dim", "32", "--seq", "16", "--vocabulary", "64", "--batch", "2"]
EVERY, STEPS = 4, 14
LOSS_TOLERANCE = 2e-5
LAYER = '[[layers]]\nname = "block"\nrepeat = 10\nforward_ms = 1.0\nbackward_ms = 2.0\ntensors = [4096]\n'


def options(*words):
    return elastic.parser().parse_args([*SMALL, *words])


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC", "DTPROF_", "MASTER_"))}
    return {**clean, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "GLOO_SOCKET_IFNAME": "lo"}


def job(out, *words, ranks=2):
    """Run it by ``dtprof job``; its exit code and output."""
    command = [sys.executable, "-m", "dtprof", "job", "elastic", "--ranks", str(ranks), *SMALL, "--out", str(out), *words]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said, start_new_session=True)
        try:
            code = process.wait(500)
        finally:
            end(process)
        said.seek(0)
        return code, said.read()


def end(process):
    """With torchrun and all ranks, whose parent is torchrun: each rank is the leader of a group of its own."""
    torchrun = children_of(process.pid)
    ranks = [pid for agent in [process.pid, *torchrun] for pid in children_of(agent)]
    for pid in [process.pid, *torchrun, *ranks]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def steps_of(run, rank, attempt):
    """(step, kind) of the part, in order; [] where the process left no line."""
    ordinals = [p.ordinal for p in run.parts if (p.rank, p.attempt) == (rank, attempt)]
    tables = [run.table("steps", n) for n in ordinals]
    return [(int(s), k) for t in tables for s, k in zip(t["step"], t.text("kind"), strict=True)]


def values(run, rank, attempt, metric):
    found = [run.table("metrics", p.ordinal) for p in run.parts if (p.rank, p.attempt) == (rank, attempt)]
    return [v for table in found for v in table["value"][table.is_("metric", metric)].tolist()]


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(model, optimizer, steps):
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_newest_whole_checkpoint_comes_back(alone, tmp_path, mode):
    kept = Checkpoints(tmp_path, EVERY, mode)
    assert [k for k in range(10) if kept.due(k)] == [3, 7]
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    assert kept.load(model, optimizer) == 0
    for step in (3, 7, 11):
        trained(model, optimizer, 2)
        kept.save(step, model, optimizer)
        wanted = [p.detach().clone() for p in model.parameters()]
        kept.note(step)
    kept.wait()
    trained(model, optimizer, 1)
    (tmp_path / "step-00000015").mkdir()
    (tmp_path / "step-final").mkdir()
    assert list(found_in(tmp_path)) == ([7, 11] if mode == "sync" else [3, 7, 11])
    other = torch.nn.Linear(3, 2)
    again = torch.optim.AdamW(other.parameters(), lr=0.1)
    anew = Checkpoints(tmp_path, EVERY, mode)
    assert (anew.load(other, again), anew.reached) == (12, 11)
    for parameter, value in zip(other.parameters(), wanted, strict=True):
        assert torch.equal(parameter, value)
    assert {int(state["step"]) for state in again.state.values()} == {6}


def test_kills_act_one_in_each_attempt(monkeypatch):
    args = options("--inject", "kill=1:7", "--inject", "kill=0:9")
    at = [(rank, step) for rank in (0, 1) for step in (7, 9)]
    for attempt, wanted in enumerate(([(1, 7)], [(0, 9)], [])):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        found = [(r, s) for r, s in at if elastic.killed(args, World(r, 2, torch.device("cpu")), s)]
        assert found == wanted


IMPOSSIBLE = [
    ("--inject checkpoint_gil=0:5ms", "needs a thread that saves"),
    ("--inject kill=2:5", "there is no rank 2"),
    ("--max-restarts 1 --inject kill=0:3 --inject kill=1:5", "2 kills are more than --max-restarts 1"),
]


@pytest.mark.parametrize(("words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(words, message):
    with pytest.raises(InputError, match=message):
        elastic.check(options(*words.split()), 2)


def test_checkpoints_of_another_run_are_not_taken_unasked(tmp_path, monkeypatch):
    whole = tmp_path / "checkpoints" / "step-00000003"
    whole.mkdir(parents=True)
    args = options("--out", str(tmp_path))
    elastic.check(args, 2)
    (whole / ".metadata").touch()
    with pytest.raises(InputError, match="has checkpoints already"):
        elastic.check(args, 2)
    elastic.check(options("--out", str(tmp_path), "--resume"), 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    elastic.check(args, 2)


def test_the_lab_restarts_nobody(monkeypatch):
    monkeypatch.setenv("DTPROF_LAB", "rate=1gbit")
    with pytest.raises(InputError, match="nobody would restart"):
        elastic.check(options(), 2)


KILLS = [("sync", 1, 6), ("sync", 0, 9), ("async", 1, 7), ("async", 0, 11), ("process", 1, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "rank", "step"), KILLS)
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(tmp_path, mode, rank, step):
    words = ["--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--save-mode", mode, "--capture", "1:3"]
    # steps long enough for a save beside them to end
    words += ["--inject", f"kill={rank}:{step}", "--inject", "slow_rank=0:200ms", "--losses", str(tmp_path / "losses")]
    code, said = job(tmp_path / "run", *words)
    assert code == 0, said
    run = dtprof.open_run(tmp_path / "run")
    assert sorted((p.rank, p.attempt) for p in run.parts) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first = step // EVERY * EVERY
    lost = step - first
    assert lost <= EVERY
    survivor = steps_of(run, 1 - rank, 0)
    assert [s for s, _ in survivor] == list(range(step))
    assert [s for s, kind in survivor if kind == "lost"] == list(range(first, step))
    saved = [s for s in range(first) if s % EVERY == EVERY - 1]
    assert [s for s, kind in survivor if kind == "checkpoint"] == saved
    expected, _ = one_process(options(*words), ranks=2, micro=1)
    for r in (0, 1):
        again = steps_of(run, r, 1)
        assert again[0] == (first - 1, "restart")
        assert [s for s, _ in again[1:]] == list(range(first, STEPS))
        assert values(run, r, 1, "lost_steps") == [lost]
        # what was trained is what would have been trained
        assert losses_of(tmp_path / "losses", r) == pytest.approx(expected[r][first:], rel=LOSS_TOLERANCE)


@pytest.mark.slow
def test_two_kills_are_two_restarts_of_one_run(tmp_path):
    words = ["--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--inject", "kill=1:6", "--inject", "kill=0:9"]
    code, said = job(tmp_path / "run", *words, "--inject", "slow_rank=0:100ms")
    assert code == 0, said
    run = dtprof.open_run(tmp_path / "run")
    assert max(p.attempt for p in run.parts) == 2
    assert [s for s, kind in steps_of(run, 0, 0) if kind == "lost"] == [4, 5]
    assert [s for s, kind in steps_of(run, 1, 1) if kind == "lost"] == [8]
    assert values(run, 0, 2, "lost_steps") == [1]
    assert steps_of(run, 0, 2)[-1] == (STEPS - 1, "train")


def agent(out, port):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "elastic", "--local-addr", "127.0.0.1",
        "--rdzv-conf", "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=2",
        "-m", "dtprof_sample_jobs.elastic", *SMALL, "--steps", "40", "--checkpoint-every", str(EVERY), "--out", str(out),
        "--inject", "slow_rank=0:300ms",
    ]  # fmt: skip
    return subprocess.Popen(command, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_with_a_machine_less_the_others_go_on(tmp_path):
    """Two agents stand for two machines; the second one and its rank are killed together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stays, goes = (agent(tmp_path / "run", port) for _ in range(2))
    progress = tmp_path / "run" / "checkpoints" / "progress"
    try:
        deadline = time.monotonic() + 200
        while not (progress.exists() and int(progress.read_text() or -1) >= 9):
            assert time.monotonic() < deadline, "the two never trained"
            time.sleep(0.1)
        end(goes)
        assert stays.wait(300) == 0
    finally:
        for process in (stays, goes):
            end(process)
    run = dtprof.open_run(tmp_path / "run")
    sizes = {(p.attempt, p.world_size) for p in run.parts}
    assert sizes == {(0, 2), (1, 1)}
    last = steps_of(run, 0, 1)
    assert last[0][1] == "restart"
    assert last[-1] == (39, "checkpoint")
    assert 0 <= values(run, 0, 1, "lost_steps")[0] <= EVERY


@pytest.mark.slow
def test_a_saving_thread_that_holds_the_lock_slows_the_next_step_of_its_rank_alone(run, tmp_path):
    (tmp_path / "layers.toml").write_text(LAYER)
    words = ["--emulate", str(tmp_path / "layers.toml"), "--steps", "30", "--capture", "none", "--checkpoint-every", "5"]
    fault = ["--save-mode", "async", "--inject", "checkpoint_gil=0:60ms", "--out", str(tmp_path / "run")]
    run(2, ["-m", "dtprof_sample_jobs.elastic", *SMALL, *words, *fault])
    found = dtprof.open_run(tmp_path / "run")
    after = [5, 10, 15, 20, 25]
    more = []
    for rank in (0, 1):
        own = np.array(values(found, rank, 0, "phase_forward")) / 1e6
        # the least of each: what else the machine does only adds
        more.append(own[after].min() - min(own[k] for k in range(6, 30) if k % 5 in (2, 3)))
    assert more[0] == pytest.approx(60, rel=0.1)
    assert abs(more[1]) < 20
    (said,) = [f for f in findings(study_of(found)) if f.rule == "checkpoint.saving_thread"]
    assert said.ranks == (0,)
    assert said.seconds_per_step == pytest.approx(0.060 / 5, rel=0.15)
