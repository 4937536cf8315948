"""Axes of process groups come from the job's layout, by the members."""

from dtprof.ingest.axes import with_axes
from dtprof.table import Table

LAYOUT = [
    {"name": "default_pg", "ranks": [0, 1, 2, 3]},
    {"name": "tp", "axis": "tp", "ranks": [0, 1]},
    {"name": "dp", "axis": "dp", "ranks": [2, 0]},
    {"name": "odd", "axis": 3, "ranks": [0, 3]},
    {"axis": "pp", "ranks": None},
]
ROW = {"name": "g", "description": None, "size": None, "backend": "gloo"}


def groups(*members, axis=None):
    return Table.from_rows("groups", [{**ROW, "id": n, "ranks": ranks, "axis": axis} for n, ranks in enumerate(members)])


def test_groups_of_the_layout_get_its_axis_and_others_none():
    found = with_axes(groups((0, 1), (0, 2), (0, 3), (0, 1, 2, 3), None), LAYOUT)
    assert found.text("axis") == ["tp", "dp", None, None, None]
    assert found["id"].tolist() == [0, 1, 2, 3, 4]


def test_an_axis_that_is_known_stays():
    assert with_axes(groups((0, 1), axis="ep"), LAYOUT).text("axis") == ["ep"]


def test_without_a_layout_or_groups_nothing_changes():
    kept = groups((0, 1))
    assert with_axes(kept, []) is kept
    assert len(with_axes(Table.empty("groups"), LAYOUT)) == 0
