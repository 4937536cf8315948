"""The bucket advice of a recorded run, proved by measuring: pairs with and without it, in the network lab."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from dtprof.errors import DtprofError
from dtprof_sample_jobs.lab.network import lab
from dtprof_sample_jobs.lab.spec import parse_lab

EMULATIONS = Path(__file__).parents[2] / "benchmarks" / "emulations"
SETTINGS = {"s_small": "rate=1gbit,rtt=2ms", "s_uniform": "rate=5gbit"}


def job(model, network, *words):
    common = ["--ranks", "2", "--emulate", str(EMULATIONS / f"{model}.toml"), "--lab", network]
    return [sys.executable, "-m", "dtprof", "job", "ddp", *common, *words]


@pytest.mark.slow
@pytest.mark.parametrize("model", SETTINGS)
def test_the_bucket_advice_is_confirmed(model, tmp_path):
    network = SETTINGS[model]
    try:
        with lab(parse_lab(network, ranks=2)):
            pass
    except DtprofError as error:
        pytest.skip(str(error))
    run = tmp_path / "run"
    recorded = job(model, network, "--steps", "34", "--capture", "20:30", "--out", str(run))
    subprocess.run(recorded, check=True, capture_output=True, timeout=120)
    again = job(model, network, "--steps", "14", "--capture", "none", "--out", str(tmp_path / "again"))
    verify = [sys.executable, "-m", "dtprof", "verify", str(run), "--rule", "ddp.bucket_size", "--json"]
    limits = ["--steps", "10", "--warm-up", "3", "--pairs", "5", "--alpha", "5%"]
    done = subprocess.run([*verify, *limits, "--", *again], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    print(verdict["text"])
    assert verdict["outcome"] == "confirmed" and verdict["prediction_held"]
