"""Lines and tables from transfers, and where what is allowed comes from."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dtprof
from dtprof.analyse import study_of
from dtprof.model.cost.allowed import allowed, calibration_of, nodes_of
from dtprof.model.cost.fit import costs_of, fit
from tests.unit.shapes.build import PartBuilder, shape

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]


def times(alpha, gb_s, sizes=SIZES):
    return [alpha + s / gb_s for s in sizes]


@given(alpha=st.floats(1e3, 1e6), gb_s=st.floats(0.1, 500))
def test_a_line_comes_back(alpha, gb_s):
    found = fit("all_reduce", "0,1", 2, SIZES, times(alpha, gb_s))
    assert found.alpha_ns == pytest.approx(alpha, rel=0.01, abs=1)
    assert found.gb_s == pytest.approx(gb_s, rel=0.01)
    assert found.half_size == pytest.approx(alpha * gb_s, rel=0.02, abs=2)
    assert not found.bends
    assert found.table.alone(8 * MIB) == pytest.approx(alpha + 8 * MIB / gb_s, rel=0.01)


def test_bus_bandwidth_has_the_factor_of_the_operation():
    assert fit("all_reduce", "g", 8, SIZES, times(1e4, 100)).busbw_gb_s == pytest.approx(175, rel=0.01)


def test_disturbed_repetitions_and_a_bad_size_do_not_move_it():
    sizes, took = SIZES * 9, times(20e3, 50) * 9
    took = [t * 3 if i % 4 == 0 else t for i, t in enumerate(took)]
    took = [t * 1.4 if s == MIB else t for s, t in zip(sizes, took, strict=True)]
    found = fit("all_reduce", "g", 2, sizes, took)
    assert found.gb_s == pytest.approx(50, rel=0.03)
    assert found.count == len(sizes)


def test_where_it_bends_the_sizes_stay():
    """A pipe that one operation cannot fill: flat to 1 MiB, then slow."""
    took = [8e6 if s <= MIB else 8e6 + (s - MIB) / 0.2 for s in SIZES]
    found = fit("all_reduce", "g", 2, [*SIZES, 256 * KIB], [*took, 8e6])
    assert found.bends
    assert found.table.alone(512 * KIB) == pytest.approx(8e6)
    assert found.table.alone(64 * MIB) == pytest.approx(took[-1])
    assert found.alpha_range[1] >= 8e6


def test_one_size_is_no_line_and_a_hundred_sizes_are():
    assert fit("all_reduce", "g", 2, [MIB] * 9, [1e6] * 9) is None
    assert fit("all_reduce", "g", 2, [MIB, MIB * 1.1], [1e6, 3e6]) is None
    many = np.geomspace(4 * KIB, 64 * MIB, 500).tolist()
    assert fit("all_reduce", "g", 2, many, times(3e4, 20, many)).gb_s == pytest.approx(20, rel=0.05)


def test_equal_times_have_no_bandwidth_to_show():
    assert fit("all_reduce", "g", 2, SIZES, [1e4] * len(SIZES)).gb_s == float("inf")


def test_eight_real_ranks(truth):
    """DLRM on V100: 20 us for nothing, and 907,840 and 1,576,964 bytes in 69 and 86 us: 39 GB/s between these two."""
    comm = study_of(dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")).result("comm")
    found = costs_of(comm.operations)["all_reduce", "all ranks (assumed)"]
    assert found.n == 8
    assert found.sizes == 3
    assert found.alpha_ns == pytest.approx(20e3, rel=0.01)
    assert found.gb_s_range[0] < 39 < 1.4 * found.gb_s_range[1]


def part(ordinal, *, host=None, device="NVIDIA A100-SXM4-80GB", number=None):
    made = PartBuilder(ordinal, ordinal, host=host, device=device, world_size=4)
    made.stream(7, device=ordinal if number is None else number)
    return made


def run_of(*parts):
    return shape(list(parts), {}, world_size=4).run


def test_hosts_are_told_by_name_or_by_devices_of_which_no_two_are_alike():
    named = run_of(*(part(i, host="ab"[i // 2], number=i % 2) for i in range(4)))
    assert nodes_of(named, named.parts) == 2
    unnamed = run_of(*(part(i) for i in range(4)))
    assert nodes_of(unnamed, unnamed.parts) == 1
    twice = run_of(*(part(i, number=i % 2) for i in range(4)))
    assert "not recorded" in nodes_of(twice, twice.parts)


def test_the_catalogue_speaks_for_a_host_and_a_measurement_for_all(tmp_path):
    run = run_of(*(part(i) for i in range(4)))
    may = allowed(run, "all_reduce", 4, range(4))
    low, high = may.range_ns(64 * MIB)
    # 64 MiB on four A100 took 544 us where they were measured
    assert low < 544e3 < high
    assert calibration_of(run) is None
    run.path = str(tmp_path)
    rows = [
        {"kind": "collective", "op": "all_reduce", "n": 4, "bytes": size, "in_flight": 1, "groups": 1, "times_ns": [size * 2.0]}
        for size in (MIB, 4 * MIB)
    ]
    (tmp_path / "calibration.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert allowed(run, "all_reduce", 4, range(4)).range_ns(2 * MIB) == (4 * MIB, 4 * MIB)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": None}, "not recorded"),
        ({"device": "cpu: Xeon"}, "in no catalogue"),
        ({"device": "NVIDIA Z"}, "the catalogue has no NVIDIA Z"),
    ],
)
def test_what_is_not_known_comes_with_what_to_measure(change, reason):
    run = run_of(*(part(i, **change) for i in range(4)))
    told = allowed(run, "all_reduce", 4, range(4))
    assert reason in told
    assert "dtprof job collectives" in told


def test_devices_that_differ_have_no_single_answer():
    run = run_of(part(0), part(1, device="NVIDIA H100 80GB HBM3"), part(2), part(3))
    assert "its devices differ" in allowed(run, "all_reduce", 4, range(4))
