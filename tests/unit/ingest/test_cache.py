"""The ingest cache: what is damaged is said, dropped, and read from the trace again."""

import shutil

import pytest

import dtprof
from dtprof.errors import DamagedRun
from dtprof.ingest import cache
from tests.unit.kineto_maker import Trace


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A trace, a cache that keeps small ones too, and the folder that it has there."""
    monkeypatch.setenv("DTPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 0)
    made = Trace(0, 1)
    for step in range(3):
        made.step(step, 1000.0 * step, 1000.0 * step + 900)
    path = made.write(tmp_path / "trace.json")
    rows = len(dtprof.open_run(path).table("events", 0))
    assert rows
    return path, rows


def test_a_damaged_table_is_named_and_read_anew_by_the_next_opening(trace):
    path, rows = trace
    (table,) = (cache.root() / "ingest").glob("*/events.parquet")
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(DamagedRun) as error:
        dtprof.open_run(path).table("events", 0)
    assert str(table) in str(error.value) and "again" in error.value.hint
    assert len(dtprof.open_run(path).table("events", 0)) == rows


def test_a_cache_that_was_removed_is_made_again(trace):
    path, rows = trace
    shutil.rmtree(cache.root())
    assert len(dtprof.open_run(path).table("events", 0)) == rows
