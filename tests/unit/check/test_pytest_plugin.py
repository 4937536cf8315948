"""The pytest plugin in sessions of its own, with real files. Clocks are replaced: a call takes what it says."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from xml.etree import ElementTree

import pytest

# every call moves the clock by what the function says
HEAD = """
import pytest
from dtprof.check import pytest_plugin

now = 0.0
calls = 0

@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(pytest_plugin.time, "perf_counter", lambda: now)

def taking(seconds, spread=0.0):
    def step():
        global now, calls
        calls += 1
        now += seconds * (1 + spread * ((7919 * calls) % 13 - 6) / 6)
    return step
"""


@pytest.fixture
def session(tmp_path):
    """``session(body, *options)``: run pytest on a file with this body; returns (exit code, output, {test: xml case})."""

    def go(body, *options):
        (tmp_path / "test_it.py").write_text(HEAD + body)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "--junitxml=j.xml",
            "--strict-markers",
        ]
        env = {**os.environ, "PYTHONWARNINGS": "error", "PYTEST_ADDOPTS": ""}
        done = subprocess.run(
            [*command, *options, "test_it.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        cases = {c.get("name"): c for c in ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase")}
        return done.returncode, done.stdout + done.stderr, cases

    return go


def test_pytest_finds_the_plugin_by_its_entry_point():
    assert "dtprof.check.pytest_plugin" in {e.value for e in entry_points(group="pytest11")}


def test_pass_fail_and_inconclusive(session):
    code, output, cases = session("""
@pytest.mark.dtprof_gate(margin="5%", pairs=8, steps=2)
def test_same(dtprof_gate):
    result = dtprof_gate(taking(1.0), taking(1.01))
    assert result.outcome == "pass" and result.document["pairs_used"] == 8

@pytest.mark.dtprof_gate(margin="5%", pairs=8)
def test_slower(dtprof_gate):
    dtprof_gate(taking(1.0), taking(1.1))

@pytest.mark.dtprof_gate(margin="1%", pairs=8, steps=1)
def test_noisy(dtprof_gate):
    dtprof_gate(taking(1.0, 0.5), taking(1.0, 0.5))
""")
    assert code == 1 and "1 failed, 1 passed, 1 skipped" in output
    assert "FAIL: step 1.00" in cases["test_slower"].find("failure").get("message")
    assert "INCONCLUSIVE" in cases["test_noisy"].find("skipped").get("message")
    (said,) = cases["test_same"].iter("property")
    assert said.get("name") == "dtprof_gate" and said.get("value").startswith("PASS")


def test_inconclusive_can_fail(session):
    body = "def test_noisy(dtprof_gate):\n    dtprof_gate(taking(1.0, 0.5), taking(1.0, 0.5), margin=0.01, steps=1)\n"
    code, output, _ = session(body, "--dtprof-inconclusive=fail", "--dtprof-pairs", "7")
    assert code == 1 and "7 pairs catch" in output.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("(12)", "takes keywords only"),
        ("(speed=3)", "has no setting 'speed'"),
        ("(margin='wide')", "is no share"),
        ("(pairs='many')", "pairs='many' is no number of 1 or more"),
        ("(steps=0)", "steps=0 is no number of 1 or more"),
        ("(pairs=3)", "cannot decide at 1.0%"),
    ],
)
def test_settings_that_make_no_sense_are_named(mark, said, session):
    body = f"@pytest.mark.dtprof_gate{mark}\ndef test_it(dtprof_gate):\n    dtprof_gate(taking(1.0), taking(1.0))\n"
    code, output, _ = session(body)
    assert code != 0 and said in output
