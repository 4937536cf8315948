"""Runs on disk: written whole or not at all, and damage that names its file."""

import json

import pytest

from dtprof import run as runs
from dtprof.errors import DamagedRun
from dtprof.run import Manifest, MemoryStore, ParquetStore, Part, Run
from dtprof.table import Table


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


class Broken(Exception):
    """What a writer in a test raises."""


def test_a_writer_that_raises_leaves_nothing(tmp_path):
    def write(path):
        path.write_text("half")
        raise Broken

    with pytest.raises(Broken):
        runs.write_atomic(tmp_path / "deep" / "x.json", write)
    assert files_below(tmp_path) == []


def test_a_writer_that_raises_keeps_the_old_file(tmp_path):
    target = tmp_path / "x.json"
    target.write_text("old")

    def write(path):
        path.write_text("half of the new")
        raise Broken

    with pytest.raises(Broken):
        runs.write_atomic(target, write)
    assert files_below(tmp_path) == ["x.json"]
    assert target.read_text() == "old"


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    def write_table(table, path, **options):
        path.write_bytes(b"PAR1")
        raise OSError("No space left on device")

    monkeypatch.setattr(pq, "write_table", write_table)
    with pytest.raises(OSError, match="No space"):
        runs.write_tables(tmp_path, {("steps", 0): Table.of("steps", step=[1])})
    assert files_below(tmp_path) == []


def test_what_a_store_is_given_it_gives_back(tmp_path):
    tables = {("steps", 0): Table.of("steps", step=[1, 2]), ("collectives", None): Table.of("collectives", id=[0], n=[2])}
    runs.write_tables(tmp_path, tables)
    assert files_below(tmp_path) == ["collectives.parquet", "steps/part00000.parquet"]
    for store in (MemoryStore(tables), ParquetStore(tmp_path)):
        run = Run(Manifest(), store, "", "dtprof")
        assert run.table("steps", 0)["step"].tolist() == [1, 2]
        assert run.table("collectives").row(0)["n"] == 2
        assert len(run.table("steps", 7)) == 0
        assert len(run.table("participations")) == 0


def test_a_table_is_asked_for_in_its_scope():
    run = Run(Manifest(), MemoryStore({}), "", "dtprof")
    with pytest.raises(ValueError, match="steps has scope part"):
        run.table("steps")
    with pytest.raises(ValueError, match="collectives has scope run"):
        run.table("collectives", 0)


def test_a_manifest_comes_back_as_it_was(tmp_path):
    manifest = Manifest(
        run_id="a1", job="ddp", command=["torchrun", "train.py"], world_size=8, mesh={"dp": 2, "pp": 4},
        coordinates={"3": {"dp": 0, "pp": 3}}, groups=[{"name": "0", "ranks": [0, 1]}], knobs={"bucket_cap_mb": 50},
        own_cost={"fraction": 0.002, "low": 0.001, "high": 0.004},
        parts=[Part(ordinal=0, rank=3, attempt=1, host="a", clock_offset_ns=-5, clock_residual_ns=2000)],
    )  # fmt: skip
    runs.write_manifest(tmp_path / "manifest.json", manifest)
    assert runs.read_manifest(tmp_path / "manifest.json") == manifest
    assert json.loads((tmp_path / "manifest.json").read_text())["schema"] == manifest.schema


def test_a_manifest_of_a_later_version_still_opens(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema": 1, "parts": [{"ordinal": 0, "moon": 1}], "phase": "full"}')
    assert runs.read_manifest(tmp_path / "manifest.json").parts == [Part(ordinal=0)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"parts": 7}', '{"parts": [{"rank": 1}]}', "\x00\xff"])
def test_a_damaged_manifest_names_the_file(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedRun) as caught:
        runs.read_manifest(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_manifest_that_is_not_there_names_the_file(tmp_path):
    with pytest.raises(DamagedRun, match=r"manifest\.json"):
        runs.read_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_damaged_table_names_the_file(tmp_path, keep):
    path = runs.table_path(tmp_path, "steps", 3)
    runs.write_parquet(Table.of("steps", step=list(range(100))), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedRun) as caught:
        ParquetStore(tmp_path).load("steps", 3)
    assert str(path) in caught.value.message


def test_ranks_and_world_size():
    parts = [Part(ordinal=0, rank=1, world_size=8), Part(ordinal=1, rank=0), Part(ordinal=2, rank=1), Part(ordinal=3)]
    run = Run(Manifest(parts=parts), MemoryStore({}), "", "kineto")
    assert run.ranks == [0, 1]
    assert run.world_size == 8
    assert Run(Manifest(parts=parts, world_size=16), MemoryStore({}), "", "kineto").world_size == 16
    assert Run(Manifest(), MemoryStore({}), "", "kineto").world_size is None


def test_quality_rows():
    table = runs.quality_rows([("a.json", "truncated", 1, "its last step is missing")])
    assert table.row(0) == {"source": "a.json", "what": "truncated", "count": 1, "effect": "its last step is missing"}
    assert len(runs.quality_rows([])) == 0
