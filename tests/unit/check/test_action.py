"""The GitHub action: its script run as a runner runs it, and its description in step with the script."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.analyse.test_diff import run as traces
from tests.unit.cli.test_gate import RECORDED

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def action(tmp_path):
    """``action(NAME=value, …)``: run action.sh with these inputs; returns (exit code, outputs, stderr)."""
    (tmp_path / "job.py").write_text(RECORDED)
    (tmp_path / "bin").mkdir()
    dtprof = tmp_path / "bin" / "dtprof"
    dtprof.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m dtprof "$@"\n')
    dtprof.chmod(0o755)

    def go(**inputs):
        files = {"GITHUB_OUTPUT": str(tmp_path / "outputs"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
        env = {**os.environ, **files, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **inputs}
        done = subprocess.run(["bash", ROOT / "action.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        outputs = dict(line.split("=", 1) for line in (tmp_path / "outputs").read_text().splitlines())
        return done.returncode, outputs, done.stderr

    return go


def job(ms):
    return f"{sys.executable} -I -S job.py {ms}"


def test_a_slower_candidate(action, tmp_path):
    code, outputs, err = action(BASELINE_CMD=job(10), CANDIDATE_CMD=job(11), PAIRS="7", ARGUMENTS="--no-confirm --no-cause")
    assert (
        code == 1 and outputs["outcome"] == "fail" and outputs["headline"].startswith("FAIL: step 10.0 ms to 11.0 ms, +10% (")
    )
    assert "::error title=dtprof gate::FAIL" in err
    assert json.loads((tmp_path / "dtprof-out/dtprof.json").read_text())["outcome"] == "fail"
    assert ElementTree.parse(tmp_path / "dtprof-out/dtprof.xml").getroot().tag == "testsuites"
    assert (tmp_path / "summary").read_text().startswith("### FAIL") and (tmp_path / "dtprof-out/dtprof.md").exists()


def test_too_few_pairs_are_an_error(action):
    code, outputs, err = action(BASELINE_CMD=job(10), CANDIDATE_CMD=job(10), PAIRS="3")
    assert (code, outputs["outcome"]) == (3, "error") and "cannot decide" in err


def test_a_run_against_a_baseline_that_is_of_another_machine(action, tmp_path):
    fingerprint = {"devices": ["another"], "world_size": 8, "hosts": 1, "backend": "nccl"}
    step = {"kind": "time", "values": [1e6]}
    baseline = {"fingerprint": fingerprint, "runs": [{"run": "r"}], "metrics": {"step_time_ns": step}}
    (tmp_path / "b.json").write_text(json.dumps({"kind": "dtprof baseline", "schema": 1, "baselines": [baseline]}))
    traces(tmp_path, "run", {}, {})
    code, outputs, _ = action(RUN="run", BASELINE="b.json")
    assert (code, outputs["outcome"]) == (0, "inconclusive") and "another device" in outputs["headline"]
    code, _, _ = action(RUN="run", BASELINE="b.json", INCONCLUSIVE="fail")
    assert code == 2


def test_every_input_reaches_the_script():
    described = (ROOT / "action.yml").read_text()
    script = (ROOT / "action.sh").read_text()
    inputs = re.findall(r"^  ([a-z-]+):$", described.partition("outputs:\n")[0], flags=re.MULTILINE)
    passed = dict(re.findall(r"^ {8}([A-Z_]+): \$\{\{ inputs\.([a-z-]+) \}\}$", described, flags=re.MULTILINE))
    assert sorted(passed.values()) == sorted(inputs) and len(inputs) == 11
    for name in passed:
        assert f"${{{name}:-" in script, name
