"""Jobs under the real nsys: our ranges are recorded, and open with the right steps and phases."""

import json
import os
import subprocess
import sys

import pytest

import dtprof

SCRIPT = """
import time
import dtprof

with dtprof.profile("RUN", capture=None, collectors=["nsys"], first_step=3) as prof:
    for step in range(3, 7):
        with dtprof.annotate("data"):
            time.sleep(0.002)
        for m in range(2):
            with dtprof.annotate("forward", microbatch=m, layer="blocks.0"):
                time.sleep(0.004)
        with dtprof.annotate("save", phase="checkpoint"):
            time.sleep(0.002)
        prof.step()
"""


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NVTX", "NSYS", "DTPROF_N", "SLURM_"))}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def dtprof_command(*words):
    return [sys.executable, "-m", "dtprof", *words]


def test_steps_and_phases_of_a_script(nsys, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("RUN", str(tmp_path / "run")))
    words = [nsys, "profile", "-s", "none", "--cpuctxsw", "none", "-t", "nvtx", "-o", str(tmp_path / "r"), sys.executable]
    env = environment(RANK="0", WORLD_SIZE="1")
    done = subprocess.run([*words, str(tmp_path / "train.py")], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    run = dtprof.open_run(tmp_path / "r.nsys-rep")
    (part,) = run.parts
    steps, events = run.table("steps", part.ordinal), run.table("events", part.ordinal)
    complete = steps.take(steps["complete"])
    assert complete["step"].tolist() == [3, 4, 5, 6]
    assert (complete["host_dur"] >= 12_000_000).all()
    for phase, name, least, times in (("data", "data", 2, 1), ("forward", "forward", 4, 2), ("checkpoint", "save", 2, 1)):
        mine = events.take(events.is_("phase", phase) & events.is_("kind", "range"))
        assert len(mine) == 4 * times, phase
        assert all(n.startswith(name) for n in mine.text("name"))
        assert (mine["dur"] >= least * 1_000_000).all()
        assert sorted(mine["step"].tolist()) == sorted([3, 4, 5, 6] * times)
    forward = events.take(events.is_("phase", "forward") & events.is_("kind", "range"))
    assert forward["microbatch"].tolist() == [0, 1] * 4
    assert set(forward.text("layer")) == {"blocks.0"}


@pytest.mark.slow
def test_a_ddp_job_by_dtprof_run(nsys, tmp_path):
    pytest.importorskip("torch")
    job = dtprof_command("job", "ddp", "--ranks", "2", "--steps", "6", "--out", str(tmp_path / "other"))
    words = dtprof_command("run", "--nsys", "--capture", "none", "--json", "--out", str(tmp_path / "run"), "--", *job)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["problems"] == []
    run = dtprof.open_run(tmp_path / "run" / "nsys")
    assert run.ranks == [0, 1]
    for part in run.parts:
        steps, events = run.table("steps", part.ordinal), run.table("events", part.ordinal)
        assert steps["step"][steps["complete"]].tolist() == [0, 1, 2, 3, 4, 5]
        for phase in ("data", "forward", "backward", "optimizer"):
            ranges = events.take(events.is_("name", phase) & events.is_("kind", "range"))
            assert set(ranges["step"].tolist()) == {0, 1, 2, 3, 4, 5}, phase
            assert set(ranges.text("phase")) == {phase}
    # the same steps by the job's own clock, which leaves out what the collectors do between steps
    recorded = dtprof.open_run(tmp_path / "run")
    mine = {(p.rank, int(s)): int(d) for p in recorded.parts for s, d in times(recorded, p)}
    theirs = {(p.rank, int(s)): int(d) for p in run.parts for s, d in times(run, p)}
    assert all(-1_000_000 < theirs[key] - mine[key] < 0.1 * mine[key] + 50_000_000 for key in mine if key[1] > 0)


def times(run, part):
    steps = run.table("steps", part.ordinal)
    return zip(steps["step"].tolist(), steps["host_dur"].tolist(), strict=True)
