"""One case of the diagnosis benchmark, from the job to its row; and again from what was kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.diagnosis_runs import RECORD

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "diagnosis.py"


def benchmark(*words):
    done = subprocess.run([sys.executable, str(SCRIPT), *words, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_case_is_recorded_once_scored_and_scored_again(tmp_path):
    words = ["--jobs", "ddp", "--only", "out_of_data", "--healthy", "0"]
    found = benchmark(*words, "--keep", str(tmp_path))
    (row,) = found["rows"]
    assert (row["job"], row["fault"], row["found"], row["right_place"]) == ("ddp", "out_of_data=1:8", True, True)
    assert row["price_error"] is None  # such a fault has no truth in time
    assert (found["recall"], found["healthy_runs"], found["faults"]) == (1.0, 0, 1)
    assert len((tmp_path / RECORD).read_text().splitlines()) == 1
    assert benchmark(*words, "--again", str(tmp_path))["rows"] == found["rows"]
