"""NCCL's model: hand-computed values from its constants, and what it says of measured all-reduces."""

import csv
import gzip
from itertools import pairwise

import numpy as np
import pytest

from dtprof.catalogue.hardware import gpu_of
from dtprof.errors import InputError
from dtprof.model.cost.expected import expected
from dtprof.model.cost.nccl import Links, time_ns, ways

DGX_A100 = Links("nvlink", 240.0, 0.0, 24, 80)
MIB = 1 << 20


def test_ring_simple_by_hand():
    """8.4 us + 14 steps of 3.4 us, and 2 * 7/8 of the bytes at 240 GB/s."""
    expected_us = 8.4 + 14 * 3.4 + MIB * 1.75 / 240e3
    assert time_ns("all_reduce", MIB, 8, 1, DGX_A100, "ring", "Simple") == pytest.approx(expected_us * 1e3)


def test_ring_ll_has_half_of_the_bandwidth_up_to_its_most():
    """6.6 us + 14 * 0.6 us; half of 240 is above Ampere's 87.7 GB/s of one node."""
    expected_us = 6.6 + 14 * 0.6 + MIB * 1.75 / 87.7e3
    assert time_ns("all_reduce", MIB, 8, 1, DGX_A100, "ring", "LL") == pytest.approx(expected_us * 1e3)


def test_tree_ll128_by_hand():
    """14 us + 2 * 7 * 1.25 us; 240 * 0.92 * 7/9 GB/s of bus, half of it, of which 0.6 is left at 1 MiB."""
    left = 0.6
    expected_us = 14 + 14 * 1.25 + MIB / (240e3 * 0.92 * 7 / 9 / 2 * left)
    assert time_ns("all_reduce", MIB, 8, 1, DGX_A100, "tree", "LL128") == pytest.approx(expected_us * 1e3)


def test_between_nodes_by_hand():
    """16 ranks on 2 nodes, all-gather: 15 steps, 1 between nodes; Intel hosts take 3 us to hand a Simple message over."""
    links = Links("nvlink", 240.0, 96.0, 24, 80)
    expected_us = 8.4 + 14 * 3.4 + 1 * 14.0 + MIB * 15 / 16 / 96e3
    assert time_ns("all_gather", MIB, 16, 2, links, "ring", "Simple") == pytest.approx(expected_us * 1e3)
    amd = Links("nvlink", 240.0, 96.0, 24, 80, amd_host=True)
    assert time_ns("all_gather", MIB, 16, 2, amd, "ring", "Simple") == pytest.approx((expected_us + 14 * 2.6) * 1e3)


def test_a_ring_over_nodes_has_a_plateau_on_large_all_reduces():
    links = Links("nvlink", 240.0, 96.0, 24, 80)
    latency = 8.4 + 28 * 3.4 + 2 * 14.0
    small, large = (time_ns("all_reduce", s, 16, 2, links, "ring", "Simple") / 1e3 for s in (16 * 1024, 64 * MIB))
    assert small == pytest.approx(latency + 16 * 1024 * 1.875 / 96e3)
    assert large == pytest.approx(1.4 * latency + 64 * MIB * 1.875 / 96e3)


def test_small_messages_go_by_ll_and_large_ones_by_simple():
    assert ways("all_reduce", 1024, 8, 1, DGX_A100)[0].protocol == "LL"
    best = ways("all_reduce", 1 << 30, 8, 1, DGX_A100)[0]
    assert (best.algorithm, best.protocol) == ("ring", "Simple")


def test_trees_win_at_small_sizes_over_many_nodes():
    many = Links("nvlink", 240.0, 96.0, 24, 80)
    assert ways("all_reduce", 64 * 1024, 256, 32, many)[0].algorithm == "tree"
    assert ways("all_reduce", 1 << 30, 32, 4, many)[0].algorithm == "ring"


def test_nvls_needs_hopper_and_one_node():
    hopper = Links("nvlink", 370.8, 400.0, 16, 90)
    assert ways("all_reduce", 1 << 30, 8, 1, hopper)[0].algorithm == "nvls"
    assert "nvls" not in {w.algorithm for w in ways("all_reduce", 1 << 30, 16, 2, hopper)}
    assert "nvls" not in {w.algorithm for w in ways("all_reduce", 1 << 30, 8, 1, DGX_A100)}


def test_ll128_needs_nvlink():
    assert "LL128" not in {w.protocol for w in ways("all_reduce", MIB, 4, 1, Links("pci", 12.0, 0.0, 2, 80))}


@pytest.mark.parametrize(
    ("op", "ranks", "nodes", "way", "says"),
    [
        ("send_recv", 2, 1, {}, "has no send_recv"),
        ("all_reduce", 1, 1, {}, "1 ranks"),
        ("all_reduce", 6, 4, {}, "as many on each node"),
        ("all_reduce", 16, 2, {}, "between_gb_s"),
        ("all_gather", 8, 1, {"algorithm": "tree"}, "no all_gather by tree"),
    ],
)
def test_what_the_model_does_not_hold_is_said(op, ranks, nodes, way, says):
    with pytest.raises(InputError, match=says):
        time_ns(op, MIB, ranks, nodes, DGX_A100, **way)


@pytest.fixture(scope="module")
def measured(truth):
    """(gpu, ranks) -> sizes in bytes and ns of all-reduces that somebody measured with nccl-tests."""
    found = {}
    with gzip.open(truth / "tables" / "calibrate" / "nccl_allreduce_a100_v100.csv.gz", "rt") as file:
        for gpu, ranks, line in csv.reader(file):
            fields = line.split(",")
            if fields[0].isdigit():
                found.setdefault((gpu, int(ranks)), []).append((int(fields[0]), float(fields[3])))
    return {key: np.array(sorted(rows)) for key, rows in found.items()}


NAME = {"a100": "NVIDIA A100-SXM4-40GB", "v100": "Tesla V100-SXM2-32GB"}
# fitted on every second size, from the first, of 2, 4 and 8 GPUs
HELD_OUT = [("a100", 3), ("a100", 5), ("a100", 6), ("a100", 7), ("v100", 8), ("a100", 2), ("a100", 4), ("a100", 8)]


@pytest.mark.parametrize(("gpu", "ranks"), HELD_OUT)
def test_measured_all_reduces_are_expected_within_two_percent(measured, gpu, ranks):
    rows = measured[gpu, ranks][1::2]
    found = [expected("all_reduce", int(size), ranks, 1, gpu_of(NAME[gpu])) for size, _ in rows]
    errors = np.array([abs(e.ns / ns - 1) for e, (_, ns) in zip(found, rows, strict=True)])
    limit = 0.03 if ranks == 2 else 0.02
    assert np.median(errors) < limit
    assert np.quantile(errors, 0.9) < 0.055
    inside = [e.low_ns <= ns <= e.high_ns for e, (_, ns) in zip(found, rows, strict=True)]
    assert np.mean(inside) > 0.98


def test_a_part_of_a_mesh_is_a_range_that_holds_what_was_measured(measured):
    """Two V100 of a mesh have one link between them or two: the catalogue cannot know, and the range is wide."""
    for ranks in (2, 3, 4, 6, 7):
        rows = measured["v100", ranks][::16]
        found = [expected("all_reduce", int(size), ranks, 1, gpu_of(NAME["v100"])) for size, _ in rows]
        assert all(e.low_ns <= ns <= e.high_ns for e, (_, ns) in zip(found, rows, strict=True))


@pytest.mark.parametrize(("size", "measured_us"), [(448, 20), (907840, 69), (1576964, 86)])
def test_the_all_reduces_of_another_machine_lie_in_their_range(size, measured_us):
    """Transfers of eight V100 that train DLRM, which nothing was fitted on."""
    found = expected("all_reduce", size, 8, 1, gpu_of("Tesla V100-SXM2-32GB"))
    assert found.low_ns <= measured_us * 1e3 <= found.high_ns


def test_what_is_not_known_is_said():
    gpu = gpu_of("NVIDIA H100 80GB HBM3")
    assert "several hosts" in expected("all_reduce", MIB, 16, 2, gpu)
    assert "not modelled" in expected("all_to_all", MIB, 8, 1, gpu)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA B200", "AMD Instinct MI300X", "NVIDIA L40S", "Tesla T4"])
def test_larger_takes_longer_and_ranges_are_ranges(name):
    found = [expected("all_reduce", 1 << p, 4, 1, gpu_of(name)) for p in range(0, 31, 2)]
    assert all(0 < e.low_ns <= e.high_ns for e in found)
    assert all(a.low_ns <= b.low_ns for a, b in pairwise(found))
