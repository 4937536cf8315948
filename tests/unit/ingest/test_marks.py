"""Steps, phases and tags from ranges."""

from __future__ import annotations

import pytest

import dtprof
from dtprof.ingest.phases import phase_of
from tests.unit.kineto_maker import Trace


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward", "forward"), ("## forward ##", "forward"), ("DistributedDataParallel.forward", "forward"),
        ("forward#microbatch=2#layer=blocks.0", "forward"), ("## backward ##", "backward"), ("backward", "backward"),
        ("Optimizer.step#AdamW.step", "optimizer"), ("## optimizer ##", "optimizer"), ("optimizer_step", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"), ("data", "data"),
        ("Optimizer.zero_grad#SGD.zero_grad", None), ("ProfilerStep#3", None), ("aten::mm", None), ("nccl:all_reduce", None),
        ("mine#phase=backward", "backward"), ("## forward:split_sparse_features ##", None),
    ],
)  # fmt: skip
def test_phase_names(name, phase):
    assert phase_of(name) == phase


def test_tags_reach_operators_and_kernels_of_their_thread(tmp_path):
    t = Trace(0, 1)
    t.step(4, 0, 1000)
    t.range("forward#microbatch=1#stage=0", 100, 500)
    t.range("block#layer=blocks.0", 200, 300)
    t.op("aten::mm", 210, 260)
    t.run("gemm", 220, 600, 700)
    t.op("aten::add", 310, 320)
    t.op("aten::other", 210, 250, tid=99)
    run = dtprof.open_run(t.write(tmp_path / "rank0.json"))
    events = run.table("events", 0)
    rows = {events.text("name")[i]: events.row(i) for i in range(len(events))}
    assert (rows["gemm"]["microbatch"], rows["gemm"]["stage"], rows["gemm"]["layer"]) == (1, 0, "blocks.0")
    assert (rows["gemm"]["step"], rows["gemm"]["phase"]) == (4, "forward")
    assert (rows["aten::add"]["microbatch"], rows["aten::add"]["layer"]) == (1, None)
    assert rows["aten::other"]["microbatch"] is None


def test_a_stub_step_at_the_end_is_incomplete(tmp_path):
    t = Trace(0, 1)
    for k in range(3):
        t.step(2 + k, 1000 * k, 1000 * k + 1000)
    t.step(5, 3000, 3013)
    steps = dtprof.open_run(t.write(tmp_path / "rank0.json")).table("steps", 0)
    assert steps["step"].tolist() == [2, 3, 4, 5]
    assert steps["complete"].tolist() == [True, True, True, False]


def test_steps_of_old_files_are_operators(tmp_path):
    t = Trace(0, 1)
    t.op("ProfilerStep#7", 0, 1000)
    t.span("gpu_user_annotation", "ProfilerStep#7", 100, 900, pid=0, tid=7, device=0, stream=7)
    steps = dtprof.open_run(t.write(tmp_path / "rank0.json")).table("steps", 0)
    assert steps["step"].tolist() == [7]


def test_parents_are_strict_even_for_overlapping_operators(tmp_path):
    t = Trace(0, 1)
    t.op("outer", 0, 100)
    t.op("inner", 10, 50)
    t.op("overlapping", 40, 120)
    t.op("same start", 40, 45)
    t.op("after", 130, 140)
    events = dtprof.open_run(t.write(tmp_path / "rank0.json")).table("events", 0)
    names = events.text("name")
    parent = {names[i]: names[p] if p >= 0 else None for i, p in enumerate(events["parent"].tolist())}
    assert parent == {"outer": None, "inner": "outer", "overlapping": None, "same start": "overlapping", "after": None}
    assert all(p < i for i, p in enumerate(events["parent"].tolist()))
