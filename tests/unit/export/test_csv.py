"""CSV: every value comes back, units are told."""

import csv

from dtprof.export.csv_tables import CsvExporter
from dtprof.schema import TABLES
from tests.unit.export.samples import NAMES, hostile


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_table_with_rows_and_its_values(tmp_path):
    run = hostile()
    written = {w.path.name: w for w in CsvExporter().write(run, tmp_path)}
    for name, spec in TABLES.items():
        parts = [None] if spec.scope == "run" else [p.ordinal for p in run.parts]
        count = sum(len(run.table(name, p)) for p in parts)
        assert (f"{name}.csv" in written) == (count > 0), name
        if count:
            assert written[f"{name}.csv"].rows == len(rows(tmp_path / f"{name}.csv")) == count
    events = rows(tmp_path / "events.csv")
    first = run.table("events", 0)
    mine = [e for e in events if e["rank"] == "0"]
    assert [int(e["ts"]) for e in mine] == first["ts"].tolist()
    assert [e["name"] for e in mine] == first.text("name")
    assert {e["name"] for e in mine} >= set(NAMES)
    assert [int(e["row"]) for e in mine] == list(range(len(first)))
    assert {e["bytes"] for e in mine} == {"", "10"}


def test_groups_list_their_members(tmp_path):
    CsvExporter().write(hostile(), tmp_path)
    assert [g["ranks"] for g in rows(tmp_path / "groups.csv")] == ["0 1", "0 1"]


def test_units_are_told(tmp_path):
    CsvExporter().write(hostile(), tmp_path)
    told = {(r["table"], r["column"]): r["unit"] for r in rows(tmp_path / "columns.csv")}
    assert told[("events", "ts")] == "ns"
    assert told[("comm", "bytes_in")] == "bytes"
    assert len(told) == sum(len(s.columns) for s in TABLES.values())
