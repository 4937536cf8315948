"""The hook at the start of every Python process, in real processes with a torch that does nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtprof.launch import SITE
from dtprof.session.launched import VARIABLE, Plan


@pytest.fixture
def start(tmp_path):
    """``start(words, *folders)``: run Python under the hook, with ``folders`` after it in PYTHONPATH; output and notes."""
    notes = tmp_path / "notes"
    notes.mkdir()
    torch = tmp_path / "lib" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("print('torch executed as', __spec__.loader.__class__.__name__)\n")

    def go(words, *folders, plan=True):
        path = os.pathsep.join(map(str, [SITE, *folders, tmp_path / "lib"]))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}
        env.pop(VARIABLE, None)
        if plan:
            env[VARIABLE] = Plan(out=str(tmp_path / "run"), run_id="x", notes=str(notes)).to_text()
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
        lines = [json.loads(line) for file in notes.iterdir() for line in file.read_text().splitlines()]
        return done, {line["what"]: line["text"] for line in lines}

    return go


def write(folder, text, package=False):
    place = folder / "sitecustomize" if package else folder
    place.mkdir(parents=True)
    (place / ("__init__.py" if package else "sitecustomize.py")).write_text(text)
    return folder


def test_a_process_that_never_loads_torch_only_says_that_it_ran(start):
    done, notes = start(["-c", "import sys; print('dtprof' in sys.modules, [p for p in sys.path if 'launch' in p])"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "False []\n", "")
    assert notes == {"python": sys.executable}


def test_torch_is_loaded_by_its_own_loader_and_a_torch_unlike_any_breaks_nothing(start):
    text = "import torch; print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__, torch.__file__[-17:])"
    done, notes = start(["-c", text])
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "torch executed as SourceFileLoader",
        "SourceFileLoader SourceFileLoader torch/__init__.py",
    ]
    assert {"python", "torch"} <= set(notes)


@pytest.mark.parametrize("package", [False, True])
def test_an_existing_sitecustomize_still_runs_and_is_the_one_that_is_imported(start, tmp_path, package):
    theirs = write(tmp_path / "theirs", "import sys; print('theirs'); mark = 7\n", package)
    done, notes = start(["-c", "import sitecustomize, torch; print(sitecustomize.mark, sitecustomize.__file__)"], theirs)
    lines = done.stdout.splitlines()
    assert lines[0] == "theirs" and lines[-1].startswith("7 ") and str(theirs) in lines[-1]
    assert lines.count("theirs") == 1
    assert "torch" in notes


def test_one_in_the_environment_itself_still_runs(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "sitecustomize.py").write_text("print('of the venv')\n")
    env = {**os.environ, "PYTHONPATH": str(SITE), VARIABLE: Plan(out="x", run_id="x").to_text()}
    done = subprocess.run([venv / "bin" / "python", "-c", ""], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "of the venv\n"


def test_one_that_fails_is_reported_by_python_as_without_us(start, tmp_path):
    theirs = write(tmp_path / "theirs", "raise ValueError('no')\n")
    done, notes = start(["-c", "import torch; print('on')"], theirs)
    assert done.returncode == 0 and done.stdout.endswith("on\n")
    assert "Error in sitecustomize" in done.stderr and "ValueError: no" in done.stderr
    assert "torch" in notes


def test_without_a_plan_nothing_is_followed(start, tmp_path):
    theirs = write(tmp_path / "theirs", "print('theirs')\n")
    done, notes = start(["-c", "import torch, sys; print('dtprof' in sys.modules)"], theirs, plan=False)
    assert done.stdout.splitlines()[0] == "theirs" and done.stdout.endswith("False\n")
    assert notes == {}


def test_a_python_without_dtprof_is_said(start, tmp_path):
    blocked = tmp_path / "blocked" / "dtprof"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not here')\n")
    done, notes = start(["-c", "import torch; print('on')"], blocked.parent)
    assert done.returncode == 0 and done.stdout.endswith("on\n") and done.stderr == ""
    assert "not here" in notes["no dtprof"]


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_pythons_that_are_shut_run_unmeasured(start, flag):
    done, notes = start([flag, "-c", "print('on')"])
    assert (done.stdout, notes) == ("on\n", {})


def test_a_missing_torch_is_missed_as_without_us(start, tmp_path):
    (tmp_path / "lib" / "torch" / "__init__.py").unlink()
    (tmp_path / "lib" / "torch").rmdir()
    script = tmp_path / "script.py"
    script.write_text("""
import importlib.util, sys
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry]
print(importlib.util.find_spec("torch"))
""")
    done, _ = start([script])
    assert done.stdout == "None\n"


def test_only_one_file_lies_in_front_of_pythons_path():
    assert sorted(p.name for p in Path(SITE).iterdir() if p.suffix == ".py") == ["__init__.py", "sitecustomize.py"]
