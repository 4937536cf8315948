"""Operations recorded at issue meet their spans, and never one of another kind."""

from dtprof.ingest.issued import join_issued
from dtprof.run import Part
from dtprof.table import Table

PART = Part(ordinal=0, rank=0, backend="gloo")


def spans(*rows):
    """Tables with a communication span of (start, operation, bytes) each."""
    events = [{"ts": ts, "dur": 5, "kind": "comm", "name": f"gloo:{op}", "lane": 0} for ts, op, _ in rows]
    comm = [{"event": n, "op": op, "bytes_in": size} for n, (_, op, size) in enumerate(rows)]
    return {"events": Table.from_rows("events", events), "comm": Table.from_rows("comm", comm)}


def issued(created, op, size):
    return {"created_ns": created, "op": op, "bytes_in": size, "bytes_out": size, "ranks": [0, 1], "group": "0", "seq": 1}


def test_a_send_does_not_take_the_record_of_an_all_reduce_of_its_size():
    quality = []
    tables = spans((10, "send", 64), (20, "all_reduce", 64), (30, "recv", 64))
    comm = join_issued(tables, [issued(5, "all_reduce", 64)], PART, quality)["comm"]
    assert [comm.row(n)["seq"] for n in range(3)] == [None, 1, None]
    assert [(what, count) for _, what, count, _ in quality] == [
        ("sends and receives, which a CPU backend's flight recorder leaves out", 2)
    ]


def test_a_recorded_send_meets_its_span():
    quality = []
    comm = join_issued(spans((10, "send", 64), (20, "all_reduce", 64)), [issued(5, "send", 64)], PART, quality)["comm"]
    assert [comm.row(n)["group"] for n in range(2)] == [0, None]
    assert [(what, count) for _, what, count, _ in quality] == [("communication spans that no recorded operation explains", 1)]
