"""What a large report takes to open: memory within a bound that the number of its events gives."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
# a run's own tables take 70 bytes an event; beside them stand the columns of one report on their way there
BYTES_PER_EVENT, FIXED_MB = 130, 64
OPEN = """
import json, resource, sys
import pyarrow.parquet
from pathlib import Path
from dtprof.ingest.nsys.reader import ingest_report

def peak():
    return int(next(t for t in open("/proc/self/status") if t.startswith("VmHWM")).split()[1]) / 1024

before = peak()
(part,) = ingest_report(Path(sys.argv[1]), use_cache=False).parts
events = part.tables["events"]
print(json.dumps({"added_mb": peak() - before, "events": len(events), "launched": int((events["launch"] >= 0).sum())}))
"""


@pytest.mark.slow
def test_five_million_events_are_opened_within_the_bound(tmp_path):
    spec = importlib.util.spec_from_file_location("nsys_benchmark", ROOT / "benchmarks" / "nsys.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    path, count = tmp_path / "large.sqlite", 5_000_000
    benchmark.make(path, count)
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["events"] == count + count // 20_000 and found["launched"] == count // 2
    assert found["added_mb"] < BYTES_PER_EVENT * count / 2**20 + FIXED_MB
