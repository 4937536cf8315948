"""Killed at any instant, on a full disk, on one that may not be written: the run opens, and the job never notices us."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtprof.errors import InputError
from dtprof.ingest import open_run

DTPROF = str(Path(sys.executable).with_name("dtprof"))
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def begin(out, command, **changes):
    words = [DTPROF, "run", "--out", str(out), "--capture", "20:40", "--", *map(str, command)]
    env = {**os.environ, **QUIET, **changes}
    return subprocess.Popen(
        words,
        env=env,
        start_new_session=True,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def opened(out):
    """(ranks, what the run says it lacks); None where no process had come to its first step."""
    if not any(out.glob("part*/part.json")) and not any(out.glob("part*/steps.jsonl")):
        with pytest.raises(InputError):
            open_run(out)
        return None
    run = open_run(out, cache=False)
    return run.ranks, [what for part in run.parts for what in run.table("quality", part.ordinal).text("what")]


def says_what_it_lacks(found):
    return any("did not end its session" in what or "missing or unreadable" in what for what in found[1])


def kill_one(tmp_path, scripts, number, victim, seconds):
    """Two ranks under a launcher under dtprof run; ``victim`` is killed ``seconds`` after the first step was written."""
    out, pids = tmp_path / f"run{number}", tmp_path / f"pids{number}"
    loop = [sys.executable, scripts / "run_ranks.py", "torchrun", 2, scripts / "run_loop.py", "plain", 10**9]
    process = begin(out, loop, RUN_PIDS=str(pids))
    deadline = time.monotonic() + 300
    while not list(out.glob("part*/part.json")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    time.sleep(seconds)
    launcher, *ranks = map(int, pids.read_text().split())
    try:
        for pid in {"rank": ranks[1:], "launcher": [launcher], "all": [process.pid, launcher, *ranks]}[victim]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == {"rank": 137, "launcher": 137, "all": -9}[victim] or victim == "rank", said
    found = opened(out)
    assert found is not None and found[0] and says_what_it_lacks(found)
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("victim", ["rank", "launcher", "all"])
def test_whoever_is_killed_the_run_opens_and_says_so(tmp_path, scripts, victim):
    for number, seconds in enumerate((0.0, 0.3, 1.5)):
        code, said = kill_one(tmp_path, scripts, number, victim, seconds)
        if victim != "all":
            assert code > 0 and "VERDICT" in said, said


def kill_forks(tmp_path, scripts, trials):
    """Ranks forked from one process, killed at random instants, one just before the other; what each trial left."""
    chance = random.Random(5)
    process = begin(tmp_path / "run", [sys.executable, scripts / "run_forks.py"])
    found = []
    try:
        for trial in range(trials):
            out = tmp_path / f"trial{trial}"
            pids = []
            for rank in (0, 1):
                process.stdin.write(f"{rank} 2 {out}\n")
                process.stdin.flush()
                pids.append(int(process.stdout.readline()))
            if chance.random() < 0.8:
                wait_for_a_part(out)
            time.sleep(chance.uniform(0.0, 0.6))
            first = chance.choice(pids)
            os.kill(first, signal.SIGKILL)
            time.sleep(chance.uniform(0.0, 0.05))
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while any(alive(pid) for pid in pids):
                time.sleep(0.01)
            found.append(opened(out))
        process.stdin.write("\n")
        process.stdin.flush()
        process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return found


def wait_for_a_part(out):
    """Until a process has claimed its folder."""
    deadline = time.monotonic() + 60
    while not list(out.glob("part*")) and time.monotonic() < deadline:
        time.sleep(0.001)


def alive(pid):
    """Does it still run? (A process that has ended and waits to be asked does not.)"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def judge(trials):
    held = [found for found in trials if found is not None]
    assert len(held) >= len(trials) // 2
    for found in held:
        assert says_what_it_lacks(found)
        assert set(found[0]) <= {0, 1}


def test_ranks_killed_at_random_instants(tmp_path, scripts):
    judge(kill_forks(tmp_path, scripts, 3))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ranks_killed_at_a_hundred_random_instants(tmp_path, scripts):
    judge(kill_forks(tmp_path, scripts, 100))


@pytest.fixture
def small_disk(tmp_path):
    """``mount(options)``: a folder on a disk of its own."""
    mounted = []

    def mount(options):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("a file system can only be mounted by root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=False)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["size=96k", "size=8k", "ro", "size=20m,nr_inodes=6"])
def test_a_disk_that_takes_nothing_costs_the_job_nothing(tmp_path, scripts, small_disk, disk):
    command = [sys.executable, str(scripts / "run_loop.py"), "plain", "60"]
    env = {**os.environ, **QUIET}
    alone = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    out = small_disk(disk) / "run"
    words = [DTPROF, "run", "--json", "--out", str(out), "--", *command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("rank0")] == alone.stdout.splitlines()
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("dtprof:")]
    if any(out.glob("part*/part.json")):
        said += [what for what in opened(out)[1] if "failed in" in what or "not written" in what]
    assert said, done.stderr
