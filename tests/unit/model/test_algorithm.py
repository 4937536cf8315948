"""comm.algorithm: all-reduces of a step graph take as much longer as NCCL's own model says, and nothing else moves."""

import numpy as np
import pytest

import dtprof
from dtprof.edits import parse_edits
from dtprof.model.algorithm import by_algorithm
from dtprof.model.cost.nccl import Links, time_ns
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import NodeKind
from dtprof.model.whatif import what_if


@pytest.fixture(scope="module")
def dlrm(truth):
    return dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")


def test_each_all_reduce_takes_its_own_factor(dlrm):
    graph = build(dlrm)
    (edit,) = parse_edits(["comm.algorithm=tree"])
    notes = []
    changed = by_algorithm(dlrm, graph, edit, False, notes)
    meets = graph.kind == NodeKind.MEET
    assert (changed.dur[~meets] == graph.dur[~meets]).all()
    # six NVLinks of 20 GB/s as NCCL counts them, twelve channels, Volta
    links = Links("nvlink", 120.0, channels=12, capability=70)
    sizes = {20_000: 448, 69_000: 907_840, 86_000: 1_576_964}
    for before, after in zip(graph.dur[meets].tolist(), changed.dur[meets].tolist(), strict=True):
        size, factor = sizes.get(before), 1.0
        if size is not None:
            tree, best = (time_ns("all_reduce", size, 8, 1, links, way) for way in ("tree", None))
            factor = tree / best
        assert after == round(before * factor)
    assert "are left out" in notes[0]


def test_what_nccl_chooses_already_changes_nothing(dlrm):
    found = what_if(dlrm, parse_edits(["comm.algorithm=ring"]))
    assert found.predicted_ns == pytest.approx(found.measured_ns, rel=1e-6)
    assert found.low_ns <= found.measured_ns <= found.high_ns


def test_a_lone_rank_and_an_unknown_device_are_withheld(truth, dlrm, monkeypatch):
    lone = dtprof.open_run(truth / "traces" / "kineto" / "mi300x_rank0of8_ddp_resnet.json.gz")
    assert "does not hold these devices: AMD Instinct MI300X" in by_algorithm(
        lone, build(lone), parse_edits(["comm.algorithm=tree"])[0], True, []
    )
    monkeypatch.setattr("dtprof.model.algorithm.nodes_of", lambda run, parts: 2)
    told = by_algorithm(dlrm, build(dlrm), parse_edits(["comm.algorithm=tree"])[0], True, [])
    assert "on several hosts" in told


def test_durations_stay_whole_numbers(dlrm):
    graph = build(dlrm)
    changed = by_algorithm(dlrm, graph, parse_edits(["comm.algorithm=tree"])[0], False, [])
    assert changed.dur.dtype == np.int64
