"""Advice and edits of a recorded run, proved by measuring: pairs with and without them, in the network lab."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


EMULATIONS = Path(__file__).parents[2] / "benchmarks" / "emulations"
# the job and its words, its network, and what is verified
SETTINGS = {
    "small buckets": ("ddp", ["--emulate", "s_small"], "rate=1gbit,rtt=2ms", ["--rule", "ddp.bucket_size"]),
    "even buckets": ("ddp", ["--emulate", "s_uniform"], "rate=5gbit", ["--rule", "ddp.bucket_size"]),
    "half the bytes": ("ddp", ["--emulate", "s_head"], "rate=1gbit", ["--set", "comm.dtype=fp16"]),
    "parameters kept": ("fsdp", ["--emulate", "s_uniform"], "rate=5gbit", ["--set", "fsdp.reshard_after_forward=false"]),
}


def command(job, words, network, *more):
    words = [
        str(EMULATIONS / f"{word}.toml") if before == "--emulate" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    return [sys.executable, "-m", "dtprof", "job", job, "--ranks", "2", *words, "--lab", network, *more]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_predicted_is_achieved(setting, network_lab, tmp_path):
    *job, wanted = SETTINGS[setting]
    run = tmp_path / "run"
    recorded = command(*job, "--steps", "34", "--capture", "20:30", "--out", str(run))
    subprocess.run(recorded, check=True, capture_output=True, timeout=120)
    again = command(*job, "--steps", "14", "--capture", "none", "--out", str(tmp_path / "again"))
    verify = [sys.executable, "-m", "dtprof", "verify", str(run), *wanted, "--json"]
    limits = ["--steps", "10", "--warm-up", "3", "--pairs", "5", "--alpha", "5%"]
    done = subprocess.run([*verify, *limits, "--", *again], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    print(verdict["text"])
    assert verdict["outcome"] == "confirmed" and verdict["predicted"] is not None
    assert verdict["prediction_held"]
