"""Memory over time by category: layers sum to the level, and are those of blocks and of counted state."""

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table
from dtprof_dashboards.memory_series import REST, series

S = 10**9


def run_of(**tables):
    held = {(name, 0): Table.of(name, **columns) for name, columns in tables.items()}
    return Run(Manifest(parts=[Part(ordinal=0, rank=0)]), MemoryStore(held), "made", "dtprof")


def by_allocator(phases):
    """A block of 100 of the forward pass freed in the backward pass, one of 30 inside the backward pass; 7 held before."""
    ts, size = [1, 2, 3, 4], [100, 30, -30, -100]
    level = {"ts": ts, "device": [0] * 4, "category": ["allocated"] * 4, "bytes": [107, 137, 107, 7], "phase": phases}
    return run_of(memory=level, allocations={"ts": ts, "device": [0] * 4, "address": [1, 2, 2, 1], "size": size})


def test_blocks_are_told_apart_by_their_phase():
    found = series(by_allocator(["forward", "backward", "backward", "backward"]), 0)
    assert {k: v.tolist() for k, v in found.layers.items()} == {
        "activations": [100, 100, 100, 0], "temporaries": [0, 30, 0, 0], REST: [7, 7, 7, 7],
    }  # fmt: skip
    assert np.array_equal(sum(found.layers.values()), found.held)


def test_without_phases_there_is_a_level_and_the_reason():
    found = series(by_allocator([None] * 4), 0)
    assert found.held.tolist() == [107, 137, 107, 7] and not found.layers and "no phase is marked" in found.why


def test_state_holds_from_one_count_to_the_next():
    found = series(
        run_of(
            memory={"ts": [2 * S, 2 * S, 4 * S], "category": ["parameter", "parameter", "optimizer"], "bytes": [10, 5, 900]},
            metrics={"step": [0, 1, 2], "metric": ["memory_rss"] * 3, "value": [100.0, 200.0, 300.0]},
            steps={"step": [0, 1, 2], "host_ts": [0, 2 * S, 4 * S], "host_dur": [S] * 3},
        ),
        0,
    )
    assert found.held.tolist() == [100, 200, 300] and found.what.startswith("resident")
    # what exceeds the level is cut
    assert {k: v.tolist() for k, v in found.layers.items()} == {
        "parameters": [0, 15, 15], "optimizer": [0, 0, 285], REST: [100, 185, 0],
    }  # fmt: skip


def test_one_reading_is_no_series():
    assert series(run_of(), 0) is None
