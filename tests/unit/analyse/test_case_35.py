"""Recompiling for each new length (pytorch#108966): such steps are no training steps, and who waits meanwhile is not blamed."""

from __future__ import annotations

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape

STEPS, STEP_US, COMPILES_US = 12, 20_000, 300_000


def job(compiling):
    """Two CPU ranks that reduce at the end of each step; in steps ``compiling`` rank 0 compiles 300 ms, and rank 1 waits."""
    begin, builders = 0, [PartBuilder(r, r, world_size=2) for r in range(2)]
    lanes = [(b.thread(), b.thread("gloo", 2, "pt_gloo_runner"), b.group("0", (0, 1), backend="gloo")) for b in builders]
    for step in range(STEPS):
        late = COMPILES_US if step in compiling else 0
        for rank, made in enumerate(builders):
            thread, worker, group = lanes[rank]
            mine = late if rank == 0 else 0
            arrives = begin + mine + 15_000
            if mine:
                made.span(thread, "cpu_op", "compile_inner", begin, begin + mine, step=step)
            made.span(thread, "cpu_op", "aten::mm", begin + mine, arrives, step=step)
            event = made.span(worker, "comm", "gloo:all_reduce", arrives, begin + late + 19_000, step=step)
            made.comm(event, "all_reduce", group, step, 1 << 20)
            made.step(step, begin, begin + late + STEP_US, kind="warm-up" if mine else "train")
        begin += late + STEP_US
    return study_of(matched(shape(builders, {}, "dtprof", world_size=2)))


@pytest.mark.parametrize("compiling", [(), (4,), (2, 4, 6, 8)], ids=str)
def test_who_waits_for_a_compiling_rank_is_no_straggler_and_its_steps_are_no_training_steps(compiling):
    study = job(compiling)
    for account in study.result("accounting").parts:
        train = [s for s in account.steps if s.kind == "train"]
        assert {s.step for s in train} == set(range(STEPS)) - set(compiling)
        assert {s.dur_ns for s in train} == {STEP_US * 1000}
    told = [f for f in findings(study) if f.ranks and len(f.ranks) == 1 and f.severity != "low"]
    assert [f.title for f in told if f.rule.startswith(("straggler.", "comm.waiting"))] == []
