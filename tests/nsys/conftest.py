"""The real Nsight Systems, where it is installed: its reports on what we write."""

import csv
import os
import re
import shutil
import subprocess

import pytest

REPORTS = (
    "nvtxsum", "nvtxppsum", "nvtxsesum", "nvtxpptrace", "nvtxkernsum", "nvtxgpuproj", "gpukernsum", "gpumemtimesum",
    "gpumemsizesum", "gpusum", "apigpusum", "cudaapisum", "cudaapitrace", "gputrace", "kernexecsum", "kernexectrace",
)  # fmt: skip


@pytest.fixture(scope="session")
def nsys():
    """The program; its reports have the names and columns of 2022.4, as in Debian bookworm."""
    found = shutil.which("nsys")
    reason = "Nsight Systems is not installed: .ci/run says how on Debian bookworm"
    if found:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60).stdout
        match = re.search(r"(\d{4}\.\d+)", version)
        if match and match[1] == "2022.4":
            return found
        reason = f"{version.strip()}: names and columns of reports were checked with 2022.4 only"
    if os.environ.get("DTPROF_NSYS_REQUIRED") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def stats(nsys, tmp_path):
    """``stats(database, names)``: reports by name as rows of texts; None for one that has nothing to report on."""

    def run(database, names=REPORTS):
        out = tmp_path / "reports"
        out.mkdir(exist_ok=True)
        words = [nsys, "stats", "--force-overwrite", "true", "--format", "csv", "--report", ",".join(names)]
        done = subprocess.run([*words, "--output", str(out / "x"), str(database)], capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        found = {}
        for name in names:
            path = out / f"x_{name}.csv"
            found[name] = None
            if path.exists():
                with path.open(newline="") as file:
                    found[name] = list(csv.DictReader(file))
                path.unlink()
        return found

    return run
