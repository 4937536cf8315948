"""gloo's segments: an all-reduce's time climbs in steps, and a small one queues behind the segments of a large one.

The measured figures are those of two ranks in network namespaces (torch 2.13): sizes in MiB, times in ms.
"""

import json

import pytest

from dtprof.model.cost import from_calibration
from dtprof.model.cost.segments import in_rounds, queued, segment, steps

MIB, MS = 1 << 20, 1_000_000
# 5 Gb/s, RTT 8 ms: what a calibration measures, and sizes between them
STEEP = {1 / 256: (16.7, 16.8), 1: (18.2, 20.0), 4: (23.9, 31.1), 16: (93.3, 118.9)}
BETWEEN = {2: (20.3, 23.4), 4.5: (38.0, 43.5), 5: (39.1, 48.3), 8: (45.3, 57.6), 10: (61.6, 75.5)}
# 2 Gb/s, RTT 2 ms: alone and two of a size; ms of each of a row of them beside one of 16 MiB
MIXED = {1 / 16: (4.42, 4.59), 0.25: (5.08, 5.79), 0.5: (6.15, 7.92), 1: (8.41, 12.58), 4: (21.46, 38.64), 16: (86.1, 152.3)}
BESIDE = {1 / 16: 8.63, 0.25: 8.85, 0.5: 10.73, 1: 20.15, 4: 36.94}


def table(folder, measured, backend="gloo"):
    lines = [
        {"kind": "collective", "op": "all_reduce", "n": 2, "bytes": round(size * MIB), "in_flight": flight, "groups": 1,
         "traced": False, "backend": backend, "times_ns": [times[flight - 1] * MS]}
        for size, times in measured.items() for flight in (1, 2)
    ]  # fmt: skip
    (folder / "calibration.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return from_calibration(folder, "all_reduce", 2)


def test_a_share_travels_in_two_segments_or_more_of_at_most_a_mebibyte():
    assert segment(MIB, 2) == MIB / 4
    assert segment(64 * MIB, 2) == MIB
    assert [in_rounds(s * MIB, 2) for s in (0.001, 4, 8, 16)] == [1, 1, 2, 4]
    assert 1 < in_rounds(4 * MIB + 1, 2) < 2
    assert in_rounds(8 * MIB, 4) == 1
    assert steps(4096, 9 * MIB, 2) == [4 * MIB, 4 * MIB + 1, 6 * MIB, 6 * MIB + 1, 8 * MIB, 8 * MIB + 1]


def test_small_messages_wait_once_a_round_and_larger_ones_each():
    assert queued(MIB / 2, 2) == 2
    assert queued(MIB, 2) == 4
    assert queued(16 * MIB, 2) == 16


def test_sizes_between_those_measured_lie_on_steps(tmp_path):
    found = table(tmp_path, STEEP)
    for size, (alone, two) in BETWEEN.items():
        assert found.alone(size * MIB) == pytest.approx(alone * MS, rel=0.12)
        assert found.alone(size * MIB) * found.slowdown(size * MIB) == pytest.approx(two * MS, rel=0.12)
    assert found.alone(4.5 * MIB) > 1.4 * found.alone(4 * MIB)
    for size, (alone, _) in STEEP.items():
        assert found.alone(size * MIB) == pytest.approx(alone * MS, rel=1e-3)


def test_other_libraries_have_no_such_steps(tmp_path):
    found = table(tmp_path, STEEP, "nccl")
    assert found.alone(4.5 * MIB) < 1.2 * found.alone(4 * MIB)
    assert found.together(MIB / 2, 16 * MIB) == (found.slowdown(MIB / 2), found.slowdown(MIB / 2))


def test_a_small_operation_waits_for_the_segments_of_a_large_one(tmp_path):
    found = table(tmp_path, MIXED)
    for size, took in BESIDE.items():
        assert found.alone(size * MIB) * found.together(size * MIB, 16 * MIB)[0] == pytest.approx(took * MS, rel=0.25)


def test_sizes_that_are_latency_tell_nothing_of_queues(tmp_path):
    found = table(tmp_path, {1 / 256: (4, 4), 0.25: (5, 6)})
    assert found.together(MIB / 8, 16 * MIB)[0] == found.slowdown(MIB / 8)


def test_the_large_one_yields_what_the_small_ones_send(tmp_path):
    """Ten of half a MiB made one of 16 MiB last 112 ms instead of 86."""
    found = table(tmp_path, MIXED)
    assert found.together(MIB / 2, 16 * MIB)[1] == pytest.approx(112 / 86, rel=0.05)
    assert 1 <= found.together(MIB / 16, 16 * MIB)[1] < 1.1


def test_two_of_a_size_do_to_each_other_what_was_measured(tmp_path):
    found = table(tmp_path, MIXED)
    for size in (0.25, 1, 4, 16):
        assert found.together(size * MIB, size * MIB) == pytest.approx([found.slowdown(size * MIB)] * 2, rel=0.02)
    assert found.together(MIB, MIB + 2) == pytest.approx(found.together(MIB, MIB), rel=0.01)
