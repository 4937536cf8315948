"""The vocabulary holds together."""

import re

import pytest

from dtprof.schema import DEVICE_KINDS, EVENT_KINDS, MISSING, MISSING32, TABLES

ALL = [(spec, column) for spec in TABLES.values() for column in spec.columns]


def test_no_table_or_column_has_two_names_or_no_explanation():
    for name, spec in TABLES.items():
        assert spec.name == name
        assert spec.doc
        names = [c.name for c in spec.columns]
        assert len(names) == len(set(names)), name
    for spec, column in ALL:
        assert column.doc, (spec.name, column.name)
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)


def test_values_belong_to_enums_and_only_to_them():
    for spec, column in ALL:
        assert bool(column.values) == (column.kind == "enum"), (spec.name, column.name)
        assert len(set(column.values)) == len(column.values) <= 127


def test_nanoseconds_are_whole_numbers():
    for spec, column in ALL:
        if column.unit in ("ns", "bytes"):
            assert column.kind == "i64", (spec.name, column.name)


def test_device_kinds_are_event_kinds():
    assert set(DEVICE_KINDS) < set(EVENT_KINDS)


def test_missing_is_the_smallest_integer_of_its_size():
    assert MISSING == -(2**63)
    assert MISSING32 == -(2**31)


def test_an_unknown_column_names_its_table():
    with pytest.raises(KeyError, match="events has no column 'tz'"):
        TABLES["events"].column("tz")
