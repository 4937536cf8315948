"""Perfetto: the wire format by a decoder of this test; the real trace processor looks at it in tests/browser."""

import gzip
import struct
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtprof.export.perfetto import PerfettoExporter, proto
from dtprof.export.perfetto.tracks import edges
from tests.unit.export.samples import NAMES, hostile, unmarked


def fields(data):
    """(field, value) of a message: ints for varints and fixed64, bytes for the rest."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
        elif wire == 1:
            yield key >> 3, struct.unpack_from("<Q", data, at)[0]
            at += 8
        else:
            assert wire == 2
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size


@pytest.fixture
def packets(tmp_path):
    (written,) = PerfettoExporter().write(hostile(), tmp_path)
    return [dict(fields(body)) for field, body in fields(gzip.decompress(written.path.read_bytes())) if field == 1]


def slices(packets):
    """(name, ts, dur) of every slice, by a stack per track."""
    names, found, stacks = {}, [], defaultdict(list)
    for packet in packets:
        if 12 in packet:
            for field, entry in fields(packet[12]):
                if field == 2:
                    pair = dict(fields(entry))
                    names[pair[1]] = pair.get(2, b"").decode()
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        if event[9] == proto.BEGIN:
            stacks[event[11]].append((names[event[10]], packet[8]))
        elif event[9] == proto.END:
            name, start = stacks[event[11]].pop()
            found.append((name, start, packet[8] - start))
    assert not any(stacks.values())
    return found


def test_every_event_is_a_slice(packets):
    run = hostile()
    expected = []
    zero = min(run.table("events", p.ordinal)["ts"].min() + p.clock_offset_ns for p in run.parts)
    for part in run.parts:
        table = run.table("events", part.ordinal)
        start = table["ts"] + part.clock_offset_ns - zero
        expected += list(zip(table.text("name"), start.tolist(), table["dur"].tolist(), strict=True))
        expected += [(n, t + part.clock_offset_ns - zero, d) for n, t, d in unmarked(run, part)]
    assert sorted(slices(packets)) == sorted(expected)
    assert {name for name, _, _ in slices(packets)} >= set(NAMES)


def test_a_group_per_rank_and_device(packets):
    groups = []
    for packet in packets:
        track = dict(fields(packet[60])) if 60 in packet else {}
        if 3 in track:
            groups.append(dict(fields(track[3]))[6].decode())
    assert groups == ["rank 0: host", 'rank 0: GPU 0 GPU "<b>"', "rank 1: host", 'rank 1: GPU 0 GPU "<b>"']


def test_flows_join_launches_and_ranks(packets):
    ends = defaultdict(int)
    for packet in packets:
        for field, value in fields(packet.get(11, b"")):
            if field == 47:
                ends[value] += 1
    assert set(ends.values()) == {2}
    assert len(ends) == 2 * (len(NAMES) + 1) + 1


def test_counters_have_their_unit(packets):
    units = set()
    for packet in packets:
        track = dict(fields(packet[60])) if 60 in packet else {}
        if 8 in track:
            units.add((track[2].decode(), dict(fields(track[8]))[6].decode()))
    assert units == {("sm_clock of GPU 0", "MHz"), ("memory allocated of GPU 0", "bytes")}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40))
def test_slices_nest_on_every_track_whatever_overlaps(spans):
    start = np.array([s for s, _ in spans], np.int64)
    end = start + np.array([d for _, d in spans], np.int64)
    found, stacks, last = {}, defaultdict(list), defaultdict(int)
    for edge in edges(np.arange(len(spans)), start, end):
        assert edge.ts >= last[edge.depth]
        last[edge.depth] = edge.ts
        if edge.begins:
            stacks[edge.depth].append((edge.row, edge.ts))
        else:
            row, began = stacks[edge.depth].pop()
            assert row == edge.row
            found[row] = (began, edge.ts)
    assert not any(stacks.values())
    assert [found[i] for i in range(len(spans))] == list(zip(start.tolist(), end.tolist(), strict=True))


@pytest.mark.parametrize(("value", "data"), [(0, b"\0"), (1, b"\1"), (300, b"\xac\2"), (-1, b"\xff" * 9 + b"\1")])
def test_varints(value, data):
    assert proto.varint(value) == data
