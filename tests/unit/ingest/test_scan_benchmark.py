"""The ingest benchmark: its inputs are sound traces, its rows have the promised keys."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dtprof.ingest.kineto.scan import has_c, scan_file
from tests.unit.ingest.scan_lab import generated

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "trace.json"
    path.write_bytes(generated(random.Random(2), 400, "kineto").text)
    return path


def test_tiles_are_later_and_have_ids_of_their_own(source, tmp_path):
    spec = importlib.util.spec_from_file_location("tiling", BENCHMARKS / "tiling.py")
    assert spec is not None and spec.loader is not None
    tiling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiling)
    size = tiling.tile(source, tmp_path / "big.json.gz", 4.2 * source.stat().st_size / 1e6)
    one, big = scan_file(source), scan_file(tmp_path / "big.json.gz")
    assert 3.8 < size / source.stat().st_size < 4.4
    assert big.damage == []
    assert big.header == one.header
    assert len(big.ts) == 4 * len(one.ts)
    ids = big.external[big.external >= 0]
    assert len(set(ids.tolist())) == len(ids)
    quarters = big.ts.reshape(4, -1)
    assert (quarters[1:].min(axis=1) > quarters[:-1].max(axis=1)).all()
    assert (big.dur.reshape(4, -1) == one.dur).all()


def test_rows_have_their_keys(source):
    command = [sys.executable, str(BENCHMARKS / "ingest.py"), "--json", "--mb", "0.3", "--path", str(source), "--repeat", "1"]
    methods = ["gunzip", "scanner", "fallback", "open"]
    ran = subprocess.run([*command, "--methods", *methods], capture_output=True, text=True, check=True)
    rows = {row["method"]: row for row in json.loads(ran.stdout)["rows"]}
    assert list(rows) == methods
    for method in methods if has_c() else ["gunzip", "fallback", "open"]:
        assert rows[method]["input"] == "0.3 MB"
        assert {"cpu_s", "rss_added_mb", "x_gunzip", "x_floor", "x_hta"} <= set(rows[method])
        assert rows[method]["cpu_s"] > 0


def test_a_method_that_cannot_run_says_why(source):
    command = [sys.executable, str(BENCHMARKS / "ingest.py"), "--json", "--mb", "0.3", "--path", str(source), "--repeat", "1"]
    without = ["--methods", "gunzip", "hta", "--hta-python", "/nowhere/python"]
    ran = subprocess.run([*command, *without], capture_output=True, text=True, check=True)
    rows = {row["method"]: row for row in json.loads(ran.stdout)["rows"]}
    assert "/nowhere/python" in rows["hta"]["skipped"]
    assert "cpu_s" in rows["gunzip"]
