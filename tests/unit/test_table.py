"""Tables: every kind of column, missing values included, through memory, Arrow and Parquet."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtprof.run import read_parquet, write_parquet
from dtprof.schema import MISSING, MISSING32, TABLES
from dtprof.table import Strings, Table

I64 = st.integers(-(2**63) + 1, 2**63 - 1)
I32 = st.integers(-(2**31) + 1, 2**31 - 1)
PLAIN = {
    "i64": I64,
    "i32": I32,
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(st.characters(codec="utf-8"), max_size=6),
    "ints": st.lists(I64, max_size=3).map(tuple),
    "strs": st.lists(st.text(max_size=3), max_size=3).map(tuple),
}


def cell(column):
    values = st.sampled_from(column.values) if column.kind == "enum" else PLAIN[column.kind]
    return values if column.kind == "bool" else st.none() | values


def rows_of(name):
    row = st.fixed_dictionaries({}, optional={c.name: cell(c) for c in TABLES[name].columns})
    return st.lists(row, max_size=5)


def as_written(name, rows):
    """What a table of these rows must read as: every column there, absent ones missing (False for bool)."""
    absent = {c.name: False if c.kind == "bool" else None for c in TABLES[name].columns}
    return [{**absent, **row} for row in rows]


def as_read(table):
    return [table.row(i) for i in range(len(table))]


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
def test_rows_survive_arrow(name, data):
    rows = data.draw(rows_of(name))
    table = Table.from_rows(name, rows)
    assert as_read(table) == as_written(name, rows)
    back = Table.from_arrow(name, table.to_arrow())
    if table.stored:
        assert as_read(back) == as_written(name, rows)


@given(rows=rows_of("groups"))
def test_rows_survive_parquet(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "groups.parquet"
    write_parquet(Table.from_rows("groups", rows), path)
    assert as_read(read_parquet("groups", path)) == as_written("groups", rows)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_rows_survives_parquet(name, tmp_path):
    path = tmp_path / "x.parquet"
    for table in (Table.empty(name), Table.of(name, **{c.name: [] for c in TABLES[name].columns})):
        write_parquet(table, path)
        back = read_parquet(name, path)
        assert len(back) == 0
        assert back.stored == table.stored


def test_rows_that_say_nothing_are_still_rows(tmp_path):
    table = Table.from_rows("steps", [{}, {}])
    write_parquet(table, tmp_path / "steps.parquet")
    assert len(read_parquet("steps", tmp_path / "steps.parquet")) == len(table) == 2
    assert table.row(1)["host_ts"] is None


@given(a=rows_of("comm"), b=rows_of("comm"), c=rows_of("comm"))
def test_concat_is_one_after_the_other(a, b, c):
    tables = [Table.from_rows("comm", rows) for rows in (a, b, c)]
    assert as_read(Table.concat(tables)) == as_written("comm", a + b + c)


@given(rows=rows_of("buckets"), data=st.data())
def test_take_by_index_and_by_mask(rows, data):
    table = Table.from_rows("buckets", rows)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), bool)
    picked = [row for row, keep in zip(as_read(table), mask, strict=True) if keep]
    assert as_read(table.take(mask)) == picked
    assert as_read(table.take(np.flatnonzero(mask))) == picked


def test_a_column_never_stored_reads_as_missing():
    table = Table.of("events", ts=[1, 2])
    assert table["dur"].tolist() == [MISSING, MISSING]
    assert table["lane"].tolist() == [MISSING32, MISSING32]
    assert table.text("name") == [None, None]
    assert table.text("kind") == [None, None]
    assert not table.known("dur").any()
    assert table.stored == ("ts",)


def test_missing_is_never_zero():
    table = Table.from_rows("collectives", [{"bytes": 0, "busbw": 0.0, "seq": None}, {"bytes": None}])
    assert table.known("bytes").tolist() == [True, False]
    assert table.known("busbw").tolist() == [True, False]
    assert not table.known("seq").any()


def test_text_and_enum_columns_are_found_by_name():
    table = Table.of("events", ts=[1, 2, 3], kind=["kernel", "comm", None], name=["a", None, "a"])
    assert table.is_("kind", "kernel", "comm").tolist() == [True, True, False]
    assert table.is_("name", "a").tolist() == [True, False, True]
    assert not table.is_("name", "b").any()
    assert table.text("kind") == ["kernel", "comm", None]


def test_missing_text_is_not_what_an_absent_name_matches():
    table = Table.of("events", ts=[1], name=[None])
    assert not table.is_("name", "never seen").any()


def test_strings_keep_one_code_per_text():
    text = Strings.of(["a", "b", None, "a"])
    assert text.values == ("a", "b")
    assert text.codes.tolist() == [0, 1, -1, 0]


def test_with_columns_replaces_and_adds():
    table = Table.of("events", ts=[1, 2], name=["a", "b"]).with_columns(step=[5, 6], name=["c", None])
    assert table["step"].tolist() == [5, 6]
    assert table.text("name") == ["c", None]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="differ in length"):
        Table.of("events", ts=[1, 2], dur=[1])
    with pytest.raises(ValueError, match="2 rows"):
        Table.of("events", ts=[1, 2]).with_columns(dur=[1])


def test_unknown_columns_are_refused_in_code_and_ignored_in_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(KeyError, match="no column 'when'"):
        Table.of("events", when=[1])
    pq.write_table(pa.table({"ts": [1], "when": [2]}), tmp_path / "events.parquet")
    assert read_parquet("events", tmp_path / "events.parquet").stored == ("ts",)


def test_an_unknown_enum_value_is_refused_in_code_and_missing_in_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(ValueError, match="hologram"):
        Table.of("events", kind=["hologram"])
    pq.write_table(pa.table({"kind": ["hologram", "kernel"]}), tmp_path / "events.parquet")
    assert read_parquet("events", tmp_path / "events.parquet").text("kind") == [None, "kernel"]


def test_slices_and_chunks_come_back_with_their_gaps():
    """Eleven rows, so that bits of gaps and of truth do not begin at a byte."""
    rows = [{"step": i, "host_ts": None if i % 3 else 2**62 + i, "loss": None if i % 2 else i / 2, "captured": i % 4 == 0,
             "kind": None if i == 5 else "train"} for i in range(11)]  # fmt: skip
    arrow = Table.from_rows("steps", rows).to_arrow()
    back = Table.from_arrow("steps", pa.concat_tables([arrow.slice(3), arrow.slice(1, 2), arrow.slice(0, 0)]))
    keys = ("step", "host_ts", "loss", "captured", "kind")
    assert [{k: back.row(i)[k] for k in keys} for i in range(10)] == [rows[i] for i in (*range(3, 11), 1, 2)]
