"""The table of a calibration: what was measured, less what only the beginning of a connection made slow."""

import json

import pytest

from dtprof.errors import InputError
from dtprof.model.cost import from_calibration

MS = 1_000_000


def written(folder, alone, beside):
    rows = [(size, times, 1) for size, times in alone.items()] + [(size, times, 2) for size, times in beside.items()]
    lines = [
        {"kind": "collective", "op": "all_reduce", "n": 2, "bytes": size, "in_flight": flight, "groups": 1, "traced": False,
         "times_ns": [t * MS for t in times]}
        for size, times, flight in rows
    ]  # fmt: skip
    (folder / "calibration.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return from_calibration(folder, "all_reduce", 2)


def test_sizes_stand_by_their_lower_quartile(tmp_path):
    table = written(tmp_path, {4096: [2, 2, 2, 9], 8192: [4, 4, 4, 4]}, {4096: [3, 3, 3, 3], 8192: [8, 8, 8, 8]})
    assert table.alone(4096) == 2 * MS
    assert table.alone(6144) == 3 * MS
    assert (table.slowdown(4096), table.slowdown(8192)) == (1.5, 2.0)


def test_neither_company_nor_more_bytes_make_an_operation_faster(tmp_path):
    """One alone took 26 ms while windows still opened; two at once took 20 later, and four times the bytes 24."""
    table = written(tmp_path, {1 << 18: [25], 1 << 20: [26], 1 << 22: [24]}, {1 << 20: [20], 1 << 22: [36]})
    assert table.alone(1 << 18) == table.alone(1 << 20) == 20 * MS
    assert table.slowdown(1 << 20) == 1.0
    assert table.slowdown(1 << 22) == 1.5


def test_another_number_of_ranks_is_refused_with_what_to_measure(tmp_path):
    written(tmp_path, {4096: [1]}, {})
    with pytest.raises(InputError, match="no all_reduce over 3 ranks; measure one: dtprof job collectives --ranks 3"):
        from_calibration(tmp_path, "all_reduce", 3)
