"""The gate on real training in the network lab: planted faults fail and are named, the same command does not."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dtprof.launch.pairs import step_times
from dtprof.launch.trial import Plan, run_trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LAYERS = """
width_bytes = 4096
[[layers]]
name = "block"
repeat = 8
forward_ms = 2.0
backward_ms = 4.0
weight_share = 0.5
tensors = [65536, 4096, 65536, 4096]
"""
TRIALS = 200


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """``lab(fault, name)``: gate of the ddp job with that fault against the job without; (exit code, document, folder)."""
    if os.geteuid() != 0:
        pytest.skip("the network lab needs root")
    folder = tmp_path_factory.mktemp("lab")
    (folder / "layers.toml").write_text(LAYERS)
    job = f"{sys.executable} -m dtprof job ddp --ranks 2 --steps 18 --emulate {folder / 'layers.toml'} --lab rate=1gbit,rtt=8ms"

    def go(fault, name, seed):
        candidate = f"{job} --inject {fault}" if fault else job
        command = [sys.executable, "-m", "dtprof", "gate", "--baseline-cmd", job, "--candidate-cmd", candidate, "--json"]
        out = folder / f"{name}{seed}"
        budget = ["--pairs", "7", "--margin", "5%", "--seed", str(seed), "--out", str(out)]
        done = subprocess.run([*command, *budget], cwd=folder, capture_output=True, text=True, timeout=1500)
        assert done.returncode in (0, 1, 2), done.stderr
        return done.returncode, json.loads(done.stdout), out

    return go


@pytest.mark.parametrize("seed", range(5))
def test_tiny_buckets_fail_and_exposed_communication_is_named(lab, seed):
    code, document, _ = lab("tiny_buckets=all:0.02", "tiny", seed)
    assert code == 1 and "exposed communication" in document["headline"], document["headline"]


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_forward_fails_and_compute_on_its_rank_is_named(lab, seed):
    code, document, _ = lab("slow_rank=1:40ms", "slow", seed)
    assert code == 1 and "compute on rank 1" in document["headline"], document["headline"]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_command_does_not_fail(lab, seed):
    code, document, _ = lab("", "same", seed)
    assert code != 1, document["headline"]


def test_resampled_steps_of_real_runs(lab):
    """Stretches of the steps that real runs took, as they came: no false failure, and the fault found as it is in the lab."""
    _, _, same = lab("", "resampled", 99)
    _, _, slow = lab("slow_rank=1:40ms", "resampled-slow", 99)
    usual = [np.array(list(step_times(f, 3).values()), float) for f in sorted(same.glob("[0-9]*"))]
    late = [np.array(list(step_times(f, 3).values()), float) for f in sorted(slow.glob("[0-9]*b"))]
    rng = np.random.default_rng(0)

    def median(runs):
        steps = runs[rng.integers(len(runs))]
        begin = rng.integers(0, len(steps) - 7)
        return float(np.median(steps[begin : begin + 8]))

    plan = Plan(pairs=20, margin=0.05)
    false = sum(run_trial(lambda _: (median(usual), median(usual)), plan).outcome == "fail" for _ in range(TRIALS))
    caught = sum(run_trial(lambda _: (median(usual), median(late)), plan).outcome == "fail" for _ in range(TRIALS))
    assert false <= 0.01 * TRIALS
    assert caught >= 0.95 * TRIALS
