"""The schema holds every hard shape: what is written by hand comes back from Parquet column by column."""

import numpy as np
import pytest

from dtprof.run import ParquetStore, Run, read_manifest, write_manifest, write_tables
from dtprof.schema import TABLES
from tests.unit.shapes import SHAPES


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]()


def test_every_column_survives_parquet(shape, tmp_path):
    write_tables(tmp_path / "tables", shape.tables)
    write_manifest(tmp_path / "manifest.json", shape.run.manifest)
    assert read_manifest(tmp_path / "manifest.json") == shape.run.manifest
    back = Run(read_manifest(tmp_path / "manifest.json"), ParquetStore(tmp_path / "tables"), str(tmp_path), "dtprof")
    for (name, part), table in shape.tables.items():
        read = back.table(name, part)
        assert set(read.stored) == set(table.stored)
        assert [read.row(i) for i in range(len(read))] == [table.row(i) for i in range(len(table))]


def test_events_ascend_and_references_point_where_they_should(shape):
    for part in shape.run.parts:
        events = shape.run.table("events", part.ordinal)
        assert (np.diff(events["ts"]) >= 0).all()
        assert events.known("dur").all()
        assert set(events["lane"].tolist()) <= set(shape.run.table("lanes", part.ordinal)["id"].tolist())
        launched = np.flatnonzero(events.known("launch"))
        calls = events["launch"][launched]
        assert events.take(calls).is_("kind", "runtime").all()
        assert (events["correlation"][launched] == events["correlation"][calls]).all()
        comm = shape.run.table("comm", part.ordinal)
        assert events.take(comm["event"]).is_("kind", "comm").all()
        assert set(comm["group"].tolist()) <= set(shape.run.table("groups", part.ordinal)["id"].tolist())


def test_every_table_that_a_part_can_have_is_in_some_shape():
    used = {name for make in SHAPES.values() for name, _ in make().tables}
    later = {"samples", "memory", "allocations", "quality"}
    assert used == {name for name, spec in TABLES.items() if spec.scope == "part"} - later


def test_a_batch_is_many_rows_of_one_event():
    shape = SHAPES["pipeline_batches"]()
    for part, sizes in shape.truth["batches"].items():
        comm = shape.run.table("comm", part)
        _, counts = np.unique(comm["batch"], return_counts=True)
        assert counts.tolist() == sizes
        for batch in np.unique(comm["batch"]).tolist():
            assert len(set(comm["event"][comm["batch"] == batch].tolist())) == 1


def test_bytes_on_the_wire_leave_out_what_stays_at_home():
    shape = SHAPES["moe_all_to_all_v"]()
    comm = [shape.run.table("comm", r) for r in range(4)]
    assert [c.row(0)["bytes_wire"] for c in comm] == shape.truth["bytes_wire"]
    assert [c.row(1)["bytes_wire"] for c in comm] == [None] * 4
    assert [c.row(1)["bytes_known"] for c in comm] == ["upper_bound"] * 4
    metrics = [shape.run.table("metrics", r) for r in range(4)]
    by_expert = [sum(m["value"][m["expert"] == e].sum() for m in metrics) for e in range(4)]
    assert by_expert == shape.truth["tokens_by_expert"]


def test_equal_correlations_of_two_processes_stay_apart():
    shape = SHAPES["both_call_it_device_0"]()
    for part, ids in shape.truth["correlations"].items():
        assert set(shape.run.table("events", part)["correlation"].tolist()) == ids
    assert len({p.pid for p in shape.run.parts}) == 2


@pytest.mark.parametrize("name", ["cuda_graph", "cuda_graph_under_recorded"])
def test_a_graph_launch_owns_its_kernels(name):
    shape = SHAPES[name]()
    events = shape.run.table("events", 0)
    calls = np.flatnonzero(events.is_("kind", "runtime"))
    assert [int((events["launch"] == c).sum()) for c in calls] == shape.truth["kernels_per_launch"]


def test_a_restarted_rank_is_one_rank_with_two_parts():
    shape = SHAPES["restarted_rank"]()
    assert shape.run.ranks == shape.truth["ranks"]
    assert sorted((p.rank, p.attempt) for p in shape.run.parts) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_simulated_run_stores_nothing_that_only_a_tracer_knows():
    shape = SHAPES["simulated"]()
    for name, columns in shape.truth["never_stored"].items():
        assert not set(columns) & set(shape.run.table(name, 0).stored)
