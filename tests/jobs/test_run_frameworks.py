"""Real fits of Lightning and of the Hugging Face Trainer: as they are, with our callback, and under ``dtprof run``."""

import os
import subprocess
import sys
from collections import Counter

import pytest

import dtprof
from dtprof.session.folder import describe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# script, what it needs, optimizer steps, evaluations, checkpoints
FITS = {
    "lightning": ("lightning_fit.py", "lightning", 16, 2, 2),
    "transformers": ("trainer_fit.py", "transformers", 12, 2, 2),
}


def fit(words, changes=None):
    env = {k: v for k, v in os.environ.items() if k != "DTPROF_CALLBACK"}
    done = subprocess.run(words, env={**env, **(changes or {})}, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def script_of(scripts, name):
    pytest.importorskip(FITS[name][1])
    return str(scripts / FITS[name][0])


@pytest.fixture(scope="module", params=FITS)
def plain(request, scripts, tmp_path_factory):
    """(name, losses) of a fit as it is."""
    file = tmp_path_factory.mktemp(request.param) / "losses"
    fit([sys.executable, script_of(scripts, request.param), str(file)])
    return request.param, file.read_text()


def steps(folder):
    table = dtprof.open_run(folder).table("steps", 0)
    return Counter(table.text("kind")), table


def test_with_the_callback(plain, scripts, tmp_path):
    name, losses = plain
    fit([sys.executable, script_of(scripts, name), str(tmp_path / "losses")], {"DTPROF_CALLBACK": str(tmp_path / "run")})
    assert (tmp_path / "losses").read_text() == losses
    _, _, trained, evaluations, checkpoints = FITS[name]
    kinds, table = steps(tmp_path / "run")
    assert kinds == {"warm-up": 1, "train": trained - 1, "eval": evaluations, "checkpoint": checkpoints}
    assert table["step"][table["captured"]].tolist() == [3, 4]
    assert describe(tmp_path / "run" / "part00000").extra["failures"] == []
    if name == "lightning":
        each = [float.fromhex(text) for text in losses.split()]
        means = [sum(each[i : i + 3]) / 3 for i in range(0, len(each), 3)]
        found = table["loss"][table.is_("kind", "warm-up", "train")]
        assert found.tolist() == pytest.approx(means, rel=1e-6)


def test_unmodified_under_dtprof_run(plain, scripts, tmp_path):
    name, losses = plain
    command = [sys.executable, script_of(scripts, name), str(tmp_path / "losses")]
    run = [sys.executable, "-m", "dtprof", "run", "--out", str(tmp_path / "run"), "--capture", "3:5", "--", *command]
    done = fit(run)
    assert "VERDICT" in done.stdout
    assert (tmp_path / "losses").read_text() == losses
    kinds, table = steps(tmp_path / "run")
    assert kinds["train"] + kinds["warm-up"] == FITS[name][2]
    assert set(table.text("marked")) == {"inferred"}


def test_the_callback_under_dtprof_run_is_the_one_session(plain, scripts, tmp_path):
    name, losses = plain
    command = [sys.executable, script_of(scripts, name), str(tmp_path / "losses")]
    run = [sys.executable, "-m", "dtprof", "run", "--out", str(tmp_path / "run"), "--", *command]
    fit(run, {"DTPROF_CALLBACK": str(tmp_path / "own")})
    assert (tmp_path / "losses").read_text() == losses
    assert not (tmp_path / "own").exists()
    kinds, _ = steps(tmp_path / "run")
    assert kinds["train"] + kinds["warm-up"] == FITS[name][2]
    assert kinds["eval"] == FITS[name][3]
