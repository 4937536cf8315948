"""Roofs of a device: readings belong to the kernel that runs alone then."""

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table
from dtprof_dashboards.roofline import reached

TENSOR, ISSUE = "Tensor Active [Throughput %]", "SM Issue [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"


def run_of(readings):
    """Kernels a (0 to 10), b (20 to 30), c (25 to 45); readings (instant, metric, percent)."""
    tables = {
        ("events", 0): Table.of(
            "events", ts=[0, 20, 25], dur=[10, 10, 20], kind=["kernel"] * 3, name=["a", "b", "c"], lane=[1, 1, 2]
        ),
        ("samples", 0): Table.of(
            "samples", ts=[r[0] for r in readings], metric=[r[1] for r in readings], value=[r[2] for r in readings],
            unit=["%"] * len(readings),
        ),
    }  # fmt: skip
    return Run(Manifest(parts=[Part(ordinal=0, rank=0)]), MemoryStore(tables), "made", "nsys")


def at(instant, tensor, issue, read, write):
    return [(instant, TENSOR, tensor), (instant, ISSUE, issue), (instant, READ, read), (instant, WRITE, write)]


def test_each_kernel_has_the_readings_taken_while_it_ran_alone():
    found = reached(
        run_of(
            [*at(5, 80, 10, 20, 5), *at(15, 99, 99, 99, 0), *at(22, 5, 10, 40, 30), *at(27, 0, 0, 0, 0), *at(40, 1, 2, 3, 4)]
        )
    )
    assert [(r.name, r.readings, round(r.arithmetic, 2), round(r.memory, 2)) for r in found] == [
        ("c", 1, 0.02, 0.07), ("a", 1, 0.8, 0.25), ("b", 1, 0.1, 0.7),
    ]  # fmt: skip
    assert [r.bound.partition(":")[0] for r in found] == ["neither", "arithmetic", "memory"]


@pytest.mark.parametrize("readings", [[], [(5, TENSOR, 50.0)], [(5, "SM Clock", 1.0)], [(5, READ, 50.0)]])
def test_without_both_roofs_nothing_is_said(readings):
    assert reached(run_of(readings)) == []
