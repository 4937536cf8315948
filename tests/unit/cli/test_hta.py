"""``dtprof hta``: what the real HTA says, and what is said where there is none, or nothing to read."""

import json
import os
import subprocess
from importlib.util import find_spec

import pytest

from dtprof.cli import hta, main
from dtprof.launch import hta as launch_hta


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr(hta, "find_spec", lambda name: None)


@pytest.fixture
def installed():
    if find_spec("hta") is None:
        message = "HolisticTraceAnalysis is not installed (make setup installs it)"
        if os.environ.get("DTPROF_TRUTH_REQUIRED") == "1":
            pytest.fail(message)
        pytest.skip(message)


def test_where_it_is_missing_the_command_that_installs_it_is_said(without, capsys):
    assert main(["hta", "anywhere"]) == 4
    assert "pip install 'dtprof[hta]'" in capsys.readouterr().err


@pytest.fixture
def answering(monkeypatch):
    """HTA answers at once, with what a test gives."""
    monkeypatch.setattr(hta, "find_spec", lambda name: object())

    def put(code=0, out="{}", err=""):
        monkeypatch.setattr(launch_hta.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, code, out, err))

    return put


def test_an_analysis_that_fails_is_a_sentence_beside_the_others(truth, answering, capsys):
    answering(out=json.dumps({"queue_length": {"error": "ValueError: no"}, "launches": {"rows": [{"rank": 0, "launches": 7}]}}))
    assert main(["hta", str(truth / "traces/kineto/h100_qwen_0.5b.json.gz")]) == 0
    text = capsys.readouterr().out
    assert "nothing: ValueError: no" in text
    assert "launches" in text and "7" in text


def test_a_child_that_dies_is_one_line(truth, answering, capsys):
    answering(code=1, err="Traceback\nMemoryError: too large")
    assert main(["hta", str(truth / "traces/kineto/h100_qwen_0.5b.json.gz")]) == 3
    assert "MemoryError: too large" in capsys.readouterr().err


def test_files_that_are_no_traces_are_refused(truth, answering, capsys):
    answering()
    assert main(["hta", str(truth / "traces/nsys/rtx3080_small.sqlite")]) == 3
    assert "nothing that HTA can read" in capsys.readouterr().err
    assert main(["hta", "--timeout", "0", str(truth / "traces/kineto/h100_qwen_0.5b.json.gz")]) == 3


def test_every_rank_has_its_file(truth):
    from dtprof.ingest import open_run

    files = hta.traces(open_run(truth / "traces/kineto/dlrm_8rank_v100"))
    assert sorted(files) == list(range(8))
    assert all(f"worker{rank}_" in path for rank, path in files.items())


@pytest.mark.slow
def test_the_real_one_answers(truth, installed, capsys):
    assert main(["hta", "--json", str(truth / "traces/kineto/h100_qwen_0.5b.json.gz")]) == 0
    found = json.loads(capsys.readouterr().out)
    (launches,) = found["launches"]["rows"]
    assert launches["launches"] == 1197
    shares = {row["bound_by"]: row["percent"] for row in found["critical_path"]["rows"]}
    # our own number beside its: 91% of this step computes
    assert shares["gpu_compute_bound"] == pytest.approx(86.7, abs=0.5)
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert [row["stream"] for row in found["queue_length"]["rows"]] == [7]
