"""A package of a third party: really installed by pip, found, listed, used in a job and read back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "example_plugin"
JOB = """
import sys
import dtprof
from dtprof.testing import check_collector
from dtprof_open_files import OpenFiles

check_collector(OpenFiles)
with dtprof.profile(sys.argv[1], capture=None) as prof:
    for _ in range(3):
        prof.step()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which pip installed the example, from a copy that the build may write into."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(HERE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def python(installed, tmp_path_factory):
    """``python(*words)``: run Python with the example installed; what it printed."""
    folder = tmp_path_factory.mktemp("work")

    def run(*words):
        env = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_it_is_listed_with_its_package_and_version(python):
    plugins = json.loads(python("-m", "dtprof", "plugins", "--json"))["plugins"]
    mine = [p for p in plugins if p["package"] == "dtprof-open-files"]
    assert {(p["group"], p["name"], p["version"], p["ok"]) for p in mine} == {
        ("collectors", "open_files", "1.2", True),
        ("commands", "most_open_files", "1.2", True),
    }
    assert "open_files" in python("-m", "dtprof", "plugins")
    assert "most_open_files" in python("-m", "dtprof", "--help")


def test_it_keeps_the_contract_records_and_is_read_back(python):
    python("-c", JOB, "run")
    most = json.loads(python("-m", "dtprof", "most_open_files", "run", "--json"))
    assert list(most) == ["0"]
    assert most["0"] > 3
    part = json.loads(python("-c", "print(open('run/part00000/part.json').read())"))
    assert {c["name"]: c["state"] for c in part["extra"]["collectors"]}["open_files"] == "on"


def test_when_it_is_gone_again_its_recording_still_opens(python, tmp_path):
    python("-c", JOB, "gone")
    script = "import dtprof, sys; print(len(dtprof.open_run(sys.argv[1]).table('steps', 0)))"
    python("-c", "import shutil; shutil.copytree('gone', 'copy', ignore=shutil.ignore_patterns('tables'))")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    folder = python("-c", "import os; print(os.getcwd())").strip()
    done = subprocess.run([sys.executable, "-c", script, f"{folder}/copy"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
