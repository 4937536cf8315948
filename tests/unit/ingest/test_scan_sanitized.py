"""The C scanner under the address and undefined-behaviour sanitizers, on damaged files and on plain garbage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = """
import importlib.util, random, sys
spec = importlib.util.spec_from_file_location("dtprof.ingest.kineto._scan", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[spec.name] = module
from tests.unit.ingest.scan_damage import FRAGMENTS, damaged
from tests.unit.ingest.scan_lab import generated, scan

WORDS = FRAGMENTS + (b'{"ph":"X","ts":1,"dur":2,"name":"n","args":{"External id":', b'{"ph":"B","ts":', b'"', b"1", b"}},")
for seed in range(int(sys.argv[2])):
    rng = random.Random(seed)
    sizes = rng.choice([None, [1], [rng.randrange(1, 200) for _ in range(30)]])
    scan(damaged(generated(rng, rng.choice([1, 6, 30])), rng, rng.choice([1, 3, 20])).text, "c", sizes)
    scan(rng.randbytes(rng.randrange(500)), "c", sizes)
    scan(b'{"traceEvents":[' + b"".join(rng.choices(WORDS, k=100)), "c", sizes)
print("clean")
"""


def gcc_library(name):
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    return found if os.path.isabs(found) else None


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_c_scanner_is_clean_under_sanitizers(tmp_path):
    if not gcc_library("libasan.so"):
        pytest.skip("gcc has no address sanitizer here")
    source = ROOT / "dtprof" / "ingest" / "kineto" / "_scan.c"
    library = tmp_path / "_scan.so"
    flags = ["-O1", "-g", "-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-shared", "-fPIC"]
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(["gcc", *flags, include, str(source), "-o", str(library)], check=True)
    env = os.environ | {"LD_PRELOAD": gcc_library("libasan.so"), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, str(library), "400"], env=env, capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "clean", ran.stderr[-3000:]
