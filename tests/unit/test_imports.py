"""What importing dtprof costs, and that it analyses without what the base install does not bring."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "pandas", "numpy", "pyarrow", "rich", "msgspec", "isal", "nvtx", "pynvml")
# stands in for a base install: these raise ImportError, as if they were not there
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "pandas", "nvtx", "pynvml", "hta"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code, *args):
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(python(code).splitlines()[-1].split())


def test_the_check_can_fail():
    assert "numpy" in loaded_by("import numpy")


def test_import_dtprof_loads_nothing_heavy():
    assert loaded_by("import dtprof") & set(HEAVY) == set()


def test_the_training_side_imports_no_torch_by_itself():
    assert loaded_by("import dtprof.session") & {"torch", "pandas", "pyarrow", "rich"} == set()


def test_help_needs_no_heavy_package():
    code = "import dtprof.cli, sys\ntry: dtprof.cli.main(['--help'])\nexcept SystemExit: pass"
    assert loaded_by(code) & {"torch", "pandas"} == set()


def event(cat, name, ts, dur, tid, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0 if cat == "kernel" else 9,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def small_trace():
    """Two steps; in each, one launch at 10 us and the kernel it launches, 20 us to 60 us after the step's start."""
    events = []
    for step in range(2):
        t, correlation = 1000 + 100 * step, 50 + step
        events.append(event("user_annotation", f"ProfilerStep#{step}", t, 100, 1))
        events.append(event("cuda_runtime", "cudaLaunchKernel", t + 10, 5, 1, correlation=correlation))
        events.append(event("kernel", "gemm", t + 20, 40, 7, correlation=correlation, device=0, stream=7, context=1))
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}


@pytest.mark.parametrize("block", ["", BLOCK], ids=["full install", "base install"])
def test_a_trace_is_analysed(tmp_path, block):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(small_trace()))
    code = f"{block}\nimport sys\nfrom dtprof.cli import main\nsys.exit(main(['report', sys.argv[1], '--json']))"
    report = json.loads(python(code, str(path)))
    device = report["ranks"][0]["device"]
    assert (device["span_ns"], device["compute_ns"], device["comm_ns"]) == (140_000, 80_000, 0)
    assert [s["complete"] for s in report["ranks"][0]["steps"]] == [True, False]
    assert [s["dur_ns"] for s in report["ranks"][0]["steps"]] == [100_000, 40_000]
