"""Who is waited for: shared where several arrive at one instant, and late only where the lateness explains the waiting."""

from __future__ import annotations

import pytest

from dtprof.table import Table
from tests.unit.kineto_maker import Trace, found, study, verdict


def write(folder, waits, enters=(0,) * 6, steps=4, long_step=2_000):
    """Every rank computes 300 us and joins one all-reduce of 1 ms per step, ``waits[rank]`` us before the last one."""
    for rank in range(len(waits)):
        t = Trace(rank, len(waits))
        for step in range(steps):
            at = step * long_step + 100
            t.step(step, at + enters[rank], at + long_step + enters[rank] - 50)
            t.run("gemm", at + 60, at + 70, at + 370)
            name = "ncclDevKernel_AllReduce_Sum_f32"
            t.run(name, at + 80, at + 1_400 - waits[rank], at + 1_900, 20, **{"Collective name": "allreduce"})
        t.write(folder / f"rank{rank}.json")
    return folder


def test_ranks_that_arrive_together_share_what_is_waited_for_them(tmp_path):
    at = study(write(tmp_path, (0, 0, 900, 900)))
    waiting = at.result("waiting")
    assert set(waiting.by_culprit) == {0, 1}
    assert abs(waiting.by_culprit[0] - waiting.by_culprit[1]) < 1
    assert abs(sum(waiting.by_culprit.values()) - waiting.per_step_ns) < 1
    assert {o.last_rank for o in at.result("comm").operations} == {None}


def test_nobody_is_named_when_nobody_waits(tmp_path):
    at = study(write(tmp_path, (0, 0, 0, 0)))
    assert at.result("waiting").by_culprit == {}
    assert {o.last_rank for o in at.result("comm").operations} == {None}


def test_a_rank_that_enters_a_little_late_is_not_blamed_for_long_waits(tmp_path):
    rules = found(write(tmp_path, (0, 900, 900, 900), enters=(2, 0, 0, 0)))
    assert "straggler.late_entry" not in rules
    finding = rules["comm.waiting"][0]
    assert finding.ranks == (0,)
    # three of four ranks wait 0.9 ms for it: by so much the step is longer, not by the mean over all of them
    waiting = study(tmp_path).result("waiting")
    assert finding.seconds_per_step == pytest.approx(waiting.by_culprit[0] * 4 / 3 / 1e9)
    assert finding.seconds_per_step == pytest.approx(0.9e-3, rel=0.02)


def test_windows_of_one_rank_are_averaged(tmp_path):
    for number, wait in enumerate((900, 300)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in write(folder, (0, wait, wait, wait)).iterdir():
            file.rename(tmp_path / f"{file.stem}.{1_000_000_000_000_000_000 + number}.pt.trace.json")
    waiting = study(tmp_path).result("waiting")
    mean = waiting.by_victim[1]
    totals = [p for p in study(tmp_path).result("accounting").parts if p.rank == 1]
    assert len(totals) == 2
    assert mean == sum(sum(s.accounting["comm_wait_ns"] for s in p.steps if s.complete) / 3 for p in totals) / 2


def test_cost_does_not_grow_with_the_square_of_the_operations(tmp_path, monkeypatch):
    decoded = []
    text = Table.text
    monkeypatch.setattr(Table, "text", lambda self, name: decoded.append(name) or text(self, name))
    counts = []
    for steps in (4, 40):
        folder = tmp_path / str(steps)
        folder.mkdir()
        decoded.clear()
        study(write(folder, (0, 900, 900, 900), steps=steps)).result("waiting")
        counts.append(len(decoded))
    assert counts[0] == counts[1]


def test_verdict_speaks_of_several_late_ranks_in_the_plural(tmp_path):
    text = verdict(study(write(tmp_path, (0, 0, 900, 900, 900, 900))))
    assert text.why.endswith("of the waiting is for them")
    assert "what ranks 0, 1 do before" in text.next[0]


def test_a_rank_that_waits_alone_is_early_and_the_others_are_not_late_in_turn(tmp_path):
    text = verdict(study(write(tmp_path, (0, 0, 900, 0))))
    assert text.why.startswith("rank 2 arrives first")
    assert text.next[0] == "give rank 2 as much work as the others have"


def test_two_late_ranks_of_four_are_no_single_one(tmp_path):
    text = verdict(study(write(tmp_path, (0, 900, 900, 0))))
    assert text.why.startswith("no single rank arrives last (rank 0: 50%, rank 3: 50%)")
