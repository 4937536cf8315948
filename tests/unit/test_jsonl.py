import json
import os

import pytest

from dtprof import jsonl
from dtprof.jsonl import Appender, older, read_lines


def test_lines_wait_for_a_second_and_no_longer(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(jsonl.time, "monotonic", lambda: now[0])
    lines = Appender(tmp_path / "a.jsonl")
    lines.add({"n": 1})
    now[0] += 0.9
    lines.add({"n": 2})
    assert read_lines(tmp_path / "a.jsonl") == ([], 0)
    now[0] += 0.1
    lines.add({"n": 3})
    assert read_lines(tmp_path / "a.jsonl") == ([{"n": 1}, {"n": 2}, {"n": 3}], 0)


def test_much_does_not_wait(tmp_path):
    lines = Appender(tmp_path / "a.jsonl", flush_s=1e9)
    for _ in range(100):
        lines.add({"text": "x" * 1000})
    assert len(read_lines(tmp_path / "a.jsonl")[0]) == 64
    lines.close()
    assert len(read_lines(tmp_path / "a.jsonl")[0]) == 100


def test_one_row_that_is_none_loses_no_other(tmp_path):
    lines = Appender(tmp_path / "a.jsonl", flush_s=1e9)
    for row in ({"n": 1}, {"n": object()}, {"n": 4}):
        lines.add(row)
    with pytest.raises(TypeError, match="object"):
        lines.close()
    assert [row["n"] for row in read_lines(tmp_path / "a.jsonl")[0]] == [1, 4]


def test_a_full_ring_keeps_the_newest(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = Appender(path, cap_bytes=4000, flush_s=0)
    for n in range(1000):
        lines.add({"n": n})
    lines.close()
    rows, bad = read_lines(path)
    assert bad == 0
    assert [r["n"] for r in rows] == list(range(rows[0]["n"], 1000))
    assert rows[0]["n"] > 0
    assert len(rows) > 100
    assert path.stat().st_size + older(path).stat().st_size <= 4000
    assert lines.rotations > 1


def test_torn_lines_are_counted_and_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2\n\n[3]\n\xff\xfe\n{"n":NaN}\n{"n":4}\n{"n":')
    assert read_lines(path) == ([{"n": 1}, {"n": 4}], 5)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path):
    lines = Appender(tmp_path / "a.jsonl", flush_s=1e9)
    lines.add({"n": 1})
    child = os.fork()
    if child == 0:
        lines.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_lines(tmp_path / "a.jsonl") == ([], 0)
    lines.close()
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"n": 1}


def test_a_full_disk_is_the_callers_to_handle(tmp_path):
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    lines = Appender(tmp_path / "a.jsonl", flush_s=0)
    with pytest.raises(OSError, match="No space"):
        lines.add({"n": 1})
    lines.close()
