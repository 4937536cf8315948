"""In a training job our collectors load neither the reading half of dtprof nor what only that half needs."""

import subprocess
import sys

import pytest

from dtprof.plugins import announced

OURS = [entry for entry in announced("collectors") if entry.dist and entry.dist.name == "dtprof"]


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_a_collector_is_light(entry):
    code = f"import sys, {entry.module}; print(*sorted({{m for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert loaded & {"dtprof.ingest", "dtprof.analyse", "pyarrow", "pandas", "torch", "rich", "pynvml"} == set()
